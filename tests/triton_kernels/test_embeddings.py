"""The embedding kernel against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DEVICE, DTYPES, TUNING, normal, poisoned, rounded
from tolerance import assert_as_exact_as_reference
from torch.nn import functional

from fastsal.kernels.triton.embeddings import embed, embed_into


def reference(words, positions, types, position_table, type_table, scale, shift, map_weight, map_bias, eps):
    x = words + type_table[types] + position_table[positions]
    x = functional.layer_norm(x, x.shape[-1:], scale, shift, eps)
    return x if map_weight is None else functional.linear(x, map_weight, map_bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 15, 65])
@pytest.mark.parametrize(("embedding_size", "hidden_size"), [(26, None), (128, None), (13, 26), (128, 312)])
@pytest.mark.parametrize("given", ["ids", "vectors"])
def test_embeddings(dtype, num_rows, embedding_size, hidden_size, given):
    generator = torch.Generator().manual_seed(num_rows)
    ids, positions, types = (
        torch.randint(0, rows, (num_rows,), generator=generator).to(DEVICE) for rows in (50, 70, 2)
    )
    tables = rounded(dtype, *(normal(rows, embedding_size) for rows in (50, 70, 2)))
    scale, shift = rounded(dtype, normal(embedding_size), normal(embedding_size, seed=1))
    mapping = [None, None]
    if hidden_size is not None:
        mapping = rounded(dtype, normal(hidden_size, embedding_size, std=0.1), normal(hidden_size))
    words = tables[0][ids]

    out = poisoned(num_rows, hidden_size or embedding_size, dtype=dtype)
    sources = (None, positions.int(), types, words) if given == "vectors" else (ids.int(), positions, types, None)
    embed_into(*sources, *tables, scale, shift, *mapping, 1e-12, out, TUNING)

    arguments = (*tables[1:], scale, shift, *mapping)
    truth = reference(words.double(), positions, types, *(None if t is None else t.double() for t in arguments), 1e-12)
    assert_as_exact_as_reference(out, reference(words, positions, types, *arguments, 1e-12), truth)


def test_last_rows_of_the_tables():
    tables = rounded(torch.float32, normal(5, 8), normal(3, 8), normal(2, 8))
    ones, zeros = torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    index = [torch.tensor([rows - 1], device=DEVICE) for rows in (5, 3, 2)]
    out = embed(*index, None, *tables, ones, zeros, None, None, 1e-12)
    expected = functional.layer_norm(sum(table[-1:] for table in tables), (8,), eps=1e-12)
    torch.testing.assert_close(out, expected)
