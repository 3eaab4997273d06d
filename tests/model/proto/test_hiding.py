"""Bodies that declare names of an outer graph: other names, the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.cli.tool import widthfold
from tests.model.checked import accepts, refuses
from tests.running import run
from tests.small_models import save
from widthfold_onnx.model.check import checked
from widthfold_onnx.model.linking import linked, names_of, scopes_of
from widthfold_onnx.model.proto.hiding import with_own_names
from widthfold_onnx.model.proto.walk import all_graphs

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'

INITIALIZER = f"""{HEAD}
g (float[1, 4] x, bool c) => (float[1, 4] y) <float[1, 4] k = {{1.0, 2.0, 3.0, 4.0}}> {{
    a = Add (x, k)
    b = If (c) <
        then_branch = t () => (float[1, 4] o) <float[1, 4] k = {{10.0, 20.0, 30.0, 40.0}}> {{
            m = Mul (a, k)
            o = If (c) <
                then_branch = tt () => (float[1, 4] p) {{ p = Sub (m, a) }},
                else_branch = te () => (float[1, 4] q) <float[1, 4] k = {{7.0, 8.0, 9.0, 6.0}}> {{
                    q = Add (m, k)
                }}
            >
        }},
        else_branch = e () => (float[1, 4] r) <float[1, 4] k = {{5.0, 1.0, 2.0, 3.0}}> {{
            s = If (c) <
                then_branch = et () => (float[1, 4] u) {{ u = Sub (k, a) }},
                else_branch = ee () => (float[1, 4] v) {{ v = Mul (k, a) }}
            >
            r = Mul (s, k)
        }}
    >
    y = Add (b, k)
}}"""

LOOP = f"""{HEAD}
g (float[1, 4] x, bool c) => (float[1, 4] y) <int64 n = {{3}}> {{
    a = Neg (x)
    y = Loop (n, c, a) <body = b (int64 i, bool c, float[1, 4] x) => (bool more, float[1, 4] o) {{
        more = Identity (c)
        o = Add (x, a)
    }}>
}}"""

FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
g (float[1, 4] x, bool c) => (float[1, 4] y) { y = l.f (x, c) }
<opset_import: ["" : 17], domain: "l">
f (u, c) => (v) {
    w = Exp (u)
    v = If (c) <
        then_branch = t () => (float[1, 4] o) <float[1, 4] u = {3.0, 5.0, 7.0, 9.0}> {
            o = Add (w, u)
        },
        else_branch = e () => (float[1, 4] p) { p = Neg (w) }
    >
}"""


@pytest.mark.parametrize("text", [INITIALIZER, LOOP, FUNCTION])
def test_a_body_that_hides_a_name_gets_other_names_and_computes_the_same(text: str) -> None:
    proto = parser.parse_model(text)
    onnx.checker.check_model(proto, full_check=True)
    accepts(proto)
    renamed = checked(proto, None)
    assert renamed is not proto
    assert with_own_names(renamed) is renamed
    onnx.checker.check_model(renamed, full_check=True)
    assert (renamed.graph.input, renamed.graph.output) == (proto.graph.input, proto.graph.output)
    x = np.arange(-1, 3, dtype=np.float32).reshape(1, 4)
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        assert run(renamed, feeds)[0].tobytes() == run(proto, feeds)[0].tobytes()
    declared = [value.name for graph in all_graphs(renamed.graph) for value in graph.input]
    stored = [value.name for graph in all_graphs(renamed.graph) for value in graph.initializer]
    assert len({*declared, *stored}) == len(declared + stored)


def test_an_initializer_that_hides_what_another_branch_reads_is_refused() -> None:
    """The runtime takes the outer value in both branches, against the rule of scopes."""
    text = f"""{HEAD}
    g (float[1, 4] x, bool c) => (float[1, 4] y) <float[1, 4] k = {{1.0, 2.0, 3.0, 4.0}}> {{
        y = If (c) <
            then_branch = t () => (float[1, 4] o) <float[1, 4] k = {{5.0, 6.0, 7.0, 8.0}}> {{
                o = Mul (x, k)
            }},
            else_branch = e () => (float[1, 4] p) {{ p = Mul (x, k) }}
        >
    }}"""
    proto = parser.parse_model(text)
    refuses(proto, "hides the value 'k' of an outer graph, which another branch reads")
    feeds = {"x": np.ones((1, 4), np.float32), "c": np.array(True)}
    assert run(proto, feeds)[0].tolist() == [[1, 2, 3, 4]]
    equal = parser.parse_model(text.replace("5.0, 6.0, 7.0, 8.0", "1.0, 2.0, 3.0, 4.0"))
    accepts(equal)


def test_new_names_are_names_of_no_other_value() -> None:
    text = INITIALIZER.replace("a = Add (x, k)", "k_2 = Neg (x) a = Add (k_2, k)")
    proto = checked(parser.parse_model(text), None)
    stored = [t.name for graph in all_graphs(proto.graph) for t in graph.initializer]
    assert sorted(stored) == ["k", "k_3", "k_4", "k_5"]
    scopes = list(scopes_of(linked(proto), proto))
    assert names_of(scopes) >= {"k", "k_2", "k_3", "k_4"}


def test_annotations_and_declarations_follow_the_name() -> None:
    proto = parser.parse_model(INITIALIZER)
    body = proto.graph.node[1].attribute[0].g
    annotation = body.quantization_annotation.add(tensor_name="k")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="k")
    body.value_info.add(name="k")
    renamed = checked(proto, None).graph.node[1].attribute[0].g
    (annotation,) = renamed.quantization_annotation
    names = [annotation.tensor_name, annotation.quant_parameter_tensor_names[0].value]
    assert {*names, renamed.value_info[0].name, renamed.initializer[0].name} == {"k_2"}


def test_layers_in_and_around_such_a_body_are_folded_and_proved(tmp_path: Path) -> None:
    """Both branches and the main graph have a weight w of their own, of other extents."""
    text = f"""{HEAD}
    g (float[1, 3, 16, 12] x, bool c) => (float[1, 2, 16, 12] y) {{
        [outer] a = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = If (c) <
            then_branch = t () => (float[1, 2, 16, 12] o) {{
                [inner] o = Conv <pads = [0, 1, 0, 1]> (a, w)
            }},
            else_branch = e () => (float[1, 2, 16, 12] p) {{
                [other] p = Conv <pads = [1, 0, 1, 0]> (a, w)
            }}
        >
    }}"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    bodies = [attribute.g for attribute in proto.graph.node[1].attribute]
    shapes = ((2, 3, 3, 3), (2, 2, 1, 3), (2, 2, 3, 1))
    for graph, shape in zip((proto.graph, *bodies), shapes, strict=True):
        weight = rng.integers(-3, 4, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source, out = save(proto, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    done = widthfold("optimize", source, out, "--factor", 4, "--axis", "height", "--seeds", 1)
    assert done.code == 0, done.err
    assert "3 of 3 Conv nodes folded" in done.out
    assert "proof: equal" in done.out
    x = rng.integers(-3, 4, (1, 3, 16, 12)).astype(np.float32)
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        assert run(source, feeds)[0].tobytes() == run(out, feeds)[0].tobytes()
