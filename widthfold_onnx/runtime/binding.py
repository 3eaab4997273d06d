"""Runs on inputs that lie on the device already, so that a time holds no copies to and fro.

The runtime module is handed in, so that `runtime.session` stays the one that imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt


def bind(
    runtime: Any,
    session: Any,
    feeds: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str],
    device: tuple[str, int],
    recording: int | None,
) -> Callable[[], None]:
    """A call that runs a session once.

    Args:
        runtime: the module of ONNX Runtime.
        session: its session.
        feeds: copied to the device now.
        outputs: names of all outputs; they stay on the device.
        device: the runtime's name for the kind, and the number.
        recording: None, or number of the CUDA graph that the first call records and every further
            one replays; no two bindings of a session may share one.

    Raises:
        Exception: whatever the runtime raises, here and in the call.
    """
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(array, *device))
    for name in outputs:
        binding.bind_output(name, *device)
    how = None
    if recording is not None:
        # A recording holds addresses, so the outputs of a run that is not recorded (-1) stay.
        session.run_with_iobinding(binding, _numbered(runtime, -1))
        for name, value in zip(outputs, binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, value)
        how = _numbered(runtime, recording)

    def once() -> None:
        session.run_with_iobinding(binding, how)
        binding.synchronize_outputs()

    return once


def _numbered(runtime: Any, recording: int) -> Any:
    how = runtime.RunOptions()
    how.add_run_config_entry("gpu_graph_id", str(recording))
    return how
