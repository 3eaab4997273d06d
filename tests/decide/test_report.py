"""The lines of the report."""

from __future__ import annotations

import dataclasses

from tests.decide.net import NET, OPTIONS
from tests.small_models import build
from widthfold_onnx.decide.fixed import decide_fixed


def test_a_layer_that_stays_has_no_form() -> None:
    options = dataclasses.replace(OPTIONS, skip=("b",))
    site, _ = decide_fixed(build(NET), None, options).outcomes.sites
    assert (site.node, site.graph, site.status) == ("b", "", "kept")
    assert (site.axis, site.factor, site.form, site.gain) == (None, None, None, None)
