"""The kernels as torch.library operators: schema, fake implementations, tracing without graph breaks."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DEVICE, blocks_of, normal, rounded
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fastsal.engine.pooling import Convolution
from fastsal.kernels.triton.attention import attention, qkv_attention
from fastsal.kernels.triton.conv_pool import BLOCK_TOKENS, conv_pool, pack_convolutions
from fastsal.kernels.triton.embeddings import embed
from fastsal.kernels.triton.layer_norm import residual_norm
from fastsal.kernels.triton.linear import linear, project_norm
from fastsal.kernels.triton.pooling import pool


def operator_calls():
    """(operator, arguments) for each operator."""
    x, square, wide = rounded(torch.float32, normal(7, 16), normal(16, 16), normal(48, 16))
    vector, wide_vector = rounded(torch.float32, normal(16), normal(48))
    blocks, segments, tiles, cu_seqlens = blocks_of([3, 4], 16)
    ids = torch.zeros(7, dtype=torch.int32, device=DEVICE)
    packed = pack_convolutions((Convolution(wide.view(16, 16, 3), None),), torch.float32, x.device)
    rows = torch.from_numpy(blocks.blocks).to(DEVICE)
    assert blocks.block_tokens <= BLOCK_TOKENS
    return {
        "embed": (embed, (ids, ids, ids, None, square, square, square, vector, vector, wide, wide_vector, 1e-12)),
        "linear": (linear, (x, square, vector, x, "gelu")),
        "project_norm": (project_norm, (x, square, vector, x, vector, vector, 1e-12)),
        "residual_norm": (residual_norm, (x, vector, x, vector, vector, 1e-12)),
        "qkv_attention": (qkv_attention, (x, wide, wide_vector, segments, tiles, 2, 16)),
        "attention": (attention, (linear(x, wide, None, None, "linear"), segments, tiles, 2, 16)),
        "pool": (pool, (x, cu_seqlens, "mean", 0, True)),
        "conv_pool": (
            conv_pool,
            (x, packed.weight, None, packed.table, segments, cu_seqlens, rows, packed.num_channels, "max", 0),
        ),
    }


@pytest.mark.parametrize("name", operator_calls())
def test_operators_follow_the_rules(name):
    operator, arguments = operator_calls()[name]
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", operator_calls())
def test_fake_results_have_the_real_shapes(name):
    operator, arguments = operator_calls()[name]
    real = operator(*arguments)
    with FakeTensorMode() as mode:
        fake = operator(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


@pytest.mark.parametrize("name", operator_calls())
def test_operators_run_on_the_device_of_their_tensors(name, monkeypatch):
    """Triton launches on the current device, which may be another one."""
    entered = []
    real = torch.cuda.device_of

    def device_of(tensor):
        entered.append(tensor.device)
        return real(tensor)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    operator, arguments = operator_calls()[name]
    entered.clear()
    operator(*arguments)
    assert entered == [arguments[1].device]


def test_a_layer_of_operators_is_one_graph():
    calls = operator_calls()
    x, qkv, qkv_bias, segments, tiles, heads, block = calls["qkv_attention"][1]
    _, square, vector, *_ = calls["linear"][1]

    def layer(x: Tensor) -> Tensor:
        context = qkv_attention(x, qkv, qkv_bias, segments, tiles, heads, block)
        x = project_norm(context, square, vector, x, vector, vector, 1e-12)
        return residual_norm(linear(x, square, vector, None, "gelu"), None, x, vector, vector, 1e-12)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
