"""Ask ONNX Runtime which operators of the default domain it has beside those of onnx.

Models of Windows ML (ImageScaler, Crop, Affine) and models that the runtime saved
(SimplifiedLayerNormalization) hold such operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache


def may_be_run(op_type: str, opset: int) -> bool:
    """Check whether the runtime has an operator at a version of the default operator set.

    True for any operator where the runtime is not installed.
    """
    versions = _versions()
    if versions is None:
        return True
    suitable = [entry for entry in versions.get(op_type, ()) if entry[0] <= opset]
    return bool(suitable) and not max(suitable)[1]


@cache
def _versions() -> Mapping[str, Sequence[tuple[int, bool]]] | None:
    """Return each definition of an operator: since which operator set, and whether deprecated.

    None if there is no runtime that could tell.
    """
    try:
        from onnxruntime.capi import (  # noqa: TID251 - `runtime.library` lies above this part
            onnxruntime_pybind11_state as binding,
        )
    except ImportError:
        return None
    versions: dict[str, list[tuple[int, bool]]] = {}
    for schema in binding.get_all_operator_schema():
        if not schema.domain:
            entry = schema.since_version, schema.deprecated
            versions.setdefault(schema.name, []).append(entry)
    return versions
