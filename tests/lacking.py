"""Features that older releases of onnx and ONNX Runtime lack, as reasons to skip tests there.

With the newest releases nothing is lacking, and no test is skipped for what a message says. Where
the text syntax of onnx lacks names, `[name] y = Op(x)`, and `Op(, x)`, `naming` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime as ort  # noqa: TID251 - the tests judge by the runtime itself
import pytest
from onnx import TensorProto, defs, parser

from widthfold_onnx.model.proto.tensors import has_arrays
from widthfold_onnx.model.proto.walk import model_nodes
from widthfold_onnx.runtime.kernels import prelu_keeps_inf
from widthfold_onnx.runtime.providers import PRECISION

NEWEST_OPSET = 25
"""Highest operator set of the tests."""

MESSAGES = {
    r"opset (\d+) of 'ai.onnx' is unknown": r"onnx has no operator set \1",
    r"No schema registered for '?(\w+)'?": r"onnx has no \1",
    r"No Op registered for (\w+) with domain_version of (\d+)": (
        r"ONNX Runtime has no \1 of operator set \2"
    ),
    r"Could not find an implementation for (\w+)\((\d+)\)": (
        r"ONNX Runtime has no kernel of these types for \1 of operator set \2"
    ),
    r"(?:has no arrays of |Unable to convert type dtype\('?)(\w+)": r"onnx has no arrays of \1",
    r"unknown element type (\d+)": r"onnx has no element type \1",
    r"(?:device_)?configurations?$": "onnx has no configurations of devices",
    r"PRelu of this ONNX Runtime returns NaN": "ONNX Runtime's PRelu of an Inf is NaN",
    r"float\(\) argument must be .* not 'complex'": "onnx makes no typed tensor of complex numbers",
    r"pads\.valid is does not run": "onnx's reference Conv takes no auto_pad VALID",
    r"cannot get file size: No such file": (
        "ONNX Runtime finds no external data of a model in memory"
    ),
    r"Opset (\d+) is under development": r"ONNX Runtime has no operator set \1",
    r"zero point of per-channel filter must be same|QLinearConv : zero point of p": (
        "ONNX Runtime's QLinearConv takes one zero point for all channels of a weight"
    ),
    r"Node \(MatMulBnFusion_Gemm\)": (
        "ONNX Runtime makes a Gemm of a MatMul of rank 3 and a BatchNormalization"
    ),
}
"""By pattern of a message, what is lacking."""


def model(graph: str, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> {graph}')


LINE = np.ones((1, 1, 4), np.float32)


def outputs(
    proto: onnx.ModelProto, config: Mapping[str, str] | None = None, **feeds: np.ndarray
) -> list[np.ndarray] | None:
    """The outputs of a model; None where the runtime does not run it."""
    options = ort.SessionOptions()
    for entry in (config or {}).items():
        options.add_session_config_entry(*entry)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)
    except Exception:  # its exceptions have no common base
        return None


def needs_arrays(*names: str) -> None:
    """Skip a test of element types that onnx reads as other ones."""
    for name in names:
        if not has_arrays(TensorProto.DataType.Value(name)):
            pytest.skip(f"onnx has no arrays of {name}")


def ends_windows_in_the_data() -> bool:
    """True if a pool that rounds up leaves out a window behind the data, as ONNX defines it."""
    pool = "MaxPool <kernel_shape = [1], strides = [2], ceil_mode = 1>"
    (y,) = outputs(model(f"g (float[1,1,4] x) => (float[1,1,n] y) {{ y = {pool} (x) }}"), x=LINE)
    return y.shape == (1, 1, 2)


needs_prelu = pytest.mark.skipif(
    not prelu_keeps_inf(), reason="ONNX Runtime's PRelu of an Inf is NaN"
)


def loads_signed_convs() -> bool:
    """True if a QLinearConv of signed data and large weights loads where none may saturate."""
    call = "QLinearConv (x, s, z, w, s, z, s, z)"
    constants = "float s = {1}, int8 z = {0}, int8[1,1,3] w = {127, 127, -128}"
    text = f"g (int8[1,1,4] x) => (int8[1,1,2] y) <{constants}> {{ y = {call} }}"
    return outputs(model(text), {PRECISION: "1"}, x=LINE.astype(np.int8)) is not None


refuses_signed_convs = pytest.mark.skipif(
    loads_signed_convs(),
    reason=f"with {PRECISION}=1 ONNX Runtime loads a QLinearConv of signed data on this processor",
)


def normalizes_exactly() -> bool:
    """True if a BatchNormalization divides by the root of 4 exactly, in every channel.

    On AVX-512, ONNX Runtime 1.20.1 was one unit in the last place off in channels that fill a
    vector, and exact in the others: a fold, which has more channels, rounds otherwise.
    """
    vectors = "float[7] s = {1, 1, 1, 1, 1, 1, 1}, float[7] v = {4, 4, 4, 4, 4, 4, 4}"
    zeros = "float[7] z = {0, 0, 0, 0, 0, 0, 0}"
    call = "BatchNormalization <epsilon = 0.0> (x, s, z, z, v)"
    text = f"g (float[1,7] x) => (float[1,7] y) <{vectors}, {zeros}> {{ y = {call} }}"
    (y,) = outputs(model(text), x=np.ones((1, 7), np.float32))
    return bool((y == 0.5).all())


NORMALIZES_EXACTLY = normalizes_exactly()

needs_exact_normalization = pytest.mark.skipif(
    not NORMALIZES_EXACTLY,
    reason="ONNX Runtime's BatchNormalization is one unit off in channels that fill a vector",
)


def runs_newest_opset() -> bool:
    graph = "g (float[1] x) => (float[1] y) { y = Neg (x) }"
    return defs.onnx_opset_version() >= NEWEST_OPSET and bool(
        outputs(model(graph, NEWEST_OPSET, 10), x=np.ones(1, np.float32))
    )


IS_OLD = not runs_newest_opset()
"""Whether something may be lacking."""


def lacking(error: BaseException) -> str | None:
    """The lacking feature, by the message of an error; None where all is there."""
    if isinstance(error, BaseExceptionGroup):
        reasons = [lacking(each) for each in error.exceptions]
        return None if None in reasons else reasons[0]
    line = f"{error}\n{error.__cause__}"
    for pattern, reason in MESSAGES.items() if IS_OLD else ():
        if match := re.search(pattern, line, re.MULTILINE):
            return match.expand(reason)
    return None


MARK, NONE = "_named_", "_none_"
NAMED = re.compile(r"\[(?P<name>[^\[\]\d=,][^\[\]=,]*)\](?P<rest>\s*[^=\[\]{}()<>]*=\s*[\w.]+)")


def parses_names() -> bool:
    """True if this onnx reads names of nodes."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) {[n] y = Neg(x)}'
    try:
        return bool(parser.parse_model(text).graph.node[0].name)
    except parser.ParseError:
        return False


READS_NAMES = parses_names()
needs_names = pytest.mark.skipif(not READS_NAMES, reason="onnx's text syntax has no names of nodes")


def naming(parse: Callable[[str], onnx.ModelProto]) -> Callable[[str], onnx.ModelProto]:
    """Make a parser of models read both: in between operators carry names, and no input one."""

    def parse_model(text: str) -> onnx.ModelProto:
        marked = NAMED.sub(lambda m: f"{m['rest']}{MARK}{m['name'].encode().hex()}", text)
        model = parse(re.sub(r"\(\s*,", f"({NONE},", marked))
        for node in model_nodes(model):
            node.op_type, _, name = node.op_type.partition(MARK)
            node.name = bytes.fromhex(name).decode()
            node.input[:] = ["" if read == NONE else read for read in node.input]
        return model

    return parse_model
