"""Items that links join, and integers of all sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from widthfold_onnx.arrays import connected, integers_of_all_sizes


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), max_size=25))
def test_groups_are_the_connected_components(links: list[list[int]]) -> None:
    """Oracle: scipy on the graph of neighbours."""
    groups = list(connected(links))
    items = sorted({item for link in links for item in link})
    place = {item: index for index, item in enumerate(items)}
    pairs = [(place[a], place[b]) for link in links for a in link for b in link]
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    matrix = coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(items), len(items)))
    count, labels = connected_components(matrix) if items else (0, [])
    assert len(groups) == count
    assert sorted(item for group in groups for item in group) == items
    for group in groups:
        assert len({labels[place[item]] for item in group}) == 1
    firsts = [next(i for link in links for i in link if i in group) for group in groups]
    assert [group[0] for group in groups] == firsts


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int64", "uint64"])
def test_integers_have_every_magnitude_of_their_type(name: str) -> None:
    limits = np.iinfo(name)
    array = integers_of_all_sizes(np.random.default_rng(2), (40, 50), np.dtype(name))
    assert (array.dtype, array.shape) == (name, (40, 50))
    lengths = [abs(number).bit_length() for number in array.ravel().tolist()]
    assert set(lengths) == set(range(1, limits.max.bit_length() + 1))
    assert (array < 0).any() == (limits.min < 0)
