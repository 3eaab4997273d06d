"""A weight that several nodes read is folded once per fold."""

from __future__ import annotations

import pytest

from tests.folding import fold_model
from tests.rewrite.guards.guarded import parsed
from tests.rewrite.proved import assert_proved
from widthfold_onnx.options import FoldOptions


@pytest.mark.parametrize(("samples", "count"), [(4, 1), (3, 2)])
def test_only_nodes_that_are_folded_alike_share_a_weight(samples: int, count: int) -> None:
    """Of 4 samples the batch is folded; of 3 it cannot be, so the rows are."""
    model = parsed(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[4, 2, 8, 5] a, float[{samples}, 2, 8, 5] b)
          => (float[4, 3, 8, 5] y, float[{samples}, 3, 8, 5] z) {{
          y = Conv (a, w) z = Conv (b, w) }}""",
        w=(3, 2, 1, 1),
    )
    folded, sites = fold_model(model, FoldOptions(factor=4))
    assert [site.axis for site in sites] == ["batch", "batch" if count == 1 else "height"]
    weights = [t for t in folded.graph.initializer if len(t.dims) == 4]
    assert len(weights) == count
    assert_proved(model, folded, 2)
