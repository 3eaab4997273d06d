"""Both branches of a guard are run: what no proof read is seen by its outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from widthfold_onnx.evidence.guard_runs import has_guards, run_guards

from tests.evidence.mutants.guards import GUARD, body, constant, copied, inverted, swapped
from widthfold_onnx import Provider, VerifyOptions

OPTIONS = VerifyOptions(provider=Provider.CPU)
SHAPES = {
    "height": {"x": (1, 3, 8, 28)},
    "batch": {"x": (1, 3, 11, 13)},
    "chain": {"x": (2, 3, 7, 20)},
    "several": {"x": (2, 3, 7, 20), "z": (2, 3, 7, 20)},
    "both": {"x": (1, 3, 9, 28)},
}


def run(base: str, model: onnx.ModelProto, folder: Path) -> tuple[list[str], list[str]]:
    paths = folder / "before.onnx", folder / "after.onnx"
    for path, proto in zip(paths, (GUARD[base], model), strict=True):
        path.write_bytes(proto.SerializeToString())
    assert has_guards(paths[1])
    assert not has_guards(paths[0])
    return run_guards(*paths, OPTIONS, SHAPES[base], lambda line: None)


@pytest.mark.parametrize("base", SHAPES)
def test_right_guards_run_either_way(base: str, tmp_path: Path) -> None:
    assert run(base, copied(base), tmp_path) == ([], [])


@pytest.mark.parametrize("base", SHAPES)
@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_a_wrong_weight_in_either_branch_is_seen(base: str, branch: str, tmp_path: Path) -> None:
    model = copied(base)
    tensor = next(t for t in body(model, branch).initializer if t.data_type == 1)
    array = numpy_helper.to_array(tensor) * np.float32(1.01)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    failures, _ = run(base, model, tmp_path)
    assert failures


@pytest.mark.parametrize("fault", [inverted, swapped])
def test_an_inverted_choice_is_seen(fault, tmp_path: Path) -> None:
    for base in ("height", "chain"):
        model = copied(base)
        fault(model)
        failures, _ = run(base, model, tmp_path)
        assert failures, base


def test_sizes_at_which_the_folded_nodes_do_not_run_are_found(tmp_path: Path) -> None:
    model = copied("height")
    constant("guard_moduli", lambda a: 0 * a + 1)(model)
    (failure,), _ = run("height", model, tmp_path)
    assert failure.startswith("the original runs near its sizes, the rewritten model does not")


def test_a_branch_that_no_data_reaches_is_named(tmp_path: Path) -> None:
    model = copied("chain")
    constant("guard_bound", lambda a: 0 * a)(model)
    failures, limits = run("chain", model, tmp_path)
    assert failures == []
    assert limits == ["c/widthfold/guard: on no input set did the folded nodes compute"]
