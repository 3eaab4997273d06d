"""Flags of processors other than the one at hand, under which the tests can run, too.

`PYTHONPATH=tests/flags WIDTHFOLD_TEST_PROCESSOR=nehalem pytest` runs them, and each process that
they start, as if this processor had the flags of that one. The kernels of ONNX Runtime still find
the real ones.
"""

from __future__ import annotations

import os

import archspec.cpu
from archspec.cpu.microarchitecture import Microarchitecture


def _flags(name: str) -> frozenset[str]:
    return frozenset(archspec.cpu.TARGETS[name].features)


FLAGS = {
    "zen4": _flags("zen4"),
    "zen4-without-one": _flags("zen4") - {"avx512_vbmi2"},
    "cascadelake": _flags("cascadelake"),
    "skylake_avx512": _flags("skylake_avx512"),
    "haswell": _flags("haswell"),
    "sandybridge": _flags("sandybridge"),
    "nehalem": _flags("nehalem"),
    "alder-lake": _flags("haswell") | {"avx_vnni"},
    "graviton": _flags("cortex_a72") | {"asimd"},
    "graviton3": _flags("neoverse_v1"),
    "unknown": frozenset({"avx512f", "avx512vnni", "of_no_known_processor"}),
    "none": frozenset[str](),
}
"""The flags that each processor tells, by names of ours."""

CHOSEN = os.environ.get("WIDTHFOLD_TEST_PROCESSOR")
"""The processor under which the tests run; None for the one at hand."""


def told(flags: frozenset[str]) -> Microarchitecture:
    """What archspec reads of a processor that has these flags."""
    return Microarchitecture("", [], "", {*flags}, {})
