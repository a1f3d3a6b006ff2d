"""Padded batches and token lists -> packed tokens, as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsal.engine.packing import PackedBatch, pack_padded, pack_rectangle, pack_token_lists, token_blocks


@st.composite
def masks(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    bits = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return np.array(bits).reshape(rows, columns)


def inputs_for(mask, shared_rows=False):
    rows, columns = mask.shape
    ids = np.arange(rows * columns).reshape(rows, columns) + 100
    positions = np.arange(columns)[None, ::-1] if shared_rows else ids % 7
    types = np.ones((1, columns), np.int32) if shared_rows else ids % 2
    return ids, positions, types


def assert_consistent(batch: PackedBatch):
    bounds = batch.cu_seqlens
    assert bounds[0] == 0
    assert bounds[-1] == batch.num_tokens
    assert (np.diff(bounds) >= 0).all()
    for array in (batch.cu_seqlens, batch.position_ids, batch.token_type_ids, batch.input_ids):
        if array is not None:
            assert array.dtype == np.int64
            assert array.flags.c_contiguous
    for array in (batch.input_ids, batch.token_type_ids):
        if array is not None:
            assert len(array) == batch.num_tokens


@given(masks(), st.booleans())
@settings(deadline=None)
def test_packing_a_mask_gathers_each_rows_tokens_in_order(mask, shared_rows):
    """B03, B04, B05: holes, padding on either side, empty rows and columns."""
    ids, positions, types = inputs_for(mask, shared_rows)
    batch, index = pack_padded(mask, ids, position_ids=positions, token_type_ids=types)
    assert_consistent(batch)
    assert batch.num_sentences == len(mask)
    for row, (first, last) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        kept = mask[row]
        assert np.array_equal(batch.input_ids[first:last], ids[row, kept])
        assert np.array_equal(batch.position_ids[first:last], np.broadcast_to(positions, ids.shape)[row, kept])
        assert np.array_equal(batch.token_type_ids[first:last], np.broadcast_to(types, ids.shape)[row, kept])
    assert np.array_equal(ids.reshape(-1)[index], batch.input_ids)
    by_column, _ = pack_padded(mask, ids)
    assert np.array_equal(by_column.position_ids, mask.nonzero()[1])
    assert not by_column.token_type_ids.any()


@given(masks(), st.booleans(), st.booleans())
@settings(deadline=None)
def test_a_rectangle_is_a_mask_of_ones(mask, shared_rows, defaults):
    ids, positions, types = inputs_for(mask, shared_rows)
    given_ids = {} if defaults else {"position_ids": positions, "token_type_ids": types}
    for tokens in (ids, ids.astype(np.int32), None):
        expected, index = pack_padded(np.ones_like(mask), tokens, **given_ids)
        batch = pack_rectangle(mask.shape, tokens, **given_ids)
        assert_consistent(batch)
        assert np.array_equal(index, np.arange(mask.size))
        for name in ("cu_seqlens", "position_ids", "token_type_ids", "input_ids"):
            ours, theirs = getattr(batch, name), getattr(expected, name)
            assert (ours is None and theirs is None) or np.array_equal(ours, theirs)


@pytest.mark.parametrize("columns", [33, 64])
def test_strided_inputs(columns):
    """B24."""
    big = np.arange(6 * 128).reshape(6, 128)
    mask = np.broadcast_to((np.arange(columns) < 20)[None], (3, columns))
    for ids in (big[1:4, : 2 * columns : 2], np.broadcast_to(big[:1, :columns], (3, columns)), big.T[:columns, :3].T):
        batch, _ = pack_padded(mask, ids, position_ids=ids % 5, token_type_ids=ids[:1] % 2)
        dense, _ = pack_padded(mask.copy(), ids.copy(), position_ids=ids % 5, token_type_ids=ids[:1] % 2)
        assert_consistent(batch)
        assert np.array_equal(batch.input_ids, dense.input_ids)
        assert np.array_equal(batch.position_ids, dense.position_ids)
        assert np.array_equal(batch.token_type_ids, dense.token_type_ids)
        assert np.array_equal(pack_rectangle((3, columns), ids).input_ids, ids.reshape(-1))


token_lists = st.lists(st.lists(st.integers(0, 2**40), max_size=8), max_size=8)


@given(token_lists, st.sampled_from(["lists", "tuples", "arrays"]))
@settings(deadline=None)
def test_packing_token_lists(lists, form):
    convert = {
        "lists": list,
        "tuples": tuple,
        "arrays": lambda ids: np.array(ids, np.int64),
    }[form]
    batch = pack_token_lists([convert(ids) for ids in lists])
    assert_consistent(batch)
    assert batch.input_ids.tolist() == [token for ids in lists for token in ids]
    assert batch.position_ids.tolist() == [position for ids in lists for position in range(len(ids))]
    assert np.diff(batch.cu_seqlens).tolist() == list(map(len, lists))
    assert not batch.token_type_ids.any()


def test_token_types_of_lists():
    batch = pack_token_lists([[5, 6], [7]], [[0, 1], [1]])
    assert batch.token_type_ids.tolist() == [0, 1, 1]
    for types in ([[0, 1]], [[0, 1], [1, 1]], [[0], [1]]):
        with pytest.raises(ValueError, match="token_type_lists"):
            pack_token_lists([[5, 6], [7]], types)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        "text",
        [1, 2, 3],
        [None],
        [[1, 2], None],
        ["text"],
        [b"bytes"],
        [[1.5]],
        [["a"]],
        [[None]],
        [[[1, 2]]],
        [[1, [2, 3]]],
        [np.ones((2, 2), np.int64)],
        [np.ones(2)],
        [np.array(["a"])],
        [[True, False]],
        [{1: 2}],
        pytest.param((ids for ids in [[1, 2]]), id="generator"),
    ],
    ids=repr,
)
def test_what_is_no_list_of_token_lists(bad):
    with pytest.raises(TypeError, match="token_lists"):
        pack_token_lists(bad)


def test_other_integers_and_empty_lists():
    batch = pack_token_lists([np.array([1, 2], np.uint8), np.array([3], np.int32), [], np.array([])])
    assert batch.input_ids.tolist() == [1, 2, 3]
    assert batch.cu_seqlens.tolist() == [0, 2, 3, 3, 3]
    assert pack_token_lists([]).num_sentences == 0


def bounds_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 32))
@settings(deadline=None)
def test_blocks_hold_whole_sentences_and_each_once(lengths, block_tokens):
    bounds = bounds_of(lengths)
    result = token_blocks(bounds, block_tokens)
    assert result.longest == max(lengths, default=0)
    assert result.segments.tolist() == [sentence for sentence, n in enumerate(lengths) for _ in range(n)]
    sentences = [s for row in result.blocks.tolist() for s in range(row[2], row[3])]
    assert sentences == list(range(len(lengths)))
    for start, end, first, last in result.blocks.tolist():
        assert (start, end) == (bounds[first], bounds[last])
        assert end - start <= block_tokens or last == first + 1
    # no block could have taken the sentence that follows
    for row, following in zip(result.blocks.tolist(), result.blocks.tolist()[1:], strict=False):
        assert bounds[following[2] + 1] - row[0] > block_tokens


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 32))
@settings(deadline=None)
def test_tiles_let_each_token_ask_once_and_see_its_sentence(lengths, block_tokens):
    bounds = bounds_of(lengths)
    tiles = token_blocks(bounds, block_tokens).tiles()
    asking = [token for row in tiles.tolist() for token in range(row[0], row[1])]
    assert asking == list(range(sum(lengths)))
    for query_start, query_end, key_start, key_end in tiles.tolist():
        assert 1 <= query_end - query_start <= block_tokens
        first = np.searchsorted(bounds, query_start, side="right") - 1
        last = np.searchsorted(bounds, query_end - 1, side="right") - 1
        assert key_start <= bounds[first]
        assert bounds[last + 1] <= key_end
        if max(lengths) <= block_tokens:
            assert (query_start, query_end) == (key_start, key_end)
