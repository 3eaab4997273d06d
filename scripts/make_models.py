#!/usr/bin/env python3
"""Write the small models that the README and the tests use: `make_models.py [OUT=models]`.

A value that is declared in a model's text (`nets.sources`) but computed by no node is a weight: it
is filled with numbers that depend on nothing but the names of the model and the weight, so every
run on every machine writes the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
from nets.sources import SOURCES, Source

HEADER = '<ir_version: 8, opset_import: ["" : 17], producer_name: "widthfold make_models">'
TERMS = 8  # uniform 16-bit integers added up for one near-normal number
BIAS_SCALE = 0.1


def near_normal(seed: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Weights of about normal distribution and variance 1 / fan-in, without libm or a generator."""
    stream = hashlib.shake_256(seed.encode()).digest(math.prod(shape) * TERMS * 2)
    sums = np.frombuffer(stream, "<u2").reshape(*shape, TERMS).sum(axis=-1, dtype=np.int64)
    unit = (sums - TERMS * 0xFFFF / 2) / (0x10000 * math.sqrt(TERMS / 12))
    scale = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else BIAS_SCALE
    weights: npt.NDArray[np.float32] = (unit * scale).astype(np.float32)
    return weights


def integers(seed: str, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Weights of 8 bits, all values alike."""
    stream = hashlib.shake_256(seed.encode()).digest(math.prod(shape))
    return np.frombuffer(stream, np.int8).reshape(shape)


def build(name: str, source: Source) -> onnx.ModelProto:
    """The checked model of one source, its weights filled in."""
    model = onnx.parser.parse_model(f"{HEADER}\n{name} {source.text}")
    graph = model.graph
    graph.doc_string = source.shows
    for declared in graph.value_info:
        shape = tuple(dim.dim_value for dim in declared.type.tensor_type.shape.dim)
        integer = declared.type.tensor_type.elem_type == onnx.TensorProto.INT8
        weight = (integers if integer else near_normal)(f"{name}/{declared.name}", shape)
        graph.initializer.append(onnx.numpy_helper.from_array(weight, declared.name))
    del graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def write(sources: Mapping[str, Source], out: Path) -> list[Path]:
    """Write the model of every source into a folder, and print a line for each."""
    out.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        content = build(name, source).SerializeToString(deterministic=True)
        (out / f"{name}.onnx").write_bytes(content)
        print(f"{f'{name}.onnx':24} {len(content):8,} bytes  {source.shows}")
    return [out / f"{name}.onnx" for name in sources]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = Path(__file__).resolve().parent.parent / "models"
    parser.add_argument("out", nargs="?", type=Path, default=default, help="folder to write into")
    write(SOURCES, parser.parse_args().out)


if __name__ == "__main__":
    main()
