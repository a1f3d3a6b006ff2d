"""Padded tensors <-> packed batches, as properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsal.modules.padding import pack, unpack


@st.composite
def masks(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    bits = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(bits).view(rows, columns)


@given(masks())
@settings(deadline=None)
def test_ids_go_there_and_back(mask):
    ids = torch.arange(mask.numel()).view(mask.shape) + 100
    batch, index = pack(tuple(mask.shape), mask, ids)
    assert torch.equal(torch.from_numpy(batch.input_ids), ids[mask])
    restored = unpack(torch.from_numpy(batch.input_ids)[:, None].float(), index, *mask.shape)[..., 0]
    assert torch.equal(restored, torch.where(mask, ids, 0).float())


@given(masks(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(deadline=None)
def test_embeddings_are_packed_like_ids(mask, dtype):
    embeds = torch.randn(*mask.shape, 3).to(dtype)
    batch, index = pack(tuple(mask.shape), mask, inputs_embeds=embeds)
    assert batch.input_ids is None
    assert torch.equal(torch.from_numpy(batch.inputs_embeds), embeds[mask].float())
    packed = torch.from_numpy(batch.inputs_embeds).to(dtype)
    assert torch.equal(unpack(packed, index, *mask.shape), embeds.masked_fill(~mask[..., None], 0))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_without_a_mask_everything_is_taken(dtype):
    ids = torch.arange(24, dtype=dtype).view(4, 6)[:, ::2]
    batch, index = pack((4, 3), None, ids, position_ids=ids[:1], token_type_ids=ids % 2)
    assert index is None
    assert batch.input_ids.tolist() == ids.reshape(-1).tolist()
    assert batch.position_ids.tolist() == [0, 2, 4] * 4
    embeds = torch.randn(4, 5, 6)[:, :3]
    batch, _ = pack((4, 3), None, inputs_embeds=embeds)
    assert torch.equal(torch.from_numpy(batch.inputs_embeds), embeds.reshape(12, 6))
