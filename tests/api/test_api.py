"""Each call takes a model in any form, returns it in that form, and names each mistake."""

from __future__ import annotations

import inspect as python_inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import onnx
import onnx_graphsurgeon as gs  # noqa: TID251 - made here, handed to the package
import onnx_ir as ir  # noqa: TID251 - made here, too
import pytest

import widthfold_onnx as wf
from tests.reports.sample import passing
from tests.running import LEVELS, opened
from tests.shared import ROOT
from widthfold_onnx import CheckFailedError, UnverifiedError, UsageError, api, keywords
from widthfold_onnx.cli import main
from widthfold_onnx.errors import WidthfoldError
from widthfold_onnx.evidence import delivery
from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.options import Provider, VerifyOptions
from widthfold_onnx.progress import Step
from widthfold_onnx.results import VerifyReport

MODELS = ROOT / "models"
MODEL = MODELS / "paper_conv.onnx"
CHAIN = MODELS / "chain.onnx"


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = opened(proto, LEVELS[1])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def check(folded: onnx.ModelProto) -> None:
    original = onnx.load(MODEL)
    x = np.random.default_rng(0).standard_normal((1, 1, 32, 64)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x), run(original, x), rtol=0, atol=1e-6)
    assert len(original.graph.node) < len(folded.graph.node)


def as_message(model: Any) -> onnx.ModelProto:
    if isinstance(model, Path):
        return onnx.load(model)
    if isinstance(model, ir.Model):
        return ir.to_proto(model)
    return gs.export_onnx(model) if isinstance(model, gs.Graph) else model


KINDS: dict[str, tuple[Callable[[], Any], type]] = {
    "path": (lambda: MODEL, onnx.ModelProto),
    "text": (lambda: str(MODEL), onnx.ModelProto),
    "message": (lambda: onnx.load(MODEL), onnx.ModelProto),
    "onnx_ir": (lambda: ir.load(MODEL), ir.Model),
    "graphsurgeon": (lambda: gs.import_onnx(onnx.load(MODEL)), gs.Graph),
}


def test_dir_shows_the_api_and_nothing_else() -> None:
    code = "import widthfold_onnx as wf; wf.fold; print(*dir(wf))"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert names == sorted(wf.__all__)
    assert {"optimize", "fold", "apply", "plan", "verify", "inspect", "tune"} < set(names)


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_takes_a_model_of_each_kind_and_gives_it_back(kind: str) -> None:
    make, returned = KINDS[kind]
    model = make()
    plan = wf.plan(model, factor=8)
    for folded in (wf.fold(model), wf.apply(model, plan), wf.optimize(model, factor=8).model):
        assert isinstance(folded, returned)
        check(as_message(folded))
    assert [layer.op for layer in wf.inspect(model).sites] == ["Conv"]
    assert wf.verify(model, wf.fold(model), no_timing=True, seeds=1).verdict == "pass"


@pytest.mark.parametrize("kind", ["message", "onnx_ir", "graphsurgeon"])
def test_a_model_in_which_nothing_changes_is_given_back_itself(kind: str) -> None:
    model = KINDS[kind][0]()
    assert wf.fold(model, skip=["*"]) is model
    assert wf.apply(model, wf.plan(model, factor=8, skip=["*"])) is model


def test_a_fold_can_be_required_of_a_model_in_memory() -> None:
    model = onnx.load(MODEL)
    assert wf.optimize(model, factor=8, require_fold=True).model is not None
    assert wf.optimize(model, factor=8, skip=["*"], require_fold=True).model is None
    assert wf.optimize(model, factor=8, skip=["*"]).model is model


def test_forms_are_measured_for_a_model_in_memory_too() -> None:
    make, returned = KINDS["onnx_ir"]
    result = wf.optimize(make(), effort="quick", time_budget=1.0)
    assert isinstance(result.model, returned)
    assert result.report.search is not None
    assert result.report.written is not None
    assert len(result.plan.layers) == result.report.summary.folded


def test_a_path_with_out_becomes_that_file(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert wf.fold(str(MODEL), out, factor=4) == out
    check(onnx.load(out))
    result = wf.optimize(MODEL, out, factor=4, time_budget=None)
    assert (result.model, result.report.verification.verdict) == (out, "pass")
    assert wf.apply(MODEL, result.plan, out) == out


def test_a_result_replaces_no_stored_inputs(tmp_path: Path) -> None:
    stored = tmp_path / "in.npz"
    stored.write_bytes(b"numbers")
    plan = wf.plan(MODEL, factor=4)
    for call in (
        lambda: wf.optimize(MODEL, stored, factor=4, inputs=[stored]),
        lambda: wf.apply(MODEL, plan, stored, inputs=[stored], no_verify=True),
    ):
        with pytest.raises(wf.UsageError, match="is an input or another output"):
            call()
    assert stored.read_bytes() == b"numbers"


def test_all_options_of_a_fold_count() -> None:
    """The factor was dropped where other options were given."""
    result = wf.optimize(onnx.load(CHAIN), factor=4, skip=["third*"], axis="width")
    assert {site.factor for site in result.report.sites if site.status == "folded"} == {4}
    assert {layer.form.factor for layer in result.plan.layers} == {4}
    strides = wf.plan(MODELS / "pitch_cnn.onnx", form="strides")
    assert [layer.form.kind for layer in strides.layers] == ["space-to-depth"]


def test_the_provider_of_the_measurement_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It verified on the provider AUTO, whatever had measured."""
    seen: list[VerifyOptions] = []
    verify = delivery.verify

    def spy(first: LoadedModel, second: LoadedModel, options: VerifyOptions) -> VerifyReport:
        seen.append(options)
        return verify(first, second, options)

    monkeypatch.setattr(delivery, "verify", spy)
    session = {"session.intra_op.allow_spinning": "0"}
    wf.optimize(
        MODEL, tmp_path / "o.onnx", factor=8, provider="cpu", session_option=session, seeds=2
    )
    assert [(o.provider, o.session_options, o.seeds) for o in seen] == [(Provider.CPU, session, 2)]


def test_weights_that_are_frozen() -> None:
    model = onnx.load(MODEL)
    for tensor in model.graph.initializer:
        kind = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(kind)
    assert wf.fold(model) is model
    folded = wf.fold(model, freeze_weights=True)
    assert [value.name for value in folded.graph.input] == [model.graph.input[0].name]
    check(folded)


def test_a_file_that_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = delivery.verify

    def failing(*arguments: object, **named: object) -> VerifyReport:
        report = verify(*arguments, **named)
        verdict = {"verdict": "fail", "reasons": ["it differs"]}
        return msgspec.structs.replace(report, **verdict)

    monkeypatch.setattr(delivery, "verify", failing)
    out = tmp_path / "out.onnx"
    with pytest.raises(CheckFailedError, match="it differs"):
        wf.fold(MODEL, out)
    with pytest.raises(CheckFailedError, match="it differs"):
        wf.apply(MODEL, wf.plan(MODEL, factor=8), out)
    result = wf.optimize(MODEL, out, factor=8)
    assert result.model is result.report.written is None
    assert not list(tmp_path.iterdir())


def test_a_graph_of_graphsurgeon_folds_again_as_that_library_drops_the_metadata() -> None:
    once = wf.fold(gs.import_onnx(onnx.load(MODEL)), factor=2)
    twice = wf.fold(once, factor=2)
    assert twice is not once
    check(gs.export_onnx(twice))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wf.optimize(MODEL, facter=8), TypeError, "'facter'; did you mean 'factor'"),
        (lambda: wf.fold(MODEL, effort="quick"), TypeError, r"fold\(\) got .* 'effort'"),
        (lambda: wf.verify(MODEL, MODEL, timing=False), TypeError, "did you mean 'no_timing'"),
        (lambda: wf.inspect(MODEL, provider="cpu"), TypeError, "'provider'"),
        (lambda: wf.apply(MODEL, wf.Plan(), factor=8), TypeError, "'factor'"),
        (lambda: wf.plan(MODEL, factor=8, rtol=1.0), TypeError, "'rtol'"),
        (lambda: wf.tune([MODEL], seeds=3), TypeError, "'seeds'"),
        (lambda: wf.fold(MODEL, factor=1), UsageError, "factor is 1"),
        (lambda: wf.fold(MODEL, factor="many"), UsageError, "factor is 'many'"),
        (lambda: wf.fold(MODEL, skip="head"), UsageError, "skip takes a tuple of words"),
        (lambda: wf.fold(MODEL, form="strides", factor=8), UsageError, "give no factor"),
        (lambda: wf.optimize(MODEL, effort="slow"), UsageError, "effort is 'slow'"),
        (lambda: wf.optimize(MODEL, factor=8, rtol=1.0), UsageError, "rtol compares"),
        (lambda: wf.plan(MODEL, threads="4"), UsageError, "threads is '4': expected `int`"),
        (lambda: wf.plan(MODEL, max_channels="a"), UsageError, "max_channels is 'a'"),
        (lambda: wf.fold(MODEL, ragged="yes"), UsageError, "ragged is 'yes': expected `bool`"),
        (lambda: wf.fold(MODEL, max_flops_growth="x"), UsageError, "max_flops_growth is 'x'"),
        (lambda: wf.fold(MODEL, nodes=3), UsageError, "nodes is 3, no sequence"),
        (lambda: wf.fold(MODEL, input_shape={"x": 3}), UsageError, "input_shape is {'x': 3}"),
        (lambda: wf.plan(MODEL, provider_option="a=b"), UsageError, "provider_option is 'a=b'"),
        (lambda: wf.plan(MODEL, inputs=3), UsageError, "inputs is 3, no sequence"),
        (lambda: wf.verify(MODEL, MODEL, no_timing=1), UsageError, "no_timing is 1"),
        (lambda: wf.verify(MODEL, MODEL, rtol="x"), UsageError, "rtol is 'x'"),
        (lambda: wf.inspect(MODEL, factor="auto"), UsageError, "give a number"),
        (lambda: wf.fold(onnx.load(MODEL), "x.onnx"), UsageError, "out is for a model .* path"),
        (lambda: wf.fold(b"model"), UsageError, "not bytes"),
        (lambda: wf.fold("missing.onnx"), UsageError, "missing.onnx: No such file"),
        (lambda: wf.apply(MODEL, "missing.json"), UsageError, "missing.json: No such file"),
        (lambda: wf.fold(MODEL, ragged="yes"), UsageError, "ragged is 'yes': .*`bool`"),
        (lambda: wf.fold(MODEL, companion=5), UsageError, "companion is 5, no sequence"),
        (lambda: wf.fold(MODEL, input_shape="x:1"), UsageError, "input_shape is 'x:1'"),
        (lambda: wf.fold(MODEL, max_channels="8"), UsageError, "max_channels is '8'"),
        (lambda: wf.plan(MODEL, threads=1.5), UsageError, "threads is 1.5: .*`int`"),
        (lambda: wf.plan(MODEL, store=5), UsageError, "store is 5, no path"),
        (lambda: wf.plan(MODEL, inputs=5), UsageError, "inputs is 5, no sequence"),
        (lambda: wf.plan(MODEL, session_option="x"), UsageError, "session_option is 'x'"),
        (lambda: wf.verify(MODEL, MODEL, rtol={5: 1.0}), UsageError, "rtol is {5: 1.0}: "),
        (lambda: wf.verify(MODEL, MODEL, no_timing="no"), UsageError, "no_timing is 'no'"),
        (lambda: wf.tune(str(MODEL)), UsageError, "a sequence of paths"),
    ],
)
def test_what_is_wrong_is_named(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_store_is_a_path_of_either_kind(tmp_path: Path) -> None:
    for store in (tmp_path / "a.db", str(tmp_path / "b.db")):
        wf.plan(MODEL, store=store, no_measure=True)
        assert Path(store).exists()


def test_the_plan_is_not_overwritten_by_its_result(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    wf.plan(MODEL, factor=8).save(file)
    content = file.read_bytes()
    with pytest.raises(UsageError, match="is an input"):
        wf.apply(MODEL, file, file)
    assert file.read_bytes() == content


def test_a_plan_is_applied_where_the_data_of_the_model_lie(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    saved = {"save_as_external_data": True, "size_threshold": 0, "location": "m.data"}
    onnx.save(onnx.load(MODEL), path, **saved)
    plan = wf.plan(path, factor=8)
    check(wf.apply(path, plan))
    model = ir.load(path)
    folded = wf.apply(model, plan)
    check(ir.to_proto(ir.external_data.load_to_model(folded)))


@pytest.mark.parametrize("kind", [Path, str])
def test_a_plan_is_the_path_of_its_file_of_either_kind(kind: type, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "out.onnx"
    wf.plan(MODEL, factor=8).save(file)
    check(wf.apply(MODEL, kind(file)))
    assert wf.apply(MODEL, kind(file), kind(out)) == out
    check(onnx.load(out))


CALLS_IN_STEPS = {
    "planning": lambda out, say: wf.plan(MODEL, factor=8, on_progress=say),
    "writing": lambda out, say: wf.optimize(MODEL, out, factor=8, no_verify=True, on_progress=say),
    "proof by evaluation": lambda out, say: wf.verify(
        MODEL, MODEL, no_timing=True, truth_work=0.0, seeds=1, on_progress=say
    ),
    "reading out.onnx": lambda out, say: wf.tune(
        [out], store=out.with_suffix(".db"), on_progress=say
    ),
}
"""Calls by one of their steps."""


@pytest.mark.parametrize("step", CALLS_IN_STEPS)
def test_every_step_is_told(step: str, tmp_path: Path) -> None:
    texts: list[str] = []
    CALLS_IN_STEPS[step](tmp_path / "out.onnx", lambda item: texts.append(item.text))
    assert step in texts


@pytest.mark.parametrize(
    "text",
    ["planning", "writing", pytest.param("proof by evaluation", marks=pytest.mark.processes)],
)
def test_an_error_of_the_caller_ends_the_call_and_leaves_no_file(text: str, tmp_path: Path) -> None:
    class Cancelled(Exception):  # noqa: N818 - a name of the caller
        pass

    def say(step: Step) -> None:
        if step.text == text:
            raise Cancelled

    with pytest.raises(Cancelled):
        wf.optimize(MODEL, tmp_path / "out.onnx", factor=8, seeds=1, on_progress=say)
    assert not list(tmp_path.iterdir())


@pytest.mark.processes  # each has its own pair there, as in use
def test_two_calls_at_a_time_tell_their_own_steps(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)

    def steps_of(name: str) -> list[str]:
        texts: list[str] = []

        def say(step: Step) -> None:
            texts.append(step.text.replace(name, "out.onnx"))
            meeting.wait(20)

        wf.optimize(MODEL, tmp_path / name, factor=8, seeds=1, on_progress=say)
        return texts

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(steps_of, ("a.onnx", "b.onnx"))
    assert first == second
    assert {"planning", "writing", "out.onnx, level all: seed 0, normal"} < set(first)


ELSEWHERE = {"check", "report", "format", "debug", "help", "save_plan", "details", "partial"}
"""Options of commands that are about the terminal or files, or are parameters of a call."""


@pytest.mark.parametrize("name", ["optimize", "verify", "inspect", "apply", "tune"])
def test_keywords_are_the_options_of_the_command(name: str) -> None:
    command = main.commands[name]
    options = {
        max(parameter.opts, key=len).removeprefix("--").replace("-", "_")
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }
    call = getattr(wf, name)
    types = {
        "inspect": keywords.InspectKeywords,
        "optimize": keywords.OptimizeKeywords,
        "verify": keywords.VerifyKeywords,
        "apply": keywords.CheckKeywords,
        "tune": keywords.TuneKeywords,
    }
    parameters = set(python_inspect.signature(call).parameters)
    names = set(types[name].__annotations__) | parameters
    assert options - names <= ELSEWHERE
    models = {"model", "models", "original", "rewritten", "plan", "out"}
    assert names - options - models == {"keywords", "on_progress"} & parameters


def test_no_name_of_the_api_is_hidden_by_a_module() -> None:
    code = (
        "import pkgutil, importlib, widthfold_onnx as wf\n"
        "for module in pkgutil.iter_modules(wf.__path__):\n"
        "    if module.name not in ('olive', 'mlir'):\n"
        "        importlib.import_module(f'widthfold_onnx.{module.name}')\n"
        "assert all(callable(getattr(wf, name)) for name in wf.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("verdict", "reasons", "error"),
    [
        ("fail", ["y differs", "so does z"], CheckFailedError("y differs; so does z")),
        ("unverified", ["no kernel"], UnverifiedError("no kernel")),
        ("unverified", [], UnverifiedError("no reason given")),
    ],
)
def test_a_verdict_has_an_error_with_its_reasons(
    verdict: str, reasons: list[str], error: WidthfoldError
) -> None:
    report = msgspec.structs.replace(passing(), verdict=verdict, reasons=reasons)
    assert (type(report.error), str(report.error)) == (type(error), str(error))


def test_a_pass_has_no_error() -> None:
    assert passing().error is None


def test_a_model_that_has_a_file_needs_no_temporary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.tempfile, "TemporaryDirectory", None)
    assert wf.inspect(MODEL).sites
    assert wf.plan(MODEL, factor=8).layers
    assert wf.fold(MODEL) is not None
