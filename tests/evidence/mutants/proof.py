"""What the exact proof says of a pair of models."""

from __future__ import annotations

from pathlib import Path

import onnx

from widthfold_onnx import InvalidModelError, Provider, VerifyOptions
from widthfold_onnx.evidence.exact import probe_sites


def difference(before: onnx.ModelProto, after: onnx.ModelProto, folder: Path) -> str:
    """What the proof and the probe say, "" if both hold."""
    paths = folder / "before.onnx", folder / "after.onnx"
    for path, model in zip(paths, (before, after), strict=True):
        path.unlink(missing_ok=True)  # a new file is written faster than an old one is replaced
        path.write_bytes(model.SerializeToString())
    try:
        sites, limits = probe_sites(*paths, VerifyOptions(provider=Provider.CPU), lambda line: None)
    except InvalidModelError as error:
        return str(error)
    assert all(site.verdict in ("exact", "different") for site in sites)
    wrong = [site.reason for site in sites if site.verdict == "different"]
    assert wrong or not limits
    return "; ".join(wrong)
