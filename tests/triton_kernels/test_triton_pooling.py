"""Pooling and normalisation kernels against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DEVICE, DTYPES, TUNING, blocks_of, normal, poisoned, rounded
from tolerance import assert_as_exact_as_reference
from torch.nn import functional

from fastsal.backends.reference import pool_padded
from fastsal.engine.pooling import POOLING_MODES, PoolingSpec
from fastsal.kernels.triton.pooling import normalize_in_place, pool, pool_into

LENGTHS = [1, 2, 7, 0, 16, 17, 33, 4]


def reference(x, lengths, mode, skip, normalize):
    """(B, H) of packed rows, from a padded batch."""
    padded = torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True)
    mask = torch.arange(padded.shape[1], device=x.device)[None] < torch.tensor(lengths, device=x.device)[:, None]
    return pool_padded(padded, mask, PoolingSpec((mode,), skip_tokens=skip, normalize=normalize))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize(("skip", "normalize"), [(0, False), (0, True), (1, False), (17, False), (200, False)])
def test_modes(dtype, mode, skip, normalize):
    lengths = [n for n in LENGTHS if n or mode != "max" or not normalize]  # -inf cannot be normalised
    (x,) = rounded(dtype, normal(sum(lengths), 26))
    *_, cu_seqlens = blocks_of(lengths, 64)
    out = poisoned(len(lengths), 26, dtype=torch.float32)
    pool_into(x, cu_seqlens, mode, skip, normalize, out, TUNING)
    truth = reference(x.double(), lengths, mode, skip, normalize)
    finite = truth.isfinite()
    assert torch.equal(out[~finite], truth[~finite].float())
    assert_as_exact_as_reference(
        out[finite], reference(x.float(), lengths, mode, skip, normalize)[finite], truth[finite]
    )


@pytest.mark.parametrize("num_columns", [1, 312, 1025])
def test_widths_and_a_long_sentence(num_columns):
    (x,) = rounded(torch.float16, normal(200, num_columns))
    *_, cu_seqlens = blocks_of([200], 64)
    torch.testing.assert_close(pool(x, cu_seqlens, "mean", 0, False), x.float().mean(0, keepdim=True))


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_nan_stays_in_its_sentence_and_survives(mode):
    (x,) = rounded(torch.float32, normal(9, 4))
    x[3:6] = float("nan")
    *_, cu_seqlens = blocks_of([3, 3, 3], 64)
    out = pool(x, cu_seqlens, mode, 0, False)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be one of"):
        pool(torch.zeros(2, 2, device=DEVICE), torch.tensor([0, 2], dtype=torch.int32, device=DEVICE), "sum", 0, False)


@pytest.mark.parametrize("num_columns", [1, 26, 1500])
def test_normalize(num_columns):
    (x,) = rounded(torch.float32, normal(3, num_columns))
    x[1] = 0
    expected = functional.normalize(x, dim=1)
    normalize_in_place(x)
    torch.testing.assert_close(x, expected)
