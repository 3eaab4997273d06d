"""Items that links join, and integers of all sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from widthfold_onnx.arrays import connected


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
