"""Extents that a graph declares: fixed, named, anonymous, or wrong."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model.proto.dims import (
    Dimensions,
    apart,
    check_shapes,
    declare,
    declared,
    dims_of,
    symbol_of,
)


def value(dims: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)


@pytest.mark.parametrize("name", ["", "?", "-1", "None", "unk__0", "unk__417"])
def test_names_that_exporters_give_to_every_dimension_are_no_names(name: str) -> None:
    assert symbol_of(name) is None
    assert declared(value([name, 3])) == (None, 3)


@pytest.mark.parametrize("name", ["N", "unk__", "unk__1a", "None2", "-2", "batch size"])
def test_other_names_are(name: str) -> None:
    assert declared(value([name, 3])) == (name, 3)
    assert dims_of(value([name, 3])) == (None, 3)


def test_a_negative_extent_is_open_and_no_shape_is_no_extent() -> None:
    assert dims_of(value([-1, 5, 0])) == (None, 5, 0)
    assert dims_of(value(None)) is None
    assert dims_of(value([])) == ()
    assert declared(value(None)) == ()


DECLARED = {"image": ("N", 3, "H", None), "state": (2, "N", None), "rate": ()}


def test_an_open_dimension_may_be_a_batch_if_it_is_the_first_of_some_input() -> None:
    dims = Dimensions.of(DECLARED, {})
    inner_dims = ("H", ("image", 3), ("state", 2))
    assert dims.open_dims == ("N", *inner_dims)
    assert (dims.batch_dims, dims.besides(dims.batch_dims)) == (("N",), inner_dims)
    assert dims.open_inputs == {"image": ["N", "H", "axis 3"], "state": ["N", "axis 2"]}


def test_a_dimension_is_only_a_batch_if_it_is_the_first_wherever_it_stands() -> None:
    declared_dims = {"x": ("B", 3, "T"), "mask": ("T",), "state": (2, "N"), "n": ("N", "B2")}
    dims = Dimensions.of({**declared_dims, "more": ("B", "N")}, {})
    assert dims.batch_dims == ("B", "T", "N")
    assert dims.only_batch_dims == ("B",)
    assert dims.besides(dims.only_batch_dims) == ("T", "N", "B2")


def test_a_symbol_of_a_whole_shape_is_known_everywhere_and_an_axis_without_one_is_not() -> None:
    dims = Dimensions.of(DECLARED, {"image": (5, 3, 7, 11)})
    assert dims.open_dims == (("state", 2),)
    assert dims.batch_dims == ()
    assert dims.shapes({("state", 2): 13}) == {
        "image": (5, 3, 7, 11),
        "state": (2, 5, 13),
        "rate": (),
    }


def test_extents_and_shapes_are_inverse() -> None:
    dims = Dimensions.of(DECLARED, {})
    extents = {"N": 5, "H": 7, ("image", 3): 11, ("state", 2): 13}
    shapes = dims.shapes(extents)
    assert shapes == {"image": (5, 3, 7, 11), "state": (2, 5, 13), "rate": ()}
    assert dims.extents(shapes) == extents
    assert dims.extents({"state": (2, 5, 13), "elsewhere": (17,)}) == {"N": 5, ("state", 2): 13}


def test_sizes_take_the_place_of_open_extents_alone() -> None:
    inputs = [value(["N", 3, None]), value(None), value([7, 2])]
    for number, each in enumerate(inputs):
        each.name = f"x{number}"
    declare(inputs, {"x0": (2, 5, 11), "x1": (13, 17), "x2": (7,), "elsewhere": (1,)})
    assert [dims_of(each) for each in inputs] == [(2, 3, 11), (13, 17), (7, 2)]
    assert not inputs[0].type.tensor_type.shape.dim[0].dim_param


INPUTS = {"x": ("N", 3, None), "y": ("N",), "s": (), "unknown": None}


def test_shapes_that_fit() -> None:
    check_shapes(INPUTS, {"x": (2, 3, 5), "y": (2,), "s": (), "unknown": (7, 11)})


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1,)}, "names z, which is no input; there are: x, y, s, unknown"),
        ({"x": (2, 3)}, r"x is declared N,3,\?, not 2,3"),
        ({"x": (2, 4, 5)}, r"x is declared N,3,\?, not 2,4,5"),
        ({"s": (1,)}, "s is declared a scalar, not 1"),
        ({"x": (2, 3, 5), "y": (3,)}, "y has a size 3 where N is 2: .* one size to each name"),
        ({"unknown": (1 << 20, 1 << 20, 2)}, "unknown more elements than memory has"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_shapes(INPUTS, shapes)


@pytest.mark.parametrize(
    "extents",
    [
        {"n": 1, "h": 1, "w": 1},
        {"n": 3, "h": 64, "w": 64, "d": 64},
        {"a": 0, "b": 0},
        {"a": 5, "b": 4, "c": 5, "d": 10, "e": 2},
        {f"d{i}": 2 for i in range(9)},
    ],
)
def test_no_two_dimensions_that_are_apart_are_equal(extents: dict[str, int]) -> None:
    for result in apart({**extents}):
        assert list(result) == list(extents)
        assert len(set(result.values())) == len(extents)
        first = next(iter(extents))
        assert result[first] == extents[first]
        assert min(result.values()) >= min(1, *extents.values())


def test_dimensions_are_apart_by_one_by_powers_of_two_and_as_multiples() -> None:
    assert [list(item.values()) for item in apart({"n": 1, "h": 48, "w": 48, "d": 48})] == [
        [1, 48, 49, 50],
        [1, 48, 24, 12],
        [1, 48, 96, 144],
    ]
