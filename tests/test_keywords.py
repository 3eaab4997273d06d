"""Keywords of the Python API as fields of the options."""

from __future__ import annotations

from pathlib import Path

import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.keywords import (
    FoldKeywords,
    OptimizeKeywords,
    TuneKeywords,
    VerifyKeywords,
    check_keywords,
    field_of,
    options_from,
)
from widthfold_onnx.options import (
    Companion,
    Effort,
    FoldOptions,
    SearchOptions,
    VerifyOptions,
)


@pytest.mark.parametrize("call", [FoldKeywords, OptimizeKeywords, TuneKeywords, VerifyKeywords])
def test_every_keyword_sets_a_field_or_is_listed_here(call: type) -> None:
    unset = {
        name
        for name in call.__annotations__
        if all(field_of(name, kind) is None for kind in (FoldOptions, SearchOptions, VerifyOptions))
    }
    # The tolerance holds both of the first; the others are arguments of `tune` itself.
    assert unset <= {"rtol", "atol", "jobs", "dask", "value"}


def test_words_become_the_members_of_their_enumeration() -> None:
    options = options_from(FoldOptions, {"companion": ["prelu"], "axis": "height", "factor": 4})
    assert options.companions == (Companion.PRELU,)
    assert (options.axis, options.factor) == ("height", 4)
    assert options_from(SearchOptions, {"effort": "quick"}).effort is Effort.QUICK


def test_a_negated_keyword_clears_its_field() -> None:
    assert options_from(SearchOptions, {}).measure
    assert not options_from(SearchOptions, {"no_measure": True}).measure
    with pytest.raises(UsageError, match="no_measure is 'yes'"):
        options_from(SearchOptions, {"no_measure": "yes"})


def test_auto_and_strides_have_no_number() -> None:
    assert options_from(FoldOptions, {"factor": "auto"}).is_measured
    strides = options_from(FoldOptions, {"form": "strides"})
    assert strides.factor is None
    assert not strides.is_measured
    with pytest.raises(UsageError):
        options_from(FoldOptions, {"form": "strides", "factor": 8})


def test_paths_and_shapes_are_taken_in_every_form() -> None:
    shapes, several = {"x": [1, 3, 7]}, [{"x": [1, 3, 7]}, {"x": (2, 3, 5)}]
    assert options_from(FoldOptions, {"input_shape": shapes}).input_shapes == ({"x": (1, 3, 7)},)
    assert options_from(FoldOptions, {"input_shape": several}).input_shapes == (
        {"x": (1, 3, 7)},
        {"x": (2, 3, 5)},
    )
    for path in ("a.npz", Path("a.npz")):
        assert options_from(VerifyOptions, {"inputs": path}).inputs == ("a.npz",)
    assert options_from(SearchOptions, {"store": Path("s.sqlite")}).store == Path("s.sqlite")


def test_a_tolerance_holds_for_all_outputs_or_by_name() -> None:
    every = options_from(VerifyOptions, {"rtol": 1e-3, "atol": 2}).tolerance
    assert (every.rtol, every.atol, every.per_output) == (1e-3, 2.0, {})
    named = options_from(VerifyOptions, {"rtol": {"y": 1e-2}}).tolerance
    assert (named.rtol, named.per_output) == (None, {"y": 1e-2})


def test_keywords_of_other_options_are_left_out() -> None:
    assert options_from(FoldOptions, {"threads": 4, "factor": 8}) == FoldOptions(factor=8)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"threads": "4"}, "threads is '4': expected `int`, got `str`"),
        ({"provider_option": {"a": 1}}, "provider_option is {'a': 1}: expected `str`, got `int`"),
        ({"store": 5}, "store is 5, no path"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(
    keywords: dict[str, object], text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        options_from(SearchOptions, keywords)
    assert str(caught.value).startswith(text)
    with pytest.raises(UsageError, match="nodes is 5, no sequence"):
        options_from(FoldOptions, {"nodes": 5})


def test_a_keyword_that_a_call_lacks_names_the_nearest() -> None:
    check_keywords("fold", ["factor", "axis"], FoldKeywords)
    with pytest.raises(TypeError) as caught:
        check_keywords("fold", ["faktor"], FoldKeywords)
    assert str(caught.value) == (
        "fold() got an unexpected keyword argument 'faktor'; did you mean 'factor'?"
    )
    with pytest.raises(TypeError, match=r"'zzz'$"):
        check_keywords("fold", ["zzz"], FoldKeywords)
