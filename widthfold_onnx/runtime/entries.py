"""Entries of a session's configuration, such as `session.x64quantprecision`, and their names.

The runtime takes an entry of any name without a word, so a misspelt one would have no effect and
stand in a report all the same. It keeps the names that it asks for as texts in its library; a name
that is not there is unknown to it. Values are tried on one node.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.failures import words
from widthfold_onnx.runtime.providers import FATAL, NAMES, Failures, one_node
from widthfold_onnx.text import quoted

FOLDER = "session.model_external_initializers_file_folder_path"
"""Where a model in memory has its external data (onnxruntime_session_options_config_keys.h)."""

PRECISION = "session.x64quantprecision"
"""At 1 the runtime multiplies signed weights as unsigned ones where that is exact only so, from
the level EXTENDED on (the same header; `runtime.saturation`)."""

_LIBRARIES = ("*.so*", "*.pyd", "*.dll", "*.dylib")
_NAME = re.compile(rb"\0((?:ep|memory|mlas|optimization|session)\.[a-z0-9_.]*[a-z0-9])(?=\0)")


def entries(chosen: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """All entries of a session: ours, and those that were chosen, which win.

    Args:
        chosen: by name.
        folder: of the external data of a model in memory.
    """
    # Idle threads sleep: a spinning pool makes times depend on the load.
    own = {"session.intra_op.allow_spinning": "0"}
    if folder is not None:
        own[FOLDER] = str(folder.absolute())
    return own | dict(chosen)


def check_entries(runtime: Any, failures: Failures, chosen: Mapping[str, str]) -> None:
    """Check that the runtime knows these entries and takes their values.

    Raises:
        UsageError: it does not; names the entry.
    """
    for name, value in chosen.items():
        if name not in known_names(runtime):
            near = get_close_matches(name, known_names(runtime), 1)
            hint = f"; do you mean {near[0]}?" if near else ""
            raise UsageError(f"the runtime knows no session option {quoted(name)}{hint}")
        options = runtime.SessionOptions()
        options.log_severity_level = FATAL
        try:
            options.add_session_config_entry(name, value)
            runtime.InferenceSession(one_node(), options, providers=[NAMES[Provider.CPU]])
        except failures as error:
            given = quoted(f"{name}={value}")
            raise UsageError(f"the runtime does not take {given}: {words(error)}") from error


@cache
def known_names(runtime: Any) -> frozenset[str]:
    """Names of entries that the libraries of the runtime hold."""
    found: set[str] = set()
    folder = Path(runtime.__file__).parent / "capi"
    for path in (path for pattern in _LIBRARIES for path in folder.glob(pattern)):
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found |= {name.decode() for name in _NAME.findall(data)}
    return frozenset(found)
