"""Reduces the runtime's error messages to the part that is for the user."""

from __future__ import annotations

import re
from pathlib import Path

from widthfold_onnx.text import printable

_LONGEST = 500

_DEVICE = re.compile(r"\bCU\w+ failure [^;]*|\[OpenVINO-EP\] .*")
"""``CUDA failure 35: what went wrong``, behind signatures of the runtime and before its own source,
the name of the host and the expression; or ``[OpenVINO-EP] what went wrong`` behind signatures."""


def words(error: Exception, model: Path | None = None) -> str:
    r"""Return a runtime error as one line; if a library of the device failed, only its message.

    Args:
        error: the exception that it raised.
        model: a file that is shown without its folder.

    >>> words(RuntimeError("f(int) [with T = x] CUDA failure 2: out of memory ; GPU=0 ; host=h"))
    'CUDA failure 2: out of memory'
    >>> words(RuntimeError("a.cc:1 f(int) [OpenVINO-EP] Loading: Exception from b.cpp:2:\nno rank"))
    '[OpenVINO-EP] Loading: Exception from b.cpp:2: no rank'
    >>> words(RuntimeError("no such node\n"))
    'no such node'
    """
    text = str(error) if model is None else str(error).replace(str(model), model.name)
    line = " ".join(text.split())
    found = _DEVICE.search(line)
    return printable((found[0] if found else line).strip(), _LONGEST)
