"""Check entries of a session's configuration, such as `session.x64quantprecision`.

The runtime takes an entry of any name, silently ignores unknown ones, and cannot list the entries
that it knows. So sure mistakes are refused: an invalid name, a name close to one of those below,
and a name that the runtime ignores because it has a setting for it. Values are tried on one node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from widthfold_onnx.errors import UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.sessions import library
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.runtime.sessions.providers import one_node
from widthfold_onnx.text import quoted

FOLDER = "session.model_external_initializers_file_folder_path"
"""Where a model in memory has its external data (onnxruntime_session_options_config_keys.h)."""

PRECISION = "session.x64quantprecision"
"""At 1 the runtime multiplies signed weights as unsigned ones where that is exact only so, from
the level EXTENDED on (the same header; `runtime.kernels`)."""

SIGNED = "session.qdqisint8allowed"
"""At 1 the runtime leaves signed data signed that are quantized and dequantized, on x86 too."""

VALUED = (
    "optimization.disable_specified_optimizers",
    "session.dynamic_block_base",
    "session.intra_op_thread_affinities",
)
"""Documented names whose values are no switches."""

SWITCHES = (
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "optimization.enable_gelu_approximation",
    "session.disable_aot_function_inlining",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    SIGNED,
    "session.set_denormal_as_zero",
    PRECISION,
)
"""Those that are 0 or 1; the runtime silently takes any other value for one of them."""

DOCUMENTED = (*VALUED, *SWITCHES)
"""Names of entries that change what is computed or how long that takes (the same header)."""

NEAR = 0.93
"""Similarity of a misspelt name to one of these (`difflib`); other names of 1.32.0 are below it."""

_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def entries(given_entries: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """Return all entries of a session: our own, and the chosen ones, which override them.

    Args:
        given_entries: by name.
        folder: of the external data of a model in memory.
    """
    # Idle threads sleep: a spinning pool makes times depend on the load.
    defaults = {"session.intra_op.allow_spinning": "0"}
    if folder is not None:
        defaults[FOLDER] = str(folder.absolute())
    return defaults | dict(given_entries)


def check_entries(given_entries: Mapping[str, str]) -> None:
    """Check that no entry is surely without effect, and that the runtime accepts the values.

    Raises:
        UsageError: one is not; names the entry.
    """
    for name, value in given_entries.items():
        if mistake := _mistaken(name):
            raise UsageError(f"session option {quoted(name)}{mistake}")
        if name in SWITCHES and value not in ("0", "1"):
            raise UsageError(f"session option {name} is 0 or 1, not {quoted(value)}")
        try:
            options = library.quiet_options({name: value})
            cpu = [description_of(Provider.CPU).name]
            library.new_session(one_node(), options, cpu)
        except library.failures() as error:
            entry = quoted(f"{name}={value}")
            raise UsageError(
                f"the runtime does not take {entry}: {library.words(error)}"
            ) from error


def _mistaken(name: str) -> str:
    """Return why an entry has no effect, as the end of a sentence; "" if none is known."""
    if name in DOCUMENTED:
        return ""
    if near := get_close_matches(name.lower(), DOCUMENTED, 1, NEAR):
        return f": do you mean {near[0]}?"
    setting = getattr(library.runtime().SessionOptions, name.removeprefix("session."), None)
    if name == FOLDER or isinstance(setting, property):
        return " has no effect: widthfold sets that itself, in another way"
    return "" if _NAME.fullmatch(name) else f" is no name like {PRECISION}"
