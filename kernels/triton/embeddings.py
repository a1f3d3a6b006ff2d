"""Word + position + type embeddings, LayerNorm, and ALBERT's projection to the hidden size, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.kernels.triton.layer_norm import normalize_rows
from fastsal.kernels.triton.tuning import Tuning, tuning_for

#: Widest embedding that the kernel maps in the same pass: a block of rows of it stays in registers.
MAX_MAPPED_WIDTH = 256


@triton.jit(do_not_specialize=["num_rows"])
def embed_kernel(
    ids_ptr, positions_ptr, types_ptr, vectors_ptr, word_table_ptr, position_table_ptr, type_table_ptr,
    norm_weight_ptr, norm_bias_ptr, map_weight_ptr, map_bias_ptr,
    out_ptr,
    num_rows, num_columns, embedding_size, eps,
    word_row_stride, position_row_stride, type_row_stride, vectors_row_stride, map_row_stride, out_row_stride,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows BLOCK_M * program_id(0) .. of the result. `vectors` replaces the word table where given (ids is then None);
    without a mapping (map_weight None) the result is the normalised embeddings."""
    row_offs = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = row_offs < num_rows
    column_offs = tl.arange(0, BLOCK_E)
    mask = row_mask[:, None] & (column_offs < embedding_size)[None, :]

    if vectors_ptr is None:
        ids = tl.load(ids_ptr + row_offs, mask=row_mask, other=0).to(tl.int64)
        word_ptrs = word_table_ptr + ids[:, None] * word_row_stride + column_offs[None, :]
    else:
        word_ptrs = vectors_ptr + row_offs[:, None] * vectors_row_stride + column_offs[None, :]
    positions = tl.load(positions_ptr + row_offs, mask=row_mask, other=0).to(tl.int64)
    types = tl.load(types_ptr + row_offs, mask=row_mask, other=0).to(tl.int64)
    position_ptrs = position_table_ptr + positions[:, None] * position_row_stride + column_offs[None, :]
    type_ptrs = type_table_ptr + types[:, None] * type_row_stride + column_offs[None, :]
    x = tl.load(word_ptrs, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(type_ptrs, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(position_ptrs, mask=mask, other=0.0).to(tl.float32)
    x = normalize_rows(x, norm_weight_ptr, norm_bias_ptr, column_offs, embedding_size, eps)

    if map_weight_ptr is None:
        out_ptrs = out_ptr + row_offs[:, None] * out_row_stride + column_offs[None, :]
        tl.store(out_ptrs, x.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        x = x.to(map_weight_ptr.dtype.element_ty)
        for n_start in range(0, num_columns, BLOCK_N):
            n_offs = n_start + tl.arange(0, BLOCK_N)
            n_mask = n_offs < num_columns
            weight_ptrs = map_weight_ptr + n_offs[None, :].to(tl.int64) * map_row_stride + column_offs[:, None]
            weight = tl.load(weight_ptrs, mask=n_mask[None, :] & (column_offs < embedding_size)[:, None], other=0.0)
            y = tl.dot(x, weight, input_precision="ieee")
            y += tl.load(map_bias_ptr + n_offs, mask=n_mask, other=0.0).to(tl.float32)[None, :]
            out_ptrs = out_ptr + row_offs[:, None] * out_row_stride + n_offs[None, :]
            tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & n_mask[None, :])


def embed_into(
    ids: Tensor | None,
    positions: Tensor,
    types: Tensor,
    vectors: Tensor | None,
    word_table: Tensor,
    position_table: Tensor,
    type_table: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    map_weight: Tensor | None,
    map_bias: Tensor | None,
    eps: float,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `embed`, into `out`: (T, H), or (T, embedding_size) without a mapping."""
    num_rows, embedding_size = positions.numel(), word_table.shape[1]
    if num_rows == 0:
        return
    kernel = "embed" if map_weight is None else "embed_map"
    config = tuning.config(kernel, out.dtype, num_rows, embedding_size)
    embed_kernel[(triton.cdiv(num_rows, config["BLOCK_M"]),)](
        ids, positions, types, vectors, word_table, position_table, type_table,
        norm_weight, norm_bias, map_weight, map_bias,
        out,
        num_rows, out.shape[1], embedding_size, eps,
        word_table.stride(0), position_table.stride(0), type_table.stride(0),
        0 if vectors is None else vectors.stride(0), 0 if map_weight is None else map_weight.stride(0), out.stride(0),
        BLOCK_E=max(triton.next_power_of_2(embedding_size), 16),
        **config,
    )  # fmt: skip


@torch.library.custom_op("fastsal::embed", mutates_args=())
def embed(
    ids: Tensor | None,
    positions: Tensor,
    types: Tensor,
    vectors: Tensor | None,
    word_table: Tensor,
    position_table: Tensor,
    type_table: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    map_weight: Tensor | None,
    map_bias: Tensor | None,
    eps: float,
) -> Tensor:
    """LayerNorm of the sum of three embeddings, then a linear map to the hidden size if one is given.

    Args:
        ids, positions, types: (T,) int32 or int64 rows of the tables; they are not checked here. `ids` is None where
            `vectors` (T, E) replaces the word embeddings.
        word_table, position_table, type_table: (rows, E).
        norm_weight, norm_bias: (E,).
        map_weight, map_bias: (H, E) and (H,) with E <= MAX_MAPPED_WIDTH, or None.

    Returns:
        (T, H), or (T, E) without a mapping, in the dtype of the tables.
    """
    out = _embed_result(positions, word_table, map_weight)
    with torch.cuda.device_of(out):
        embed_into(
            ids, positions, types, vectors, word_table, position_table, type_table,
            norm_weight, norm_bias, map_weight, map_bias, eps, out, tuning_for(out.device),
        )  # fmt: skip
    return out


@embed.register_fake
def _(
    ids, positions, types, vectors, word_table, position_table, type_table,
    norm_weight, norm_bias, map_weight, map_bias, eps,
):  # fmt: skip
    return _embed_result(positions, word_table, map_weight)


def _embed_result(positions: Tensor, word_table: Tensor, map_weight: Tensor | None) -> Tensor:
    width = word_table.shape[1] if map_weight is None else map_weight.shape[0]
    return word_table.new_empty(positions.shape[0], width)
