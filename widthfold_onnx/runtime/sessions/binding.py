"""Runs sessions on inputs that lie on the device already, so that a time includes no copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from widthfold_onnx.arrays import Array
from widthfold_onnx.runtime.sessions import library

Placed = Any
"""An array on the device, as the runtime holds it; it may be bound to several sessions."""


class Bound:
    """A callable that runs a session once; outputs stay on the device.

    Args:
        session: of ONNX Runtime.
        feeds: arrays, which are copied to the device now, or what lies there already.
        outputs: names of all outputs.
        device: the runtime's name for the kind, and the number.
        guard: turns all exceptions of the runtime into errors of ours.
    """

    def __init__(
        self,
        session: Any,
        feeds: Mapping[str, Array | Placed],
        outputs: Sequence[str],
        device: tuple[str, int],
        guard: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._outputs = outputs
        self._device = device
        self._guard = guard
        self._reuses_buffers = True
        with guard():
            self._binding = session.io_binding()
            # On the CPU the runtime reads the buffers of the arrays themselves, and keeps none.
            self._inputs = {name: place(value, device) for name, value in feeds.items()}
            for name, value in self._inputs.items():
                self._binding.bind_ortvalue_input(name, value)
            self._bind_outputs()

    def _bind_outputs(self) -> None:
        self._binding.clear_binding_outputs()
        for name in self._outputs:
            self._binding.bind_output(name, *self._device)

    def __call__(self) -> None:
        """Run once, and wait for the end.

        Raises:
            UnverifiedError: the runtime stopped.
        """
        with self._guard():
            self._run()
            self._binding.synchronize_outputs()

    def _run(self) -> None:
        """Run once; the outputs of the run before are overwritten where the runtime lets us.

        It refuses them if the model declares another rank than its outputs have. Outputs of its own
        it makes whatever the rank, as for every caller of its usual `run`.
        """
        if not self._reuses_buffers:
            self._bind_outputs()
        try:
            self._session.run_with_iobinding(self._binding)
        except library.failures():
            if not self._reuses_buffers:
                raise
            self._reuses_buffers = False
            self._run()

    def results(self) -> dict[str, Placed]:
        """Return the outputs of the last run, on the device; the next run may overwrite them."""
        return dict(zip(self._outputs, self._binding.get_outputs(), strict=True))


def place(value: Array | Placed, device: tuple[str, int]) -> Placed:
    """Copy an array to the device, unless it lies there already."""
    kind = library.runtime().OrtValue
    return value if isinstance(value, kind) else kind.ortvalue_from_numpy(value, *device)
