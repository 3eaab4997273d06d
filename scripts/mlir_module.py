"""Modules of one linalg operation, for mlir_bench.py and the tests; compiled and run by IREE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from iree import compiler, runtime
from iree.compiler import ir
from onnx import numpy_helper

from widthfold_onnx.mlir.operations import CONVOLUTIONS

Array = npt.NDArray[Any]
HOST = ("--iree-llvmcpu-target-cpu=host",)


def module(
    kind: str,
    data: Sequence[int | None],
    weight: Array,
    *,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    pads: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
    bias: Array | None = None,
    init: Array | None = None,
    right: bool = True,
    sums: str = "",
) -> str:
    """Return the text of a module whose function @layer computes one operation.

    `data` is the shape before the pads, None for an open number of samples. The sums start from
    zeros, from `bias` by channel, or from `init`. They have the element type of the weight, unless
    `sums` names another.
    """
    element = {"float16": "f16", "float32": "f32"}[weight.dtype.name]
    sums = sums or element
    if kind == "matmul":
        layer = _matmul(data, weight.shape, right=right)
    else:
        layer = _convolution(kind, data, weight.shape, strides, dilations, pads)
    result = _tensor(layer.out, sums)
    size = "%n" if None in data else ""
    lines = [
        f"%w = arith.constant {dense(weight)}",
        f"%zero = arith.constant 0.0 : {element}",
        "%axis = arith.constant 0 : index",
        f"%n = tensor.dim %x, %axis : {_tensor(data, element)}" if size else "",
        f"%empty = tensor.empty({size}) : {result}",
        *_start(layer, sums, bias, init),
    ]
    read = "%x"
    if layer.padded != [*data]:
        indices = ", ".join(f"%i{i}: index" for i in range(len(data)))
        lines.append(
            f"%padded = tensor.pad %x low{layer.low} high{layer.high} {{ ^bb0({indices}): tensor."
            f"yield %zero : {element} }} : {_tensor(data, element)} to "
            f"{_tensor(layer.padded, element)}"
        )
        read = "%padded"
    operands = [(read, _tensor(layer.padded, element)), ("%w", _tensor(weight.shape, element))]
    names, types = (", ".join(each) for each in zip(*operands[:: 1 if right else -1], strict=True))
    lines.append(
        f"%y = linalg.{kind} {layer.attributes} ins({names} : {types}) outs(%init : {result}) "
        f"-> {result}"
    )
    body = "\n".join(f"  {line}" for line in lines if line)
    head = f"func.func @layer(%x: {_tensor(data, element)}) -> {result}"
    return f"{head} {{\n{body}\n  return %y : {result}\n}}\n"


class _Layer(NamedTuple):
    """The extents of a layer.

    Attributes:
        padded: of the data behind its pads, None for an open number of samples.
        out: of the result.
        channel: the axis of the output channels in the result.
        attributes: strides and dilations as MLIR writes them.
        low: pads before the data, by axis.
        high: pads behind it.
    """

    padded: list[int | None]
    out: list[int | None]
    channel: int
    attributes: str = ""
    low: Sequence[int] = ()
    high: Sequence[int] = ()


def _matmul(data: Sequence[int | None], weight: Sequence[int], *, right: bool) -> _Layer:
    out = [data[0], weight[1]] if right else [weight[0], data[1]]
    return _Layer([*data], out, channel=1 if right else 0)


def _convolution(
    kind: str,
    data: Sequence[int | None],
    weight: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> _Layer:
    letters, of_weight = CONVOLUTIONS[kind]
    rank = sum(letter in "hw" for letter in letters)
    spatial = "hw"[-rank:]
    begins, ends = ({x: pad[i] for x, pad in zip(spatial, pads, strict=False)} for i in (0, 1))
    low, high = ([side.get(x, 0) for x in letters] for side in (begins, ends))
    padded = [e and e + a + b for e, a, b in zip(data, low, high, strict=True)]
    extents = dict(zip(letters, padded, strict=True))
    kernel = dict(zip(of_weight, weight, strict=True))
    for x, stride, dilation in zip(spatial, strides, dilations, strict=False):
        extents[x] = ((extents[x] or 0) - dilation * (kernel[x] - 1) - 1) // stride + 1
    of_result = letters.replace("c", "f")
    out = [{**extents, "f": kernel.get("f")}[x] for x in of_result]
    vectors = ", ".join(
        f"{name} = dense<{list(numbers[:rank])}> : vector<{rank}xi64>"
        for name, numbers in (("dilations", dilations), ("strides", strides))
    )
    channel = of_result.index("f" if "f" in kernel else "g")
    return _Layer(padded, out, channel, f"{{{vectors}}}", low, high)


def _start(layer: _Layer, sums: str, bias: Array | None, init: Array | None) -> list[str]:
    """Return the lines that make %init, the numbers from which the sums start."""
    if init is not None:
        return [f"%init = arith.constant {dense(init)}"]
    result = _tensor(layer.out, sums)
    if bias is not None:
        others = [axis for axis in range(len(layer.out)) if axis != layer.channel]
        return [
            f"%b = arith.constant {dense(bias)}",
            f"%init = linalg.broadcast ins(%b : {_tensor(bias.shape, sums)}) "
            f"outs(%empty : {result}) dimensions = {others}",
        ]
    return [
        f"%start = arith.constant 0.0 : {sums}",
        f"%init = linalg.fill ins(%start : {sums}) outs(%empty : {result}) -> {result}",
    ]


def _tensor(shape: Sequence[int | None], element: str) -> str:
    """Return the type of a tensor as MLIR writes it."""
    return f"tensor<{'x'.join('?' if e is None else str(e) for e in shape)}x{element}>"


def of_integers(path: Path) -> onnx.ModelProto:
    """Return a model with small whole numbers for its weights, so that its sums are exact."""
    model, generator = onnx.load(path), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            numbers = generator.integers(-3, 4, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    return model


def dense(numbers: Array) -> str:
    """Return numbers as an attribute of MLIR."""
    with ir.Context():
        return str(ir.DenseElementsAttr.get(np.ascontiguousarray(numbers)))


def compiled(text: str, backend: str = "llvm-cpu", *options: str) -> bytes:
    """Return the module as IREE compiles it; by default for the processor that this runs on."""
    options = options or (HOST if backend == "llvm-cpu" else ())
    return bytes(compiler.compile_str(text, target_backends=[backend], extra_args=list(options)))


def loaded(code: bytes, x: Array) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """Return two calls of the public function on `x`, on one thread; the second returns numbers."""
    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    vm = runtime.VmModule.copy_buffer(context.instance, code)
    context.add_vm_module(vm)
    names = [name for name in vm.function_names if not name.startswith("__") and "$" not in name]
    function = getattr(context.modules, vm.name)[names[0]]
    data = runtime.asdevicearray(config.device, x)
    return (lambda: function(data)), (lambda: np.asarray(function(data).to_host()))
