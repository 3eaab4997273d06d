"""Modules of one linalg operation, for mlir_bench.py and the tests; compiled and run by IREE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from iree import compiler, runtime
from iree.compiler import ir
from onnx import numpy_helper

from widthfold_onnx.mlir.layers import CONVOLUTIONS

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
    """The text of a module whose function @layer computes one operation.

    `data` is the shape before the pads, None for an open number of samples. The sum starts from
    zeros, from `bias` by channel, or from `init`; its element type is that of the weight, if `sums`
    names no other.
    """
    element = {"float16": "f16", "float32": "f32"}[weight.dtype.name]
    sums = sums or element
    if kind == "matmul":
        padded = [*data]
        out = [padded[0], weight.shape[1]] if right else [weight.shape[0], padded[1]]
        channel, attributes = (1 if right else 0), ""
    else:
        letters, of_weight = CONVOLUTIONS[kind]
        rank = sum(letter in "hw" for letter in letters)
        spatial = "hw"[-rank:]
        before, after = ({x: pad[i] for x, pad in zip(spatial, pads, strict=False)} for i in (0, 1))
        padded = [
            e and e + before.get(x, 0) + after.get(x, 0) for x, e in zip(letters, data, strict=True)
        ]
        at = dict(zip(letters, padded, strict=True))
        kernel = dict(zip(of_weight, weight.shape, strict=True))
        for x, stride, dilation in zip(spatial, strides, dilations, strict=False):
            at[x] = ((at[x] or 0) - dilation * (kernel[x] - 1) - 1) // stride + 1
        out = [{**at, "f": kernel.get("f")}[x] for x in letters.replace("c", "f")]
        channel = letters.replace("c", "f").index("f" if "f" in kernel else "g")
        each = [
            f"{n} = dense<{list(v[:rank])}> : vector<{rank}xi64>"
            for n, v in (("dilations", dilations), ("strides", strides))
        ]
        attributes = "{" + ", ".join(each) + "}"

    def tensor(shape: Sequence[int | None], element: str = element) -> str:
        return f"tensor<{'x'.join('?' if e is None else str(e) for e in shape)}x{element}>"

    result = tensor(out, sums)
    open_ = "%n" if None in data else ""
    lines = [
        f"%w = arith.constant {dense(weight)}",
        f"%zero = arith.constant 0.0 : {element}",
        "%axis = arith.constant 0 : index",
        f"%n = tensor.dim %x, %axis : {tensor(data)}" if open_ else "",
        f"%empty = tensor.empty({open_}) : {result}",
    ]
    if init is not None:
        lines.append(f"%init = arith.constant {dense(init)}")
    elif bias is not None:
        others = [i for i in range(len(out)) if i != channel]
        lines += [
            f"%b = arith.constant {dense(bias)}",
            f"%init = linalg.broadcast ins(%b : {tensor(bias.shape, sums)}) "
            f"outs(%empty : {result}) dimensions = {others}",
        ]
    else:
        lines += [
            f"%start = arith.constant 0.0 : {sums}",
            f"%init = linalg.fill ins(%start : {sums}) outs(%empty : {result}) -> {result}",
        ]
    read = "%x"
    if padded != [*data]:
        low, high = ([end.get(x, 0) for x in letters] for end in (before, after))
        indices = ", ".join(f"%i{i}: index" for i in range(len(data)))
        lines.append(
            f"%padded = tensor.pad %x low{low} high{high} {{ ^bb0({indices}): "
            f"tensor.yield %zero : {element} }} : {tensor(data)} to {tensor(padded)}"
        )
        read = "%padded"
    operands = [(read, tensor(padded)), ("%w", tensor(weight.shape))][:: 1 if right else -1]
    names, types = (", ".join(each) for each in zip(*operands, strict=True))
    lines.append(
        f"%y = linalg.{kind} {attributes} ins({names} : {types}) outs(%init : {result}) -> {result}"
    )
    body = "\n".join(f"  {line}" for line in lines if line)
    head = f"func.func @layer(%x: {tensor(data)}) -> {result}"
    return f"{head} {{\n{body}\n  return %y : {result}\n}}\n"


def of_integers(path: Path) -> onnx.ModelProto:
    """A model with small whole numbers for its weights, so that its sums are exact."""
    model, generator = onnx.load(path), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            numbers = generator.integers(-3, 4, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    return model


def dense(numbers: Array) -> str:
    """Numbers as an attribute of MLIR."""
    with ir.Context():
        return str(ir.DenseElementsAttr.get(np.ascontiguousarray(numbers)))


def compiled(text: str, backend: str = "llvm-cpu", *options: str) -> bytes:
    """The module as IREE compiles it; by default for the processor that this runs on."""
    options = options or (HOST if backend == "llvm-cpu" else ())
    return bytes(compiler.compile_str(text, target_backends=[backend], extra_args=list(options)))


def loaded(code: bytes, x: Array) -> tuple[Callable[[], Any], Callable[[], Array]]:
    """A call of the one public function on `x`, on one thread; and one that returns its numbers."""
    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    vm = runtime.VmModule.copy_buffer(context.instance, code)
    context.add_vm_module(vm)
    names = [name for name in vm.function_names if not name.startswith("__") and "$" not in name]
    function = getattr(context.modules, vm.name)[names[0]]
    data = runtime.asdevicearray(config.device, x)
    return (lambda: function(data)), (lambda: np.asarray(function(data).to_host()))
