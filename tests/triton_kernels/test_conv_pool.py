"""Convolution + pooling in one kernel against Conv1d on each sentence alone, then plain pooling."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DTYPES, TUNING, blocks_of, normal, poisoned, rounded
from tolerance import assert_as_exact_as_reference

from fastsal.backends.reference import pool_padded
from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec
from fastsal.kernels.triton.conv_pool import BLOCK_TOKENS, conv_pool_into, pack_convolutions

LENGTHS = [4, 17, 5, 33, 65, 7]


def convolution(dtype, hidden, kernel_size, channels=20, stride=1, bias=True):
    weight, shift = rounded(
        dtype, normal(channels, hidden, kernel_size, std=(hidden * kernel_size) ** -0.5), normal(channels)
    )
    return Convolution(weight, shift if bias else None, stride)


def reference(x, lengths, convolutions, mode, skip):
    spec = PoolingSpec((mode,), convolutions, skip)
    rows = []
    for sentence in x.split(lengths):
        mask = torch.ones(1, len(sentence), dtype=torch.bool, device=x.device)
        rows.append(pool_padded(sentence[None], mask, spec))
    return torch.cat(rows)


def check(dtype, lengths, convolutions, mode="max", skip=0, hidden=26):
    (x,) = rounded(dtype, normal(sum(lengths), hidden))
    blocks, segments, _, cu_seqlens = blocks_of(lengths, BLOCK_TOKENS)
    packed = pack_convolutions(convolutions, dtype, x.device)
    out = poisoned(len(lengths), packed.num_channels, dtype=torch.float32)
    rows = torch.from_numpy(blocks.blocks).to(x.device)
    conv_pool_into(x, packed.weight, packed.bias, packed.table, segments, cu_seqlens, rows, mode, skip, out, TUNING)
    truth = reference(x.double(), lengths, convolutions, mode, skip)
    finite = truth.isfinite()
    assert torch.equal(out[~finite], truth[~finite].float())
    assert_as_exact_as_reference(
        out[finite], reference(x, lengths, convolutions, mode, skip)[finite].to(dtype), truth[finite]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", "mean"])
@pytest.mark.parametrize("kernel_sizes", [(1,), (3,), (1, 3, 5), (7, 3), (2,), (4,)])
def test_kernel_sizes(dtype, mode, kernel_sizes):
    check(dtype, LENGTHS, tuple(convolution(dtype, 26, k) for k in kernel_sizes), mode)


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("skip", [0, 20])
def test_modes(mode, skip):
    check(torch.float32, LENGTHS, (convolution(torch.float32, 26, 3),), mode, skip)


@pytest.mark.parametrize("mode", ["max", "mean", "lasttoken"])
@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 2), (3, 3), (1, 2), (5, 4), (2, 2)])
def test_strides(mode, kernel_size, stride):
    check(torch.float32, LENGTHS, (convolution(torch.float32, 26, kernel_size, stride=stride),), mode, skip=1)


@pytest.mark.parametrize(("channels", "hidden"), [(1, 26), (64, 64), (70, 200)])
def test_channels_and_widths(channels, hidden):
    convolutions = tuple(convolution(torch.float16, hidden, k, channels, bias=k > 1) for k in (1, 3))
    check(torch.float16, [4, 129], convolutions, hidden=hidden)


def test_without_bias():
    check(torch.float32, LENGTHS, (convolution(torch.float32, 26, 3, bias=False),))


def test_sentences_without_tokens():
    (x,) = rounded(torch.float32, normal(6, 26))
    blocks, segments, _, cu_seqlens = blocks_of([0, 6, 0], BLOCK_TOKENS)
    packed = pack_convolutions((convolution(torch.float32, 26, 3),), torch.float32, x.device)
    rows = torch.from_numpy(blocks.blocks).to(x.device)
    for mode, nothing in (("max", float("-inf")), ("mean", 0.0), ("cls", 0.0)):
        out = poisoned(3, 20, dtype=torch.float32)
        conv_pool_into(x, packed.weight, packed.bias, packed.table, segments, cu_seqlens, rows, mode, 0, out, TUNING)
        assert (out[[0, 2]] == nothing).all()
        assert out[1].isfinite().all()


def test_maximum_of_negative_values_is_not_zero():
    conv = convolution(torch.float32, 26, 3)
    conv = Convolution(conv.weight * 0.01, torch.full_like(conv.bias, -5.0))
    check(torch.float32, LENGTHS, (conv,))
