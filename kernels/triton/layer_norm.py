"""LayerNorm of a sum: matrix product + bias + residual, what follows a plain GEMM."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.kernels.triton.tuning import Tuning, tuning_for


@triton.jit
def normalize_rows(x, weight_ptr, bias_ptr, column_offs, num_columns, eps):
    """LayerNorm of the float32 rows of `x`, whose columns beyond `num_columns` are zeros."""
    column_mask = column_offs < num_columns
    # rounded division: `/` may be off by an ulp, and a row of one value would not be its own mean
    mean = tl.div_rn(tl.sum(x, axis=1), num_columns * 1.0)
    centered = tl.where(column_mask[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, axis=1) / (num_columns * 1.0)
    scale = 1 / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)
    return centered * scale[:, None] * weight[None, :] + bias[None, :]


@triton.jit(do_not_specialize=["num_rows"])
def residual_norm_kernel(
    x_ptr, bias_ptr, residual_ptr, norm_weight_ptr, norm_bias_ptr,
    out_ptr,
    num_rows, num_columns, eps,
    x_row_stride, residual_row_stride, out_row_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows per program; `out` may be `x` or `residual`."""
    row_offs = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column_offs = tl.arange(0, BLOCK_N)
    column_mask = column_offs < num_columns
    mask = (row_offs < num_rows)[:, None] & column_mask[None, :]
    x = tl.load(x_ptr + row_offs[:, None] * x_row_stride + column_offs[None, :], mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    if residual_ptr is not None:
        residual_ptrs = residual_ptr + row_offs[:, None] * residual_row_stride + column_offs[None, :]
        x += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
    y = normalize_rows(x, norm_weight_ptr, norm_bias_ptr, column_offs, num_columns, eps)
    out_ptrs = out_ptr + row_offs[:, None] * out_row_stride + column_offs[None, :]
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask)


def residual_norm_into(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `residual_norm`, into `out`, which may be `x` or `residual`."""
    num_rows, num_columns = x.shape
    if num_rows == 0:
        return
    config = tuning.config("residual_norm", x.dtype, num_rows, num_columns)
    residual_norm_kernel[(triton.cdiv(num_rows, config["BLOCK_M"]),)](
        x, bias, residual, norm_weight, norm_bias,
        out,
        num_rows, num_columns, eps,
        x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0),
        BLOCK_N=triton.next_power_of_2(num_columns),
        **config,
    )  # fmt: skip


@torch.library.custom_op("fastsal::residual_norm", mutates_args=())
def residual_norm(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> Tensor:
    """``layer_norm(x + bias + residual)`` over the columns.

    Args:
        x, residual: (T, N) with contiguous columns.
        bias, norm_weight, norm_bias: (N,).
    """
    out = x.new_empty(x.shape)
    with torch.cuda.device_of(x):
        residual_norm_into(x, bias, residual, norm_weight, norm_bias, eps, out, tuning_for(x.device))
    return out


@residual_norm.register_fake
def _(x, bias, residual, norm_weight, norm_bias, eps):
    return x.new_empty(x.shape)
