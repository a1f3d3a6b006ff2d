"""Conv1d over the tokens of each sentence, all kernel sizes at once, pooled in the same kernel.

The (T, C) result of the convolutions never reaches memory. A convolution is computed at every token t of a sentence of
L tokens; of these it has the positions t = 0, stride, 2 stride, ... as far as its last window reaches.

Weights of all convolutions are the rows of one matrix, tap by tap: row ``first_row + tap * channels + channel``.
A table gives each block of channels, which one program computes, a row:

    first_row | tap_stride | channels left | out column | kernel size | stride
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.engine.pooling import POOLING_MODES, Convolution
from fastsal.kernels.triton.pooling import column_maxima, position_weights
from fastsal.kernels.triton.tuning import Tuning, tuning_for

#: Channels per program, tokens per program at a time; the table and the blocks of sentences are made for them.
BLOCK_CHANNELS = 64
BLOCK_TOKENS = 64

_TABLE_COLUMNS: tl.constexpr = tl.constexpr(6)


@triton.jit(do_not_specialize=["skip"])
def conv_pool_kernel(
    x_ptr, weight_ptr, bias_ptr, table_ptr, segments_ptr, cu_seqlens_ptr, blocks_ptr,
    out_ptr,
    num_channel_blocks, hidden_size, skip,
    x_row_stride, weight_row_stride, out_row_stride,
    MODE: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One block of channels of one block of sentences ``(first token, last + 1, first sentence, last + 1)``; a block
    of more than BLOCK_T tokens is one sentence."""
    # the channel blocks of the same tokens run side by side and share them in L2
    table_row = table_ptr + tl.program_id(0) % num_channel_blocks * _TABLE_COLUMNS
    block = tl.program_id(0) // num_channel_blocks
    token_start = tl.load(blocks_ptr + block * 4)
    token_end = tl.load(blocks_ptr + block * 4 + 1)
    first_sentence = tl.load(blocks_ptr + block * 4 + 2).to(tl.int64)
    end_sentence = tl.load(blocks_ptr + block * 4 + 3).to(tl.int64)

    first_row = tl.load(table_row)
    tap_stride = tl.load(table_row + 1)
    num_channels = tl.load(table_row + 2)
    out_column = tl.load(table_row + 3)
    kernel_size = tl.load(table_row + 4)
    stride = tl.load(table_row + 5)
    padding = (kernel_size - 1) // 2
    num_k_blocks = tl.cdiv(hidden_size, BLOCK_K)

    channel_offs = tl.arange(0, BLOCK_C)
    channel_mask = channel_offs < num_channels
    out_ptrs = out_ptr + out_column + channel_offs
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + out_column + channel_offs, mask=channel_mask, other=0.0).to(tl.float32)
    else:
        bias = tl.zeros((BLOCK_C,), dtype=tl.float32)
    if MODE == "max":
        result = tl.full((BLOCK_C,), float("-inf"), dtype=tl.float32)
    else:
        result = tl.zeros((BLOCK_C,), dtype=tl.float32)
    if token_start >= token_end:  # sentences without a token
        for sentence in range(first_sentence, end_sentence):
            tl.store(out_ptrs + sentence * out_row_stride, result, mask=channel_mask)

    for chunk_start in range(token_start, token_end, BLOCK_T):
        token_offs = chunk_start + tl.arange(0, BLOCK_T)
        token_mask = token_offs < token_end
        segments = tl.load(segments_ptr + token_offs, mask=token_mask, other=-1)
        sentence_starts = tl.load(cu_seqlens_ptr + segments, mask=token_mask, other=0)
        lengths = tl.load(cu_seqlens_ptr + segments + 1, mask=token_mask, other=0) - sentence_starts
        tokens = token_offs - sentence_starts  # numbers within the sentence

        sums = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)
        for step in range(0, kernel_size * num_k_blocks):
            tap = step // num_k_blocks
            k_offs = step % num_k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
            inputs = tokens + tap - padding
            # zeros beyond the sentence's ends
            input_mask = token_mask & (inputs >= 0) & (inputs < lengths)
            input_rows = (token_offs + tap - padding).to(tl.int64)
            weight_rows = (first_row + tap * tap_stride + channel_offs).to(tl.int64)
            if EVEN_K:
                x_mask = input_mask[:, None]
                weight_mask = channel_mask[None, :]
            else:
                x_mask = input_mask[:, None] & (k_offs < hidden_size)[None, :]
                weight_mask = channel_mask[None, :] & (k_offs < hidden_size)[:, None]
            x = tl.load(x_ptr + input_rows[:, None] * x_row_stride + k_offs[None, :], mask=x_mask, other=0.0)
            weight = tl.load(
                weight_ptr + weight_rows[None, :] * weight_row_stride + k_offs[:, None], mask=weight_mask, other=0.0
            )
            sums = tl.dot(x, weight, sums, input_precision="ieee")
        sums += bias[None, :]

        positions = tokens // stride
        num_positions = (lengths + 2 * padding - kernel_size) // stride + 1
        on_stride = tokens % stride == 0
        if MODE == "max":
            factors = tl.where((positions >= skip) & (positions < num_positions), 1.0, 0.0)
        else:
            factors = position_weights(positions, num_positions, skip, MODE)
            sums = tl.where((factors > 0)[:, None], sums * factors[:, None], 0.0)
        counts = on_stride & (factors > 0)
        for sentence in range(first_sentence, end_sentence):
            kept = (counts & (segments == sentence))[:, None]
            # several chunks are one sentence: it is stored after each, the last time complete
            if MODE == "max":
                pooled = column_maxima(sums, kept)
                if chunk_start > token_start:
                    pooled = tl.maximum(result, pooled, propagate_nan=tl.PropagateNan.ALL)
            else:
                pooled = tl.sum(tl.where(kept, sums, 0.0), axis=0)
                if chunk_start > token_start:
                    pooled += result
            result = pooled
            tl.store(out_ptrs + sentence * out_row_stride, pooled, mask=channel_mask)


@dataclass(frozen=True)
class PackedConvolutions:
    """The convolutions of a CNN module in the kernel's layout.

    Attributes:
        weight: (sum of kernel_size * channels, H).
        bias: (C,) for all C channels, zeros where a convolution has none; None where none has one.
        table: (channel blocks, 6) int32, see the module.
        num_channels: C.
    """

    weight: Tensor
    bias: Tensor | None
    table: Tensor
    num_channels: int


def pack_convolutions(
    convolutions: Sequence[Convolution], dtype: torch.dtype, device: torch.device
) -> PackedConvolutions:
    """Lay the weights out for `conv_pool_into`."""
    rows, first_row, out_column = [], 0, 0
    for convolution in convolutions:
        channels, _, kernel_size = convolution.weight.shape
        for start in range(0, channels, BLOCK_CHANNELS):
            left = min(channels - start, BLOCK_CHANNELS)
            rows.append((first_row + start, channels, left, out_column + start, kernel_size, convolution.stride))
        first_row += kernel_size * channels
        out_column += channels
    weight = torch.cat([c.weight.detach().permute(2, 0, 1).flatten(0, 1) for c in convolutions])
    bias = None
    if any(c.bias is not None for c in convolutions):
        bias = torch.cat(
            [c.weight.new_zeros(c.weight.shape[0]) if c.bias is None else c.bias.detach() for c in convolutions]
        )
    return PackedConvolutions(
        weight=weight.to(device, dtype).contiguous(),
        bias=None if bias is None else bias.to(device, dtype),
        table=torch.from_numpy(np.array(rows, np.int32)).to(device),
        num_channels=out_column,
    )


def conv_pool_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    table: Tensor,
    segments: Tensor,
    cu_seqlens: Tensor,
    blocks: Tensor,
    mode: str,
    skip: int,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `conv_pool`, into `out`: (B, C) float32 with contiguous columns."""
    if len(blocks) == 0:
        return
    config = tuning.config("conv_pool", x.dtype, x.shape[0])
    conv_pool_kernel[(len(blocks) * len(table),)](
        x, weight, bias, table, segments, cu_seqlens, blocks,
        out,
        len(table), x.shape[1], skip,
        x.stride(0), weight.stride(0), out.stride(0),
        MODE=mode, EVEN_K=x.shape[1] % config["BLOCK_K"] == 0, BLOCK_T=BLOCK_TOKENS, BLOCK_C=BLOCK_CHANNELS,
        **config,
    )  # fmt: skip


@torch.library.custom_op("fastsal::conv_pool", mutates_args=())
def conv_pool(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    table: Tensor,
    segments: Tensor,
    cu_seqlens: Tensor,
    blocks: Tensor,
    num_channels: int,
    mode: str,
    skip: int,
) -> Tensor:
    """Convolve each sentence by itself and pool the positions of each convolution.

    Args:
        x: (T, H) with contiguous columns.
        weight, bias, table, num_channels: from `pack_convolutions`.
        segments: (T,) int32, the number of each token's sentence.
        cu_seqlens: (B + 1,) int32, bounds of the sentences.
        blocks: (N, 4) int32, every sentence in one block of at most BLOCK_TOKENS tokens, longer ones alone.
        mode: one of `fastsal.engine.pooling.POOLING_MODES`.
        skip: leading positions that are not pooled.

    Returns:
        (B, num_channels) float32. Where nothing is pooled: see `fastsal.engine.pooling.PoolingSpec`.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in POOLING_MODES:
        raise ValueError(f"mode must be one of {POOLING_MODES}, got {mode!r}")
    out = x.new_empty(cu_seqlens.numel() - 1, num_channels, dtype=torch.float32)
    with torch.cuda.device_of(x):
        conv_pool_into(x, weight, bias, table, segments, cu_seqlens, blocks, mode, skip, out, tuning_for(x.device))
    return out


@conv_pool.register_fake
def _(x, weight, bias, table, segments, cu_seqlens, blocks, num_channels, mode, skip):
    return x.new_empty(cu_seqlens.numel() - 1, num_channels, dtype=torch.float32)
