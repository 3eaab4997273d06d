"""Measures the memory of a model, in a process that only loads it and runs it once."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from widthfold_onnx.model.proto.external import check_external, external_tensors
from widthfold_onnx.model.read.loader import load
from widthfold_onnx.options import Runtime
from widthfold_onnx.runtime.child import isolated
from widthfold_onnx.runtime.paired_benchmark import Setting, open_at
from widthfold_onnx.runtime.sessions.session import Feeds

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of ru_maxrss (getrusage(2))."""

_STATUS = Path("/proc/self/status")


def peak_mib(model: Path, options: Runtime, setting: Setting, feeds: Feeds) -> float:
    """Return the peak resident memory in MiB of a process of its own that runs the model once.

    Args:
        model: the file.
        options: provider, its options and threads are used.
        setting: of the session.
        feeds: one input set.

    Raises:
        UnverifiedError: the model does not run.
    """
    return isolated(_run_once, model, options, setting, dict(feeds))


def _run_once(model: Path, options: Runtime, setting: Setting, feeds: Feeds) -> float:
    open_at(model, options, setting).run(feeds)
    return _own_peak() / (1 << 20)


def _own_peak() -> int:
    """Return the most bytes that were resident since this program began.

    Linux starts the ru_maxrss of a new program at the size of the process that spawned it
    (fs/exec.c), which here holds both models; VmHWM belongs to the new program alone.
    """
    if _STATUS.is_file():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def file_bytes(model: Path) -> int:
    """Return the size of a model with the files of its external data."""
    loaded = load(model)
    files = {check_external(t, loaded.folder).location for t in external_tensors(loaded.proto)}
    sizes = ((loaded.folder / location).stat().st_size for location in files)
    return model.stat().st_size + sum(sizes)
