"""Pooling of packed token embeddings to one float32 row per sentence, and L2 normalisation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.engine.pooling import POOLING_MODES
from fastsal.kernels.triton.tuning import Tuning, tuning_for

#: Norms below this count as this, as in `torch.nn.functional.normalize`.
_SMALLEST_NORM: tl.constexpr = tl.constexpr(1e-12)


@triton.jit
def column_maxima(values, kept):
    """Maxima down the columns of the rows that are `kept` (BLOCK_M, 1); NaN wins, -inf where there is none."""
    maxima = tl.max(tl.where(kept, values, float("-inf")), axis=0)
    num_nan = tl.sum(tl.where(kept & (values != values), 1.0, 0.0), axis=0)
    return tl.where(num_nan > 0, float("nan"), maxima)


@triton.jit
def position_weights(positions, num_positions, skip, MODE: tl.constexpr):
    """Factors by which the positions of a sentence are summed, 0 for those that do not count.

    ``positions`` are int32 numbers within the sentence, which has `num_positions`; the first `skip` are not pooled.
    """
    kept = (positions >= skip) & (positions < num_positions)
    count = tl.maximum(num_positions - skip, 0).to(tl.float32)
    if MODE == "cls":
        chosen = tl.where(skip < num_positions, skip, 0)  # the first position where none is kept
        factors = tl.where((positions == chosen) & (positions < num_positions), 1.0, 0.0)
    elif MODE == "lasttoken":
        factors = tl.where(kept & (positions == num_positions - 1), 1.0, 0.0)
    elif MODE == "mean":
        factors = tl.where(kept, 1.0, 0.0) / tl.maximum(count, 1.0)
    elif MODE == "mean_sqrt_len_tokens":
        factors = tl.where(kept, 1.0, 0.0) / tl.sqrt(tl.maximum(count, 1.0))
    else:
        tl.static_assert(MODE == "weightedmean", "unknown pooling mode")
        last, before = num_positions.to(tl.float32), tl.minimum(skip, num_positions).to(tl.float32)
        total = (last * (last + 1) - before * (before + 1)) / 2  # 1 + .. + last, without the skipped
        factors = tl.where(kept, (positions + 1).to(tl.float32), 0.0) / tl.maximum(total, 1.0)
    return factors


@triton.jit(do_not_specialize=["skip"])
def pool_kernel(
    x_ptr, cu_seqlens_ptr,
    out_ptr,
    num_columns, skip,
    x_row_stride, out_row_stride,
    MODE: tl.constexpr, NORMALIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One sentence per program, BLOCK_M of its tokens at a time, all columns."""
    sentence = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_seqlens_ptr + sentence)
    length = tl.load(cu_seqlens_ptr + sentence + 1) - start
    column_offs = tl.arange(0, BLOCK_N)
    column_mask = column_offs < num_columns
    if MODE == "max":
        result = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    else:
        result = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(0, length, BLOCK_M):
        positions = first + tl.arange(0, BLOCK_M)
        mask = (positions < length)[:, None] & column_mask[None, :]
        rows = (start + positions).to(tl.int64)
        x = tl.load(x_ptr + rows[:, None] * x_row_stride + column_offs[None, :], mask=mask, other=0.0).to(tl.float32)
        if MODE == "max":
            kept = ((positions >= skip) & (positions < length))[:, None]
            result = tl.maximum(result, column_maxima(x, kept), propagate_nan=tl.PropagateNan.ALL)
        else:
            factors = position_weights(positions, length, skip, MODE)[:, None]
            result += tl.sum(tl.where(factors > 0, x * factors, 0.0), axis=0)
    if NORMALIZE:
        squares = tl.sum(tl.where(column_mask, result * result, 0.0), axis=0)
        result = result / tl.maximum(tl.sqrt(squares), _SMALLEST_NORM)
    tl.store(out_ptr + sentence * out_row_stride + column_offs, result, mask=column_mask)


@triton.jit
def normalize_kernel(x_ptr, num_columns, x_row_stride, BLOCK_N: tl.constexpr):
    """One float32 row per program to L2 norm 1, in place; rows of zeros stay zeros."""
    row_ptr = x_ptr + tl.program_id(0).to(tl.int64) * x_row_stride
    squares = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(0, num_columns, BLOCK_N):
        column_offs = first + tl.arange(0, BLOCK_N)
        x = tl.load(row_ptr + column_offs, mask=column_offs < num_columns, other=0.0)
        squares += x * x
    norm = tl.maximum(tl.sqrt(tl.sum(squares, axis=0)), _SMALLEST_NORM)
    for first in range(0, num_columns, BLOCK_N):
        column_offs = first + tl.arange(0, BLOCK_N)
        column_mask = column_offs < num_columns
        x = tl.load(row_ptr + column_offs, mask=column_mask, other=0.0)
        tl.store(row_ptr + column_offs, x / norm, mask=column_mask)


def pool_into(
    x: Tensor, cu_seqlens: Tensor, mode: str, skip: int, normalize: bool, out: Tensor, tuning: Tuning
) -> None:
    """As `pool`, into `out`: (B, H) float32 with contiguous columns."""
    num_sentences, num_columns = cu_seqlens.numel() - 1, x.shape[1]
    if num_sentences == 0:
        return
    config = tuning.config("pool", x.dtype, num_sentences, num_columns)
    pool_kernel[(num_sentences,)](
        x, cu_seqlens,
        out,
        num_columns, skip,
        x.stride(0), out.stride(0),
        MODE=mode, NORMALIZE=normalize, BLOCK_N=triton.next_power_of_2(num_columns),
        **config,
    )  # fmt: skip


def normalize_in_place(x: Tensor) -> None:
    """Scale the (B, D) float32 rows of `x` to L2 norm 1."""
    num_rows, num_columns = x.shape
    if num_rows:
        block = min(triton.next_power_of_2(num_columns), 1024)
        normalize_kernel[(num_rows,)](x, num_columns, x.stride(0), BLOCK_N=block, num_warps=4)


@torch.library.custom_op("fastsal::pool", mutates_args=())
def pool(x: Tensor, cu_seqlens: Tensor, mode: str, skip: int, normalize: bool) -> Tensor:
    """One row per sentence.

    Args:
        x: (T, H) with contiguous columns.
        cu_seqlens: (B + 1,) int32, bounds of the sentences.
        mode: one of `fastsal.engine.pooling.POOLING_MODES`.
        skip: leading positions that are not pooled.
        normalize: scale rows to L2 norm 1.

    Returns:
        (B, H) float32. Where nothing is pooled: see `fastsal.engine.pooling.PoolingSpec`.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in POOLING_MODES:
        raise ValueError(f"mode must be one of {POOLING_MODES}, got {mode!r}")
    out = x.new_empty(cu_seqlens.numel() - 1, x.shape[1], dtype=torch.float32)
    with torch.cuda.device_of(x):
        pool_into(x, cu_seqlens, mode, skip, normalize, out, tuning_for(x.device))
    return out


@pool.register_fake
def _(x, cu_seqlens, mode, skip, normalize):
    return x.new_empty(cu_seqlens.numel() - 1, x.shape[1], dtype=torch.float32)
