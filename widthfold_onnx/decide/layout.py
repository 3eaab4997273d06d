"""Decide what `--layout auto` means at a fixed factor, where nothing is measured.

A runtime that computes channels-last puts Transposes around every Conv and cancels those of the
NHWC form. Around the Reshapes of the NCHW form it cannot cancel them, and they stay as copies. A
runtime that computes NCHW is the reverse. ONNX Runtime computes channels-last on CUDA with
`prefer_nhwc`, and on some providers in any case.
"""

from __future__ import annotations

from dataclasses import replace

from widthfold_onnx.options import FoldOptions, Layout, Provider, RuntimeOptions
from widthfold_onnx.runtime.sessions.descriptions import described
from widthfold_onnx.runtime.sessions.providers import OFF


def decide_layout(fold: FoldOptions, how: RuntimeOptions) -> FoldOptions:
    """Return the options with AUTO decided, unless forms are measured, where both layouts compete.

    Args:
        fold: the options.
        how: where the model will run; AUTO has the options of CUDA.

    >>> decide_layout(FoldOptions(factor=8), RuntimeOptions(provider=Provider.CUDA)).layout
    <Layout.NCHW: 'nchw'>
    >>> how = RuntimeOptions(provider=Provider.CUDA, provider_options={"prefer_nhwc": "1"})
    >>> decide_layout(FoldOptions(factor=8), how).layout
    <Layout.NHWC: 'nhwc'>
    """
    if fold.layout is not Layout.AUTO or fold.fixed is None:
        return fold
    known = described(Provider.CUDA if how.provider is Provider.AUTO else how.provider)
    last = how.provider_options.get(known.channels_last, "0").lower() not in OFF
    return replace(fold, layout=Layout.NHWC if last else known.layout)
