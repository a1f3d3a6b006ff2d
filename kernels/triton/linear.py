"""``y = activation(x @ weight.T + bias)``, with a residual, or with a residual and a LayerNorm over whole rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastsal.kernels.triton.activations import activate
from fastsal.kernels.triton.tuning import Tuning, tuning_for


@triton.jit
def multiply_tile(
    x_ptr, weight_ptr, row_offs, row_mask, column_offs, column_mask, num_inputs, x_row_stride, weight_row_stride,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) float32 of ``x @ weight.T``; EVEN_K: BLOCK_K divides num_inputs."""
    k_offs = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + row_offs[:, None].to(tl.int64) * x_row_stride + k_offs[None, :]
    weight_ptrs = weight_ptr + column_offs[None, :].to(tl.int64) * weight_row_stride + k_offs[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k_start in range(0, num_inputs, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs, mask=row_mask[:, None], other=0.0)
            weight = tl.load(weight_ptrs, mask=column_mask[None, :], other=0.0)
        else:
            k_mask = k_offs < num_inputs - k_start
            x = tl.load(x_ptrs, mask=row_mask[:, None] & k_mask[None, :], other=0.0)
            weight = tl.load(weight_ptrs, mask=column_mask[None, :] & k_mask[:, None], other=0.0)
        sums = tl.dot(x, weight, sums, input_precision="ieee")
        x_ptrs += BLOCK_K
        weight_ptrs += BLOCK_K
    return sums


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr,
    out_ptr,
    num_rows, num_columns, num_inputs,
    x_row_stride, weight_row_stride, residual_row_stride, out_row_stride,
    ACTIVATION: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One output tile per program; programs run down GROUP_M row blocks before the next column block, for the L2."""
    pid = tl.program_id(0)
    num_row_blocks = tl.cdiv(num_rows, BLOCK_M)
    group_size = GROUP_M * tl.cdiv(num_columns, BLOCK_N)
    first_block = pid // group_size * GROUP_M
    group_rows = tl.minimum(num_row_blocks - first_block, GROUP_M)
    row_block = first_block + pid % group_size % group_rows
    column_block = pid % group_size // group_rows

    row_offs = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column_offs = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask, column_mask = row_offs < num_rows, column_offs < num_columns
    y = multiply_tile(
        x_ptr, weight_ptr, row_offs, row_mask, column_offs, column_mask, num_inputs, x_row_stride, weight_row_stride,
        EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if bias_ptr is not None:
        y += tl.load(bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    y = activate(y, ACTIVATION, out_ptr.dtype.element_ty)
    mask = row_mask[:, None] & column_mask[None, :]
    if residual_ptr is not None:
        residual_ptrs = residual_ptr + row_offs[:, None] * residual_row_stride + column_offs[None, :]
        y += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + row_offs[:, None] * out_row_stride + column_offs[None, :], y.to(out_ptr.dtype.element_ty), mask=mask
    )


@triton.jit(do_not_specialize=["num_rows"])
def project_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr, norm_weight_ptr, norm_bias_ptr,
    out_ptr,
    num_rows, num_columns, num_inputs, eps,
    x_row_stride, weight_row_stride, residual_row_stride, out_row_stride,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_M whole rows per program: their sums go to `out`, statistics are merged per tile (Chan et al. 1979), then
    `out` is normalised in place while it is in cache. `out` must not be `x` or `residual`."""
    row_offs = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = row_offs < num_rows
    mean = tl.zeros((BLOCK_M,), dtype=tl.float32)
    deviation = tl.zeros((BLOCK_M,), dtype=tl.float32)  # sum of squared differences from the mean
    for n_start in range(0, num_columns, BLOCK_N):
        column_offs = n_start + tl.arange(0, BLOCK_N)
        column_mask = column_offs < num_columns
        mask = row_mask[:, None] & column_mask[None, :]
        y = multiply_tile(
            x_ptr, weight_ptr, row_offs, row_mask, column_offs, column_mask, num_inputs,
            x_row_stride, weight_row_stride, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        y += tl.load(bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)[None, :]
        residual_ptrs = residual_ptr + row_offs[:, None] * residual_row_stride + column_offs[None, :]
        y += tl.load(residual_ptrs, mask=mask, other=0.0).to(tl.float32)
        out_ptrs = out_ptr + row_offs[:, None] * out_row_stride + column_offs[None, :]
        tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask)

        count = tl.minimum(num_columns - n_start, BLOCK_N).to(tl.float32)
        seen = n_start * 1.0
        # rounded divisions, as in normalize_rows
        tile_mean = tl.div_rn(tl.sum(tl.where(mask, y, 0.0), axis=1), count)
        centered = tl.where(mask, y - tile_mean[:, None], 0.0)
        delta = tile_mean - mean
        mean += delta * tl.div_rn(count, seen + count)
        deviation += tl.sum(centered * centered, axis=1) + delta * delta * (seen * count / (seen + count))

    scale = 1 / tl.sqrt(deviation / (num_columns * 1.0) + eps)
    tl.debug_barrier()  # the rows are read back by other threads than wrote them
    for n_start in range(0, num_columns, BLOCK_N):
        column_offs = n_start + tl.arange(0, BLOCK_N)
        column_mask = column_offs < num_columns
        mask = row_mask[:, None] & column_mask[None, :]
        out_ptrs = out_ptr + row_offs[:, None] * out_row_stride + column_offs[None, :]
        y = tl.load(out_ptrs, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(norm_weight_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)
        bias = tl.load(norm_bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)
        y = (y - mean[:, None]) * scale[:, None] * weight[None, :] + bias[None, :]
        tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def bias_activation_kernel(
    x_ptr, bias_ptr,
    num_rows, num_columns,
    x_row_stride,
    ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``x = activation(x + bias)`` in place, what follows a plain GEMM."""
    num_column_blocks = tl.cdiv(num_columns, BLOCK_N)
    row_offs = (tl.program_id(0) // num_column_blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column_offs = tl.program_id(0) % num_column_blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    column_mask = column_offs < num_columns
    mask = (row_offs < num_rows)[:, None] & column_mask[None, :]
    x_ptrs = x_ptr + row_offs[:, None] * x_row_stride + column_offs[None, :]
    x = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(bias_ptr + column_offs, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    tl.store(x_ptrs, activate(x, ACTIVATION, x_ptr.dtype.element_ty).to(x_ptr.dtype.element_ty), mask=mask)


def linear_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `linear`, into `out` (T, N), which may be `residual` but not `x`."""
    (num_rows, num_inputs), num_columns = x.shape, weight.shape[0]
    if num_rows == 0:
        return
    config = tuning.config("linear", x.dtype, num_rows, num_columns)
    linear_kernel[(triton.cdiv(num_rows, config["BLOCK_M"]) * triton.cdiv(num_columns, config["BLOCK_N"]),)](
        x, weight, bias, residual,
        out,
        num_rows, num_columns, num_inputs,
        x.stride(0), weight.stride(0), 0 if residual is None else residual.stride(0), out.stride(0),
        ACTIVATION=activation, EVEN_K=num_inputs % config["BLOCK_K"] == 0,
        **config,
    )  # fmt: skip


def project_norm_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    out: Tensor,
    tuning: Tuning,
) -> None:
    """As `project_norm`, into `out` (T, N), which must not overlap `x` or `residual`."""
    (num_rows, num_inputs), num_columns = x.shape, weight.shape[0]
    if num_rows == 0:
        return
    config = tuning.config("project_norm", x.dtype, num_rows, num_columns)
    project_norm_kernel[(triton.cdiv(num_rows, config["BLOCK_M"]),)](
        x, weight, bias, residual, norm_weight, norm_bias,
        out,
        num_rows, num_columns, num_inputs, eps,
        x.stride(0), weight.stride(0), residual.stride(0), out.stride(0),
        EVEN_K=num_inputs % config["BLOCK_K"] == 0,
        **config,
    )  # fmt: skip


def bias_activation_in_place(x: Tensor, bias: Tensor, activation: str, tuning: Tuning) -> None:
    """``activation(x + bias)`` for (T, N) `x` with contiguous columns and (N,) `bias`, into `x`."""
    num_rows, num_columns = x.shape
    if num_rows == 0:
        return
    config = tuning.config("bias_activation", x.dtype, num_rows, num_columns)
    bias_activation_kernel[(triton.cdiv(num_rows, config["BLOCK_M"]) * triton.cdiv(num_columns, config["BLOCK_N"]),)](
        x, bias,
        num_rows, num_columns,
        x.stride(0),
        ACTIVATION=activation,
        **config,
    )  # fmt: skip


@torch.library.custom_op("fastsal::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str) -> Tensor:
    """``activation(x @ weight.T + bias) + residual``.

    Args:
        x: (T, K) with contiguous columns.
        weight: (N, K); bias: (N,) or None; residual: (T, N) or None.
        activation: one of `fastsal.engine.spec.ACTIVATIONS`.

    Returns:
        (T, N) in the dtype of `x`.
    """
    out = x.new_empty(x.shape[0], weight.shape[0])
    with torch.cuda.device_of(x):
        linear_into(x, weight, bias, residual, activation, out, tuning_for(x.device))
    return out


@linear.register_fake
def _(x, weight, bias, residual, activation):
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("fastsal::project_norm", mutates_args=())
def project_norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: float
) -> Tensor:
    """``layer_norm(x @ weight.T + bias + residual)``.

    Args:
        x: (T, K) with contiguous columns.
        weight: (N, K); bias, norm_weight, norm_bias: (N,); residual: (T, N).

    Returns:
        (T, N) in the dtype of `x`.
    """
    out = x.new_empty(residual.shape)
    with torch.cuda.device_of(x):
        project_norm_into(x, weight, bias, residual, norm_weight, norm_bias, eps, out, tuning_for(x.device))
    return out


@project_norm.register_fake
def _(x, weight, bias, residual, norm_weight, norm_bias, eps):
    return x.new_empty(residual.shape)
