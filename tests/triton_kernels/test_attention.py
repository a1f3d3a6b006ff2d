"""Attention kernels against plain PyTorch, sentence by sentence."""

from __future__ import annotations

import pytest
import torch
from kernel_case import DTYPES, TUNING, blocks_of, normal, poisoned, rounded
from tolerance import assert_as_exact_as_reference
from torch.nn import functional

from fastsal.kernels.triton.attention import attention_into, qkv_attention_into

SHORT = [1, 2, 15, 16, 17, 0, 31, 5, 32, 1]


def reference(qkv, lengths, num_heads):
    contexts = []
    for sentence in qkv.split(lengths):
        q, k, v = (part.unflatten(1, (num_heads, -1)).transpose(0, 1) for part in sentence.chunk(3, dim=1))
        weights = torch.softmax(q @ k.transpose(1, 2) * q.shape[2] ** -0.5, dim=-1)
        contexts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(contexts)


def check_attention(dtype, lengths, num_heads, head_size, block_tokens, scale=1.0):
    (qkv,) = rounded(dtype, normal(sum(lengths), 3 * num_heads * head_size, std=scale))
    _, segments, tiles, _ = blocks_of(lengths, block_tokens)
    out = poisoned(sum(lengths), num_heads * head_size, dtype=dtype)
    attention_into(qkv, segments, tiles, num_heads, block_tokens, out, TUNING)
    truth = reference(qkv.double(), lengths, num_heads)
    assert_as_exact_as_reference(out, reference(qkv, lengths, num_heads), truth)


def check_qkv_attention(dtype, lengths, num_heads, head_size, hidden_size, block_tokens, scale=1.0):
    model_size = num_heads * head_size
    (x,) = rounded(dtype, normal(sum(lengths), hidden_size))
    weight, bias = rounded(
        dtype, normal(3 * model_size, hidden_size, std=scale * hidden_size**-0.5), normal(3 * model_size)
    )
    _, segments, tiles, _ = blocks_of(lengths, block_tokens)
    out = poisoned(sum(lengths), model_size, dtype=dtype)
    qkv_attention_into(x, weight, bias, segments, tiles, num_heads, block_tokens, out, TUNING)
    truth = reference(functional.linear(x.double(), weight.double(), bias.double()), lengths, num_heads)
    assert_as_exact_as_reference(out, reference(functional.linear(x, weight, bias), lengths, num_heads), truth)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [8, 10, 26, 48, 64, 80, 96, 128])
def test_fused_head_sizes(dtype, head_size):
    check_qkv_attention(dtype, SHORT, 2, head_size, 2 * head_size, 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[1], [128], [127, 1], [64, 65, 63], [5] * 60])
@pytest.mark.parametrize("hidden_size", [26, 64])
def test_fused_lengths(dtype, lengths, hidden_size):
    check_qkv_attention(dtype, lengths, 1, 26, hidden_size, 128)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [8, 10, 26, 48, 64, 80, 96, 128, 256])
def test_tiled_head_sizes(dtype, head_size):
    check_attention(dtype, [*SHORT, 33, 70], 2, head_size, 32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[1], [127, 1, 128, 129], [511, 3, 512], [3, 200, 4, 5, 0, 130]])
def test_tiled_lengths(dtype, lengths):
    check_attention(dtype, lengths, 1, 16, 128)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_beyond_the_range_of_exp(dtype):
    check_attention(dtype, [1, 20, 33, 130], 1, 16, 64, scale=60)
    check_qkv_attention(dtype, [1, 20, 33], 1, 16, 16, 64, scale=60)


def attention_of(x, lengths, fused):
    """Contexts (T, 16) of one head for `x` (T, 16), with fixed weights."""
    _, segments, tiles, _ = blocks_of(lengths, 32)
    weight, bias = rounded(x.dtype, normal(48, 16, std=0.25), normal(48))
    out = poisoned(len(x), 16, dtype=x.dtype)
    if fused:
        qkv_attention_into(x, weight, bias, segments, tiles, 1, 32, out, TUNING)
    else:
        attention_into(functional.linear(x, weight, bias), segments, tiles, 1, 32, out, TUNING)
    return out


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("value", [3e4, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("fused", [False, True], ids=["split", "fused"])
def test_other_sentences_do_not_matter(dtype, value, fused):
    """Whatever is in one sentence, its neighbours in the tile keep every bit, and it shows in its own result."""
    (clean,) = rounded(dtype, normal(32, 16))
    odd = clean.clone()
    odd[9, 3] = value  # one number of one token
    expected, out = (attention_of(x, [5, 20, 7], fused) for x in (clean, odd))
    neighbours = [*range(5), *range(25, 32)]
    assert torch.equal(out[neighbours], expected[neighbours])
    assert out[5:25].isfinite().all() == (abs(value) < float("inf"))


def test_a_value_beyond_the_range_shows_in_its_sentence():
    """Where v alone overflows, queries and keys being finite, no finite number may hide it."""
    (qkv,) = rounded(torch.float16, normal(32, 48))
    qkv[9, 40] = float("inf")
    _, segments, tiles, _ = blocks_of([5, 20, 7], 32)
    out = poisoned(32, 16, dtype=torch.float16)
    attention_into(qkv, segments, tiles, 1, 32, out, TUNING)
    finite = out.isfinite().all(dim=1)
    assert not finite[5:25].any()
    assert finite[:5].all()
    assert finite[25:].all()
