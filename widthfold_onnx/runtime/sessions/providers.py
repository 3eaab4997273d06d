"""Find out which execution provider can be used here, by running one node on it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
from onnx import parser

from widthfold_onnx.errors import UnverifiedError, UsageError
from widthfold_onnx.options import Provider
from widthfold_onnx.runtime.sessions import library
from widthfold_onnx.runtime.sessions.descriptions import description_of
from widthfold_onnx.runtime.sessions.library import missing_library, preload
from widthfold_onnx.text import printable

OFF = ("0", "false")
"""Values of options that switch something off, in lower case."""


def ranking(
    provider: Provider, provider_options: Mapping[str, str], threads: int, *, tf32: bool
) -> list[tuple[str, dict[str, str]]]:
    """Return the provider and its fallbacks, the first choice first, with their options.

    Args:
        provider: the provider.
        provider_options: options of the provider itself; they win over ours.
        threads: threads inside one operator.
        tf32: False makes CUDA compute float32 products in full, even against a chosen option.
    """
    links = []
    for item in (provider, *description_of(provider).fallbacks):
        description = description_of(item)
        options = dict(description.options)
        if description.threads:
            options[description.threads] = str(threads)
        if description.folder:
            options[description.folder] = _shared_folder().name
        if item is provider:
            options |= provider_options
        if not tf32:
            options |= description.exact
        links.append((description.name, options))
    return links


def choose(provider: Provider) -> Provider:
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
    """Check that a usable provider also accepts these options.

    Raises:
        UsageError: it does not know one, or cannot use its value.
    """
    entries = printable(", ".join(f"{name}={value}" for name, value in provider_options.items()))
    if provider_options and not description_of(provider).takes_options:
        # The runtime silently ignores them, and a report would name options without effect.
        raise UsageError(f"provider {provider} takes no options: {entries}")
    for name in description_of(provider).captures & provider_options.keys():
        if provider_options[name].lower() not in OFF:
            raise UsageError(f"{name} repeats a run on its old inputs; it cannot be verified")
    reason = obstacle(provider, tuple(provider_options.items()))
    if reason is not None:
        raise UsageError(f"provider {provider} does not run with {entries}: {reason}")


@cache
def obstacle(provider: Provider, provider_options: tuple[tuple[str, str], ...] = ()) -> str | None:
    """Return why a provider cannot run a node here with the chosen options, None if it can.

    The list of available providers only says what the runtime was built with, and a session
    silently falls back to the CPU; so one node is run with that fallback forbidden.
    """
    if provider is Provider.CPU:
        return None
    runtime, description = library.runtime(), description_of(provider)
    available = runtime.get_available_providers()
    if description.name not in available:
        hint = (
            f"pip install '{description.install}'"
            if description.install
            else f"it has {', '.join(available)}"
        )
        return f"this ONNX Runtime has no {description.name}; {hint}"
    if description.device == "nvidia":
        preload()
    options = library.quiet_options({"session.disable_cpu_ep_fallback": "1"})
    cpu = description_of(Provider.CPU).name
    providers = [
        item for item in ranking(provider, dict(provider_options), 1, tf32=False) if item[0] != cpu
    ]
    try:
        session = library.new_session(one_node(), options, providers)
        session.run(None, {"x": np.ones((1, 1, 1, 1), np.float32)})
    except library.failures() as error:
        return missing_library(provider) or library.words(error)
    if session.get_providers()[0] != description.name:
        return missing_library(provider) or "no usable device"
    return None


@cache
def _shared_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder in which sessions of this process share their measurements of kernels.

    It is removed with the process, or with the folder that `runtime.child` gives a child.
    """
    # A provider may have files open until the process ends.
    return tempfile.TemporaryDirectory(prefix="widthfold-provider-", ignore_cleanup_errors=True)


def one_node() -> bytes:
    """Return a model of one Conv, since a device that cannot run one is of no use here."""
    conv = "<float[1, 1, 1, 1] w = {1}> { y = Conv(x, w) }"
    model = model_of(f"probe (float[1, 1, 1, 1] x) => (float[1, 1, 1, 1] y) {conv}")
    return bytes(model.SerializeToString())


def model_of(graph: str) -> onnx.ModelProto:
    """Return a model of one graph.

    >>> model_of("g (float[2] x) => (float[2] y) { y = Neg(x) }").graph.node[0].op_type
    'Neg'
    """
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
