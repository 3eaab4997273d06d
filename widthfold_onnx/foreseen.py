"""Which forms `auto` need not look for, as this CPU's kernels of 8 bits saturate there.

A fold adds up other pairs of products than the original (`evidence.eight_bits`). Which pairs meet
depends on axis and layout, not on the factor, so that one fold by 2 shows it before minutes are
spent on measuring.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from widthfold_onnx.errors import CheckFailedError
from widthfold_onnx.evidence.files import saturating_files
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.writer import write_model
from widthfold_onnx.options import AxisName, FoldOptions, Layout, VerifyOptions
from widthfold_onnx.planning import fold_model


def usable_forms(
    loaded: LoadedModel, options: FoldOptions, verify_options: VerifyOptions
) -> FoldOptions:
    """The options without axes and layouts whose folds saturate further than the original.

    Args:
        loaded: the model, on which kernels of this CPU saturate.
        options: which forms may be looked for.
        verify_options: how the result will be verified.

    Raises:
        CheckFailedError: no fold passes; says how far one of them and the original are off.
    """
    forms: list[FoldOptions] = []
    with tempfile.TemporaryDirectory(prefix="widthfold-") as folder:
        files: list[Path] = []
        for form in _forms(options):
            proto, sites = fold_model(loaded.proto, replace(form, factor=2), loaded.folder)
            if any(site.status == "folded" for site in sites):
                forms.append(form)
                files.append(Path(folder) / f"{len(files)}.onnx")
                write_model(proto, files[-1], source_folder=loaded.folder, check=lambda path: None)
        found = saturating_files(loaded.path, files, verify_options) if files else []
    bad = [form for form, why in zip(forms, found, strict=True) if why]
    good = [form for form in forms if form not in bad]
    if not bad:
        return options
    if not good:
        raise CheckFailedError(f"OUT is not written, no form passes: {'; '.join(found[0])}")
    whole = {form.layout for form in good} - {form.layout for form in bad}
    return replace(options, layout=min(whole)) if whole else good[0]


def _forms(options: FoldOptions) -> Iterator[FoldOptions]:
    axes = set(AxisName) - {AxisName.AUTO} if options.axis is AxisName.AUTO else {options.axis}
    any_layout = options.layout is Layout.AUTO
    layouts = (Layout.NCHW, Layout.NHWC) if any_layout else (options.layout,)
    for layout, axis in product(layouts, sorted(axes, key=str)):
        yield replace(options, axis=axis, layout=layout)
