"""Check what the runtime accepts: execution providers, their options, and session config entries.

A provider is usable if it runs one node. Entries are pairs such as `session.x64quantprecision=1`.
The runtime silently ignores entries that it does not know, and cannot list those that it knows. So
obvious mistakes are refused: an invalid name, a name that is close to a documented one
(`DOCUMENTED`), and a name that the runtime ignores because SessionOptions has an attribute for it.
Values are tried on one node.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime import library
from widthfold_onnx.runtime.library import missing_library, preload
from widthfold_onnx.runtime.provider_traits import traits_of
from widthfold_onnx.text import printable, quoted

OFF = ("0", "false")
"""Values, in lower case, that switch an option off."""


def ranking(
    provider: Provider, provider_options: Mapping[str, str], threads: int, *, tf32: bool
) -> list[tuple[str, dict[str, str]]]:
    """Return the provider and then its fallbacks, as names of the runtime with their options.

    Args:
        provider: the provider.
        provider_options: options of the provider itself; they win over ours.
        threads: threads inside one operator.
        tf32: False makes CUDA compute float32 products in full precision, whatever the options.
    """
    links = []
    for item in (provider, *traits_of(provider).fallbacks):
        traits = traits_of(item)
        options = dict(traits.options)
        if traits.threads:
            options[traits.threads] = str(threads)
        if traits.folder:
            options[traits.folder] = _shared_folder().name
        if item is provider:
            options |= provider_options
        if not tf32:
            options |= traits.exact
        links.append((traits.name, options))
    return links


def usable_provider(provider: Provider) -> Provider:
    """Return the provider to use: AUTO is CUDA if a CUDA device really runs a node, else the CPU.

    Raises:
        UnverifiedError: the named provider cannot be used; the message names the missing parts.
    """
    if provider is Provider.AUTO:
        cuda = obstacle(Provider.CUDA)
        return Provider.CUDA if cuda is None else Provider.CPU
    reason = obstacle(provider)
    if reason is not None:
        raise UnverifiedError(f"provider {provider} cannot be used: {reason}")
    return provider


def check_options(provider: Provider, provider_options: Mapping[str, str]) -> None:
    """Check that a usable provider accepts these options.

    Raises:
        UsageError: it does not know one of them, cannot use its value, or takes no options.
    """
    text = printable(", ".join(f"{name}={value}" for name, value in provider_options.items()))
    if provider_options and not traits_of(provider).takes_options:
        # The runtime silently ignores them, and a report would name options without effect.
        raise UsageError(f"provider {provider} takes no options: {text}")
    for name in traits_of(provider).captures & provider_options.keys():
        if provider_options[name].lower() not in OFF:
            raise UsageError(f"{name} repeats a run on its old inputs; it cannot be verified")
    reason = obstacle(provider, tuple(provider_options.items()))
    if reason is not None:
        raise UsageError(f"provider {provider} does not run with {text}: {reason}")


@cache
def obstacle(provider: Provider, provider_options: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Return why a provider cannot run a node here with the chosen options, None if it can.

    The list of available providers only says what the runtime was built with, and a session
    silently falls back to the CPU; so one node is run with that fallback forbidden.
    """
    if provider is Provider.CPU:
        return None
    runtime, traits = library.runtime(), traits_of(provider)
    available = runtime.get_available_providers()
    if traits.name not in available:
        hint = (
            f"pip install '{traits.install}'"
            if traits.install
            else f"it has {', '.join(available)}"
        )
        return f"this ONNX Runtime has no {traits.name}; {hint}"
    if traits.device == "nvidia":
        preload()
    options = library.quiet_options({"session.disable_cpu_ep_fallback": "1"})
    cpu = traits_of(Provider.CPU).name
    providers = [
        item for item in ranking(provider, dict(provider_options), 1, tf32=False) if item[0] != cpu
    ]
    try:
        session = library.new_session(one_node(), options, providers)
        session.run(None, {"x": np.ones((1, 1, 1, 1), np.float32)})
    except library.failures() as error:
        return missing_library(provider) or library.error_text(error)
    if session.get_providers()[0] != traits.name:
        return missing_library(provider) or "no usable device"
    return None


@cache
def _shared_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder in which sessions of this process share measured times of kernels.

    It is removed when the process ends; in a child, also with the temporary folder of the child.
    """
    # A provider may have files open until the process ends.
    return tempfile.TemporaryDirectory(prefix="widthfold-provider-", ignore_cleanup_errors=True)


def one_node() -> bytes:
    """Return a model of one Conv: a device that cannot run a Conv is of no use here."""
    conv = "<float[1, 1, 1, 1] w = {1}> { y = Conv(x, w) }"
    model = model_of(f"probe (float[1, 1, 1, 1] x) => (float[1, 1, 1, 1] y) {conv}")
    return bytes(model.SerializeToString())


def model_of(graph: str) -> onnx.ModelProto:
    """Return a model of one graph.

    >>> model_of("g (float[2] x) => (float[2] y) { y = Neg(x) }").graph.node[0].op_type
    'Neg'
    """
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')


FOLDER = "session.model_external_initializers_file_folder_path"
"""Where a model in memory has its external data (onnxruntime_session_options_config_keys.h)."""

PRECISION = "session.x64quantprecision"
"""At 1 the runtime multiplies signed weights as unsigned ones where only that is exact, from the
level EXTENDED on (the same header; `runtime.kernels`)."""

SIGNED = "session.qdqisint8allowed"
"""At 1 the runtime keeps signed quantized data signed, on x86 too."""

PARAMETERS = (
    "optimization.disable_specified_optimizers",
    "session.dynamic_block_base",
    "session.intra_op_thread_affinities",
)
"""Documented names whose values are not 0 or 1."""

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
"""Documented names whose values are 0 or 1. The runtime reports no other value; it takes it as one
of these."""

DOCUMENTED = (*PARAMETERS, *SWITCHES)
"""Names of entries that change what is computed or how long that takes (the same header)."""

NEAR = 0.93
"""A name at least this similar (`difflib`) to a documented one is a misspelling: the other names of
ONNX Runtime 1.32.0 are less similar."""

_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def entries(given_entries: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """Return all entries of a session: our defaults, overridden by the given ones.

    Args:
        given_entries: values by name.
        folder: where a model in memory has its external data; None: it has none.
    """
    # Idle threads sleep: a spinning pool makes times depend on the load.
    defaults = {"session.intra_op.allow_spinning": "0"}
    if folder is not None:
        defaults[FOLDER] = str(folder.absolute())
    return defaults | dict(given_entries)


def check_entries(given_entries: Mapping[str, str]) -> None:
    """Refuse entries that cannot have an effect, and values that the runtime rejects.

    Raises:
        UsageError: names the first such entry.
    """
    for name, value in given_entries.items():
        if mistake := _mistake(name):
            raise UsageError(f"session option {quoted(name)}{mistake}")
        if name in SWITCHES and value not in ("0", "1"):
            raise UsageError(f"session option {name} is 0 or 1, not {quoted(value)}")
        try:
            options = library.quiet_options({name: value})
            cpu = [traits_of(Provider.CPU).name]
            library.new_session(one_node(), options, cpu)
        except library.failures() as error:
            entry, text = quoted(f"{name}={value}"), library.error_text(error)
            raise UsageError(f"the runtime does not take {entry}: {text}") from error


def _mistake(name: str) -> str | None:
    """Return why an entry has no effect, as the end of a sentence; None if it may have one."""
    if name in DOCUMENTED:
        return None
    if near := get_close_matches(name.lower(), DOCUMENTED, 1, NEAR):
        return f": do you mean {near[0]}?"
    setting = getattr(library.runtime().SessionOptions, name.removeprefix("session."), None)
    if name == FOLDER or isinstance(setting, property):
        return " has no effect: widthfold sets that itself, in another way"
    return None if _NAME.fullmatch(name) else f" is no name like {PRECISION}"
