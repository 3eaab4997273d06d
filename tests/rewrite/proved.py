"""What every fold of a random model must be: proved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from widthfold_onnx import Provider, VerifyOptions
from widthfold_onnx.evidence.exact import probe_sites
from widthfold_onnx.results import SiteReport


def assert_proved(
    model: onnx.ModelProto, folded: onnx.ModelProto, sites: Sequence[SiteReport]
) -> None:
    """Every folded site is exact, and none is left out."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.onnx", "b.onnx")]
        for path, item in zip(paths, (model, folded), strict=True):
            onnx.save(item, path)
        proved, limits = probe_sites(
            *paths, VerifyOptions(provider=Provider.CPU), lambda line: None
        )
    assert not limits
    assert [site.verdict for site in proved] == ["exact"] * len(proved), proved
    assert len(proved) == sum(site.status == "folded" for site in sites)
