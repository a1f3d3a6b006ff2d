"""Attention inside sentences that lie packed one after the other.

Both kernels work on tiles: rows ``(query_start, query_end, key_start, key_end)`` of token numbers. A tile of whole
short sentences has itself as keys; a slice of a long sentence has the sentence. A token sees the keys of its own
segment (sentence) only. ``fastsal.engine.packing.token_blocks`` makes the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.kernels.triton.tuning import Tuning, tuning_for

#: log2(e): the kernels' exponentials are powers of two.
_LOG2_E = 1.4426950408889634

#: Widest head that the fused kernel takes: q, k and v of a block stay in registers.
MAX_FUSED_HEAD_SIZE = 128

#: Fewest tokens of a tile: the rows of a matrix instruction.
_SMALLEST_TILE = 16


@dataclass(frozen=True)
class AttentionPlan:
    """How a batch's attention is computed.

    Attributes:
        fused: by `qkv_attention_into`, else by `attention_into`.
        tile_tokens: of the tiles.
    """

    fused: bool
    tile_tokens: int


def plan_attention(rows: int, longest: int, head_size: int, dtype: torch.dtype, tuning: Tuning) -> AttentionPlan:
    """The plan for `rows` tokens in sentences of at most `longest`.

    Short sentences get small tiles where the projections lie in memory: a tile computes the scores between all of its
    tokens, most of which another sentence's tokens never see.
    """
    if head_size <= MAX_FUSED_HEAD_SIZE and tuning.choice("attention", dtype, rows, head_size) == "fused":
        tile_tokens = tuning.tile_tokens("fused", dtype, rows, head_size)
        if longest <= tile_tokens:
            return AttentionPlan(True, tile_tokens)
    largest = tuning.tile_tokens("split", dtype, rows, head_size)
    return AttentionPlan(False, min(largest, max(triton.next_power_of_2(longest), _SMALLEST_TILE)))


@triton.jit
def only_finite(v):
    """The rows of `v` with 0 for infinities and NaN, and per row a float32 0, or NaN where it had one.

    A weight of 0 does not hide another sentence's NaN: 0 * NaN is NaN. So the product gets finite values, and scores
    get the flag added, which reaches the rows that see the value.
    """
    flags = tl.sum(v.to(tl.float32) * 0.0, axis=1)
    return tl.where(tl.abs(v) < float("inf"), v, 0.0), flags


@triton.jit(do_not_specialize=["num_heads"])
def qkv_attention_kernel(
    x_ptr, weight_ptr, bias_ptr, segments_ptr, tiles_ptr,
    out_ptr,
    num_heads, hidden_size, scale,
    x_row_stride, weight_row_stride, out_row_stride,
    HEAD_SIZE: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One head of one tile of whole sentences: projects its tokens to q, k, v, which never leave the program."""
    # heads of one tile run side by side and share its tokens in L2
    head = tl.program_id(0) % num_heads
    tile = tl.program_id(0) // num_heads
    start = tl.load(tiles_ptr + tile * 4)
    end = tl.load(tiles_ptr + tile * 4 + 1)
    if start >= end:
        return

    token_offs = start + tl.arange(0, BLOCK_T)
    token_mask = token_offs < end
    d_offs = tl.arange(0, BLOCK_D)
    d_mask = d_offs < HEAD_SIZE
    k_offs = tl.arange(0, BLOCK_K)
    model_size = num_heads * HEAD_SIZE  # rows of W_q, and of W_k and W_v behind it

    x_ptrs = x_ptr + token_offs[:, None].to(tl.int64) * x_row_stride + k_offs[None, :]
    weight_ptrs = weight_ptr + (head * HEAD_SIZE + d_offs)[None, :].to(tl.int64) * weight_row_stride + k_offs[:, None]
    part_stride = model_size.to(tl.int64) * weight_row_stride
    q = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
    k = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
    v = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
    for k_start in range(0, hidden_size, BLOCK_K):
        k_mask = k_offs < hidden_size - k_start
        if EVEN_K:
            x_mask = token_mask[:, None]
            weight_mask = d_mask[None, :]
        else:
            x_mask = token_mask[:, None] & k_mask[None, :]
            weight_mask = d_mask[None, :] & k_mask[:, None]
        x = tl.load(x_ptrs, mask=x_mask, other=0.0)
        q = tl.dot(x, tl.load(weight_ptrs, mask=weight_mask, other=0.0), q, input_precision="ieee")
        k = tl.dot(x, tl.load(weight_ptrs + part_stride, mask=weight_mask, other=0.0), k, input_precision="ieee")
        v = tl.dot(x, tl.load(weight_ptrs + 2 * part_stride, mask=weight_mask, other=0.0), v, input_precision="ieee")
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K

    dtype = x_ptr.dtype.element_ty
    bias_ptrs = bias_ptr + head * HEAD_SIZE + d_offs
    q += tl.load(bias_ptrs, mask=d_mask, other=0.0).to(tl.float32)[None, :]
    k += tl.load(bias_ptrs + model_size, mask=d_mask, other=0.0).to(tl.float32)[None, :]
    v += tl.load(bias_ptrs + 2 * model_size, mask=d_mask, other=0.0).to(tl.float32)[None, :]

    v, flags = only_finite(v.to(dtype))
    scores = tl.dot(q.to(dtype), tl.trans(k.to(dtype)), input_precision="ieee") * scale + flags[None, :]
    # rows beyond the tile are a segment of their own, so that no row is without a key
    query_segments = tl.load(segments_ptr + token_offs, mask=token_mask, other=-1)
    key_offs = start + tl.arange(0, BLOCK_T)
    key_segments = tl.load(segments_ptr + key_offs, mask=key_offs < end, other=-1)
    scores = tl.where(query_segments[:, None] == key_segments[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    context = tl.dot(weights.to(dtype), v, input_precision="ieee") / tl.sum(weights, axis=1)[:, None]
    out_ptrs = out_ptr + token_offs[:, None].to(tl.int64) * out_row_stride + head * HEAD_SIZE + d_offs[None, :]
    tl.store(out_ptrs, context.to(out_ptr.dtype.element_ty), mask=token_mask[:, None] & d_mask[None, :])


@triton.jit(do_not_specialize=["num_heads"])
def attention_kernel(
    qkv_ptr, segments_ptr, tiles_ptr,
    out_ptr,
    num_heads, scale,
    qkv_row_stride, out_row_stride,
    HEAD_SIZE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head of one tile by online softmax (Milakov & Gimelshein 2018), BLOCK_S keys at a time."""
    head = tl.program_id(0) % num_heads
    tile = tl.program_id(0) // num_heads
    query_start = tl.load(tiles_ptr + tile * 4)
    query_end = tl.load(tiles_ptr + tile * 4 + 1)
    key_start = tl.load(tiles_ptr + tile * 4 + 2)
    key_end = tl.load(tiles_ptr + tile * 4 + 3)
    if query_start >= query_end:
        return

    query_offs = query_start + tl.arange(0, BLOCK_T)
    query_mask = query_offs < query_end
    d_offs = tl.arange(0, BLOCK_D)
    d_mask = d_offs < HEAD_SIZE
    model_size = num_heads * HEAD_SIZE
    head_ptr = qkv_ptr + head * HEAD_SIZE
    q_ptrs = head_ptr + query_offs[:, None].to(tl.int64) * qkv_row_stride + d_offs[None, :]
    q = tl.load(q_ptrs, mask=query_mask[:, None] & d_mask[None, :], other=0.0)
    query_segments = tl.load(segments_ptr + query_offs, mask=query_mask, other=-1)

    largest = tl.full((BLOCK_T,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_T,), dtype=tl.float32)
    context = tl.zeros((BLOCK_T, BLOCK_D), dtype=tl.float32)
    for start in range(key_start, key_end, BLOCK_S):
        key_offs = start + tl.arange(0, BLOCK_S)
        key_mask = key_offs < key_end
        rows = key_offs.to(tl.int64) * qkv_row_stride
        k = tl.load(
            head_ptr + model_size + rows[None, :] + d_offs[:, None], mask=key_mask[None, :] & d_mask[:, None], other=0.0
        )
        v = tl.load(
            head_ptr + 2 * model_size + rows[:, None] + d_offs[None, :],
            mask=key_mask[:, None] & d_mask[None, :],
            other=0.0,
        )
        key_segments = tl.load(segments_ptr + key_offs, mask=key_mask, other=-2)
        v, flags = only_finite(v)
        scores = tl.dot(q, k, input_precision="ieee") * scale + flags[None, :]
        scores = tl.where(query_segments[:, None] == key_segments[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key of this segment so far
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(largest - shift)
        total = total * decay + tl.sum(weights, axis=1)
        context = tl.dot(weights.to(v.dtype), v, context * decay[:, None], input_precision="ieee")
        largest = new_largest

    context = context / tl.where(query_mask, total, 1.0)[:, None]
    out_ptrs = out_ptr + query_offs[:, None].to(tl.int64) * out_row_stride + head * HEAD_SIZE + d_offs[None, :]
    tl.store(out_ptrs, context.to(out_ptr.dtype.element_ty), mask=query_mask[:, None] & d_mask[None, :])


def qkv_attention_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    segments: Tensor,
    tiles: Tensor,
    num_heads: int,
    tile_tokens: int,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `qkv_attention`, into `out` (T, H), which must not overlap `x`. Rows that no tile holds are left alone."""
    head_size = weight.shape[0] // (3 * num_heads)
    if len(tiles) == 0:
        return
    config = tuning.config("qkv_attention", x.dtype, tile_tokens, head_size)
    qkv_attention_kernel[(len(tiles) * num_heads,)](
        x, weight, bias, segments, tiles,
        out,
        num_heads, x.shape[1], head_size**-0.5 * _LOG2_E,
        x.stride(0), weight.stride(0), out.stride(0),
        HEAD_SIZE=head_size, EVEN_K=x.shape[1] % config["BLOCK_K"] == 0,
        BLOCK_T=tile_tokens, BLOCK_D=head_block(head_size),
        **config,
    )  # fmt: skip


def attention_into(
    qkv: Tensor,
    segments: Tensor,
    tiles: Tensor,
    num_heads: int,
    tile_tokens: int,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `attention`, into `out` (T, H). Rows that no tile holds are left alone."""
    head_size = qkv.shape[1] // (3 * num_heads)
    if len(tiles) == 0:
        return
    config = tuning.config("attention", qkv.dtype, tile_tokens, head_size)
    attention_kernel[(len(tiles) * num_heads,)](
        qkv, segments, tiles,
        out,
        num_heads, head_size**-0.5 * _LOG2_E,
        qkv.stride(0), out.stride(0),
        HEAD_SIZE=head_size, BLOCK_T=tile_tokens, BLOCK_D=head_block(head_size),
        **config,
    )  # fmt: skip


def head_block(head_size: int) -> int:
    """Columns of a block that holds a head: a power of two, at least what a matrix instruction takes."""
    return max(triton.next_power_of_2(head_size), 16)


@torch.library.custom_op("fastsal::qkv_attention", mutates_args=())
def qkv_attention(
    x: Tensor, weight: Tensor, bias: Tensor, segments: Tensor, tiles: Tensor, num_heads: int, tile_tokens: int
) -> Tensor:
    """The contexts of all heads, ``softmax(q k^T / sqrt(head_size)) v``, for short sentences, projections included.

    Args:
        x: (T, K) with contiguous columns.
        weight, bias: (3 * H, K) and (3 * H,), the rows of query, key and value one after the other.
        segments: (T,) int32, the number of each token's sentence.
        tiles: (N, 4) int32 of whole sentences, see the module.
        tile_tokens: no tile has more tokens; a power of two, at least 16.

    Returns:
        (T, H) in the dtype of `x`; zeros for tokens that no tile holds.
    """
    out = x.new_zeros(x.shape[0], weight.shape[0] // 3)
    with torch.cuda.device_of(x):
        qkv_attention_into(x, weight, bias, segments, tiles, num_heads, tile_tokens, out, tuning_for(x.device))
    return out


@qkv_attention.register_fake
def _(x, weight, bias, segments, tiles, num_heads, tile_tokens):
    return x.new_empty(x.shape[0], weight.shape[0] // 3)


@torch.library.custom_op("fastsal::attention", mutates_args=())
def attention(qkv: Tensor, segments: Tensor, tiles: Tensor, num_heads: int, tile_tokens: int) -> Tensor:
    """As `qkv_attention` for sentences of any length, from projections (T, 3 * H)."""
    out = qkv.new_zeros(qkv.shape[0], qkv.shape[1] // 3)
    with torch.cuda.device_of(qkv):
        attention_into(qkv, segments, tiles, num_heads, tile_tokens, out, tuning_for(qkv.device))
    return out


@attention.register_fake
def _(qkv, segments, tiles, num_heads, tile_tokens):
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)
