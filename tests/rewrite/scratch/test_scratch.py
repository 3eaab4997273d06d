"""Models that are run and removed share one copy of the weights that no fold changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from tests.small_models import build
from widthfold_onnx.decide.fixed import decide_fixed
from widthfold_onnx.errors import InternalError, UsageError
from widthfold_onnx.model.loader import LoadedModel, load
from widthfold_onnx.options import FoldOptions, RuntimeOptions
from widthfold_onnx.rewrite.rewriting import Rewriting, rewrite
from widthfold_onnx.rewrite.scratch import Scratch
from widthfold_onnx.runtime.session import open_session

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3,6,8] x) => (float[2,3,6,8] y)
<float[5,3,3,3] w1, float[3,5,1,1] w2, float[2,3,6,8] large>
{
    [layer] a = Conv <pads = [1,1,1,1]> (x, w1)
    [other] b = Conv (a, w2)
    y = Add (b, large)
}"""
LOCATION = "below/the folded model.data"


def original(folder: Path, location: str = LOCATION) -> LoadedModel:
    """The model, whose weights lie in one file."""
    proto = build(TEXT, seed=3)
    for tensor in proto.graph.initializer:
        tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
        tensor.ClearField("float_data")
    convert_model_to_external_data(proto, location=location, size_threshold=0)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(proto, folder / "model.onnx")
    return load(folder / "model.onnx")


def rewriting(loaded: LoadedModel, *nodes: str) -> Rewriting:
    reading, draft, _ = decide_fixed(loaded, FoldOptions(factor=2, nodes=nodes))
    return rewrite(reading, draft.forms)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "scratch").mkdir()
    return Scratch(original(tmp_path), tmp_path / "scratch")


def data_of(model: Path) -> dict[str, Path]:
    tensors = onnx.load(model, load_external_data=False).graph.initializer
    entries = {t.name: {e.key: e.value for e in t.external_data} for t in tensors}
    return {name: model.parent / entry["location"] for name, entry in entries.items() if entry}


def test_what_stays_as_it_is_is_copied_once_for_all_models(scratch: Scratch) -> None:
    copies = set()
    for nodes in (("layer",), ("other",), ("layer", "other")):
        with scratch.models([rewriting(scratch.original, *nodes)]) as (file,):
            data = data_of(file)
            copies.add((data["large"], data["large"].stat().st_ino, data["large"].stat().st_size))
            new = sum(path.stat().st_size for path in {*data.values()} - {data["large"]})
            assert 0 < new < 8192, "the new weights, and gaps up to where a tensor starts"
            assert all(path.stat().st_nlink == 1 for path in data.values())
    assert len(copies) == 1
    left = [path for path in scratch.folder.rglob("*") if path.is_file()]
    assert left == [scratch.folder / LOCATION]
    load(scratch.original.path)  # a second link to the data of the original would be refused


def test_the_models_run_and_are_those_that_are_delivered(scratch: Scratch, tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(5).standard_normal((2, 3, 6, 8), np.float32)}
    loaded = scratch.original
    for nodes in (("layer",), ("layer", "other")):
        out = tmp_path / "out.onnx"
        with rewriting(loaded, *nodes).written(out) as written:
            written.publish()
        with scratch.models([rewriting(loaded, *nodes)]) as (file,):
            results = [
                open_session(path, RuntimeOptions(provider="cpu")).run(feeds)["y"]
                for path in (out, file)
            ]
            assert load(file).proto.graph.node == load(out).proto.graph.node
        assert results[0].tobytes() == results[1].tobytes()


def test_models_that_are_there_together_have_names_of_their_own(scratch: Scratch) -> None:
    rewritings = [rewriting(scratch.original, name) for name in ("layer", "other")]
    with scratch.models(rewritings) as files:
        assert [file.name for file in files] == ["the folded model", "the folded model 2"]
        with scratch.models([rewriting(scratch.original)]) as (third,):
            assert third.name == "the folded model 3"
    assert not any(file.exists() for file in (*files, third))


def test_data_of_the_original_may_have_the_name_of_a_model(tmp_path: Path) -> None:
    loaded = original(tmp_path, "the folded model")
    (tmp_path / "scratch").mkdir()
    before = (tmp_path / "the folded model").read_bytes()
    with Scratch(loaded, tmp_path / "scratch").models([rewriting(loaded)]) as (file,):
        assert file.name == "the folded model 2"
        assert data_of(file)["large"].read_bytes() == before
    assert (tmp_path / "scratch" / "the folded model").read_bytes() == before


def test_a_model_that_cannot_be_made_leaves_no_other_one(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = rewriting(scratch.original)
    broken.document.external_names.add("nothing")
    with (
        pytest.raises(InternalError, match="nothing"),
        scratch.models([rewriting(scratch.original), broken]),
    ):
        pass
    assert [path for path in scratch.folder.iterdir() if path.is_file()] == []


def test_a_folder_that_takes_no_file_is_an_error_of_the_user(scratch: Scratch) -> None:
    with scratch.models([rewriting(scratch.original)]):
        pass  # the data lie there
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with (
            pytest.raises(UsageError, match=r"cannot write .*the folded model"),
            scratch.models([rewriting(scratch.original)]),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert [path for path in scratch.folder.iterdir() if path.is_file()] == []
