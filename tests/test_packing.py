"""Padded batches and token lists <-> packed tokens, as properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsal.engine.packing import PackedBatch, pack_padded, pack_rectangle, pack_token_lists, token_blocks, unpack


@st.composite
def masks(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    bits = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(bits).view(rows, columns)


def inputs_for(mask, shared_rows=False):
    rows, columns = mask.shape
    ids = torch.arange(rows * columns).view(rows, columns) + 100
    positions = (torch.arange(columns).flip(0)[None] if shared_rows else ids % 7).contiguous()
    types = torch.ones(1, columns, dtype=torch.int32) if shared_rows else ids % 2
    return ids, positions, types


def assert_consistent(batch: PackedBatch):
    bounds = batch.cu_seqlens
    assert bounds[0] == 0
    assert bounds[-1] == batch.num_tokens
    assert (bounds.diff() >= 0).all()
    for tensor in (batch.cu_seqlens, batch.position_ids, batch.token_type_ids, batch.input_ids):
        if tensor is not None:
            assert tensor.dtype == torch.int64
            assert tensor.is_contiguous()
    for tensor in (batch.input_ids, batch.inputs_embeds, batch.token_type_ids):
        if tensor is not None:
            assert len(tensor) == batch.num_tokens
            assert tensor.is_contiguous()


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
        assert torch.equal(batch.input_ids[first:last], ids[row, kept])
        assert torch.equal(batch.position_ids[first:last], positions.expand_as(ids)[row, kept])
        assert torch.equal(batch.token_type_ids[first:last], types.expand_as(ids)[row, kept].long())
    by_column, _ = pack_padded(mask, ids)
    assert torch.equal(by_column.position_ids, mask.nonzero()[:, 1])
    assert torch.count_nonzero(by_column.token_type_ids) == 0
    restored = unpack(batch.input_ids[:, None].float(), index, *mask.shape)[..., 0]
    assert torch.equal(restored, torch.where(mask, ids, 0).float())


@given(masks())
@settings(deadline=None)
def test_embeddings_are_packed_like_ids(mask):
    embeds = torch.randn(*mask.shape, 3)
    batch, index = pack_padded(mask, inputs_embeds=embeds)
    assert_consistent(batch)
    assert torch.equal(batch.inputs_embeds, embeds[mask])
    assert torch.equal(unpack(batch.inputs_embeds, index, *mask.shape), embeds.masked_fill(~mask[..., None], 0))


@given(masks(), st.booleans(), st.booleans())
@settings(deadline=None)
def test_a_rectangle_is_a_mask_of_ones(mask, shared_rows, defaults):
    ids, positions, types = inputs_for(mask, shared_rows)
    given_ids = {} if defaults else {"position_ids": positions, "token_type_ids": types}
    full = torch.ones_like(mask)
    for tokens in ({"input_ids": ids}, {"input_ids": ids.int()}, {"inputs_embeds": torch.randn(*mask.shape, 3)}):
        expected, _ = pack_padded(full, **tokens, **given_ids)
        batch = pack_rectangle(tuple(mask.shape), **tokens, **given_ids)
        assert_consistent(batch)
        for name in ("cu_seqlens", "position_ids", "token_type_ids", "input_ids", "inputs_embeds"):
            ours, theirs = getattr(batch, name), getattr(expected, name)
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)


@pytest.mark.parametrize("columns", [33, 64])
def test_strided_inputs(columns):
    """B24."""
    big = torch.arange(6 * 128).view(6, 128)
    mask = (torch.arange(columns) < 20)[None].expand(3, columns)
    for ids in (big[1:4, : 2 * columns : 2], big[:1, :columns].expand(3, columns), big.T[:columns, :3].T):
        batch, _ = pack_padded(mask, ids, position_ids=ids % 5, token_type_ids=ids[:1] % 2)
        dense, _ = pack_padded(
            mask.contiguous(),
            ids.contiguous(),
            position_ids=(ids % 5).contiguous(),
            token_type_ids=(ids[:1] % 2).contiguous(),
        )
        assert torch.equal(batch.input_ids, dense.input_ids)
        assert torch.equal(batch.position_ids, dense.position_ids)
        assert torch.equal(batch.token_type_ids, dense.token_type_ids)
        assert torch.equal(pack_rectangle((3, columns), ids).input_ids, ids.reshape(-1))


token_lists = st.lists(st.lists(st.integers(0, 2**40), max_size=8), max_size=8)


@given(token_lists, st.sampled_from(["lists", "tuples", "arrays", "tensors"]))
@settings(deadline=None)
def test_packing_token_lists(lists, form):
    convert = {
        "lists": list,
        "tuples": tuple,
        "arrays": lambda ids: np.array(ids, np.int64),
        "tensors": lambda ids: torch.tensor(ids, dtype=torch.int64),
    }[form]
    batch = pack_token_lists([convert(ids) for ids in lists])
    assert_consistent(batch)
    assert batch.input_ids.tolist() == [token for ids in lists for token in ids]
    assert batch.position_ids.tolist() == [position for ids in lists for position in range(len(ids))]
    assert batch.cu_seqlens.diff().tolist() == list(map(len, lists))
    assert torch.count_nonzero(batch.token_type_ids) == 0


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
        [torch.ones(2)],
        [torch.ones(2, 2, dtype=torch.int64)],
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
    batch = pack_token_lists([np.array([1, 2], np.uint8), torch.tensor([3], dtype=torch.int32), [], np.array([])])
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
