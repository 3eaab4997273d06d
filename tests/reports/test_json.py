from __future__ import annotations

import json
from inspect import cleandoc
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import widthfold_onnx
from tests.folding import optimize
from tests.shared import ROOT
from widthfold_onnx import UsageError
from widthfold_onnx.options import FoldOptions, VerifyOptions
from widthfold_onnx.pipeline import inspect, verify
from widthfold_onnx.reports.files import write_report
from widthfold_onnx.reports.json import SCHEMAS as NAMES
from widthfold_onnx.reports.json import encode, schema_of

MODELS = ROOT / "models"
SCHEMAS = Path(widthfold_onnx.__file__).parent / "schemas"


@pytest.mark.parametrize("verb", NAMES)
def test_the_shipped_schema_is_that_of_the_structs(verb: str) -> None:
    shipped = json.loads((SCHEMAS / f"{verb}.json").read_text())
    assert in_one_order(shipped) == in_one_order(schema_of(verb))


def in_one_order(schema: Any) -> Any:
    """Sort the alternatives of a schema, and take the indent from its texts.

    Releases of msgspec order alternatives differently. Python 3.13 dedents docstrings.
    """
    if isinstance(schema, str):
        return cleandoc(schema)
    if isinstance(schema, dict):
        return {key: in_one_order(part) for key, part in schema.items()}
    return sorted(map(in_one_order, schema), key=str) if isinstance(schema, list) else schema


def test_reports_validate_and_hold_the_promised_keys(tmp_path: Path) -> None:
    model, out = MODELS / "refusals.onnx", tmp_path / "out.onnx"
    options = FoldOptions(factor=8)
    results = {
        "optimize": optimize(model, out, options, VerifyOptions(timing=False)),
        "inspect": inspect(model, options),
        "verify": verify(model, out, VerifyOptions(time_budget=0.5)),
    }
    built = {verb: json.loads(encode(result)) for verb, result in results.items()}
    for verb, report in built.items():
        jsonschema.validate(report, schema_of(verb))
        assert report["schema"] == results[verb].schema
    assert built["optimize"].keys() >= {"schema", "model", "sites", "summary"}
    assert built["optimize"]["sites"][0].keys() >= {
        *("node", "op", "status", "axis", "factor", "form", "code", "reason", "flops_ratio")
    }
    assert built["verify"].keys() >= {"schema", "outputs", "proof", "folds", "timing", "verdict"}
    assert built["verify"]["outputs"][0].keys() >= {
        *("max_abs", "max_rel", "movement", "tolerance", "nonfinite_match", "passed")
    }
    assert str(tmp_path) not in json.dumps(built)


def test_names_of_a_hostile_model_are_escaped(tmp_path: Path) -> None:
    report = inspect(MODELS / "paper_conv.onnx", FoldOptions(factor=8))
    nasty = type(report)(**{**_fields(report), "model": "\x1b[2J\u202e\n</script>"})
    path = tmp_path / "report.json"
    write_report(encode(nasty).decode(), path, [])
    data = path.read_bytes()
    assert max(data) < 0x7F
    assert b"\x1b" not in data
    assert json.loads(data)["model"] == "\x1b[2J\u202e\n</script>"


def test_a_report_replaces_no_model(tmp_path: Path) -> None:
    report = inspect(MODELS / "paper_conv.onnx", FoldOptions(factor=8))
    model = tmp_path / "model.onnx"
    model.write_bytes(b"mine")
    with pytest.raises(UsageError):
        write_report(encode(report).decode(), model, [model])
    assert model.read_bytes() == b"mine"


def _fields(report: object) -> dict[str, object]:
    return {name: getattr(report, name) for name in report.__struct_fields__}
