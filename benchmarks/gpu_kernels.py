"""The Triton kernels beside torch on the same inputs, each checked against float64 and, in the sweep, timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_configuration import chosen_tuning
from gpu_rows import Row
from gpu_timing import Clock
from tolerance import assert_as_exact_as_reference
from torch import Tensor
from torch.nn import functional

from fastsal.engine.packing import token_blocks
from fastsal.engine.pooling import Convolution
from fastsal.kernels.triton.attention import attention_into, plan_attention, qkv_attention_into
from fastsal.kernels.triton.conv_pool import BLOCK_TOKENS, conv_pool_into, pack_convolutions
from fastsal.kernels.triton.embeddings import embed_into
from fastsal.kernels.triton.layer_norm import residual_norm_into
from fastsal.kernels.triton.linear import bias_activation_in_place, linear_into, project_norm_into
from fastsal.kernels.triton.pooling import pool_into
from fastsal.kernels.triton.tuning import Tuning

#: Tokens of a sentence: the mean of the STS benchmark's. All are equal, so that the rivals have no padding.
SENTENCE_TOKENS = 15

EPS = 1e-12

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Sizes:
    """A layer's, and how many sentences of SENTENCE_TOKENS and of `long_tokens` tokens there are."""

    hidden: int = 768
    heads: int = 12
    wide: int = 3072
    channels: int = 256
    sentences: int = 100
    long_sentences: int = 4
    long_tokens: int = 512


class Bench:
    """Random weights and inputs of one dtype; memory for results is full of NaN, so that what is not written shows."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, clock: Clock, tuning: Tuning) -> None:
        self.sizes, self.dtype, self.tuning = sizes, dtype, tuning
        self.device = clock.kernel_device

    def random(self, *shape: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*shape, device=self.device) * std).to(self.dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full(shape, float("nan"), device=self.device, dtype=dtype or self.dtype)

    def blocks(self, count: int, length: int, block_tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """segments, tiles, blocks, cu_seqlens of `count` sentences of `length` tokens."""
        cu_seqlens = torch.arange(0, count * length + 1, length)
        blocks = token_blocks(cu_seqlens.numpy(), block_tokens)
        parts = (torch.from_numpy(array) for array in (blocks.segments, blocks.tiles(), blocks.blocks))
        segments, tiles, rows = (part.to(self.device) for part in parts)
        return segments, tiles, rows, cu_seqlens.int().to(self.device)


@dataclass(frozen=True)
class Comparison:
    """The same result by our kernels, in one or more ways, by torch in the same dtype, and by torch in float64."""

    ours: dict[str, Callable[[], Tensor]]
    reference: Callable[[], Tensor]
    truth: Callable[[], Tensor]

    def check(self, dtype: torch.dtype) -> None:
        """Raise an AssertionError if one of ours is further off than the reference's error allows."""
        exact, reference = self.truth(), self.reference().to(dtype)
        for call in self.ours.values():
            out = call()
            if out.device.type != "meta":
                assert_as_exact_as_reference(out.to(dtype), reference, exact)
            out.fill_(float("nan"))  # the next way may write to the same memory


def smoke_rows(configuration: Path | None) -> Iterator[Row]:
    """A launch of each kernel per dtype, checked."""
    torch.manual_seed(0)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for case in COMPARISONS:
            yield Row("smoke", f"smoke {case.__name__.strip('_')} {name}", partial(_smoke, case, dtype, configuration))


def _smoke(
    case: Callable[[Bench], Comparison], dtype: torch.dtype, configuration: Path | None, clock: Clock
) -> dict[str, Any]:
    case(Bench(Sizes(), dtype, clock, chosen_tuning(configuration, clock))).check(dtype)
    return {"checked": True}


def _sdpa(qkv: Tensor, count: int, heads: int) -> Tensor:
    q, k, v = qkv.view(count, -1, 3, heads, qkv.shape[1] // (3 * heads)).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(qkv), -1)


def _short_attention(bench: Bench) -> Comparison:
    s, tuning = bench.sizes, bench.tuning
    x, weight = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden), bench.random(3 * s.hidden, s.hidden, std=0.03)
    bias, out = bench.random(3 * s.hidden), bench.empty(len(x), s.hidden)

    def fused() -> Tensor:
        size = tuning.tile_tokens("fused", bench.dtype, len(x), s.hidden // s.heads)
        segments, tiles, *_ = bench.blocks(s.sentences, SENTENCE_TOKENS, size)
        qkv_attention_into(x, weight, bias, segments, tiles, s.heads, size, out, tuning)
        return out

    def split() -> Tensor:
        qkv = torch.addmm(bias, x, weight.t())
        segments, tiles, *_ = bench.blocks(s.sentences, SENTENCE_TOKENS, 16)
        attention_into(qkv, segments, tiles, s.heads, 16, out, tuning)
        return out

    return Comparison(
        {"fused": fused, "cuBLAS + tiled": split},
        lambda: _sdpa(functional.linear(x, weight, bias), s.sentences, s.heads),
        lambda: _sdpa(functional.linear(x.double(), weight.double(), bias.double()), s.sentences, s.heads),
    )


def _long_attention(bench: Bench) -> Comparison:
    s, tuning = bench.sizes, bench.tuning
    qkv = bench.random(s.long_sentences * s.long_tokens, 3 * s.hidden)
    out = bench.empty(len(qkv), s.hidden)
    size = plan_attention(len(qkv), s.long_tokens, s.hidden // s.heads, bench.dtype, tuning).tile_tokens
    segments, tiles, *_ = bench.blocks(s.long_sentences, s.long_tokens, size)

    def tiled() -> Tensor:
        attention_into(qkv, segments, tiles, s.heads, size, out, tuning)
        return out

    return Comparison(
        {"tiled": tiled},
        lambda: _sdpa(qkv, s.long_sentences, s.heads),
        lambda: _sdpa(qkv.double(), s.long_sentences, s.heads),
    )


def _gelu(bench: Bench, approximate: str = "none") -> Comparison:
    s, tuning = bench.sizes, bench.tuning
    activation = {"none": "gelu", "tanh": "gelu_tanh"}[approximate]
    x, weight = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden), bench.random(s.wide, s.hidden, std=0.03)
    bias, out = bench.random(s.wide), bench.empty(len(x), s.wide)

    def fused() -> Tensor:
        linear_into(x, weight, bias, None, activation, out, tuning)
        return out

    def epilogue() -> Tensor:
        torch.mm(x, weight.t(), out=out)
        bias_activation_in_place(out, bias, activation, tuning)
        return out

    return Comparison(
        {"fused": fused, "cuBLAS + epilogue": epilogue},
        lambda: functional.gelu(functional.linear(x, weight, bias), approximate=approximate),
        lambda: functional.gelu(functional.linear(x.double(), weight.double(), bias.double()), approximate=approximate),
    )


def _gelu_tanh(bench: Bench) -> Comparison:
    return _gelu(bench, "tanh")


def _project_norm(bench: Bench) -> Comparison:
    s, tuning = bench.sizes, bench.tuning
    x, weight = bench.random(s.sentences * SENTENCE_TOKENS, s.wide), bench.random(s.hidden, s.wide, std=0.02)
    bias, scale, shift = (bench.random(s.hidden) for _ in range(3))
    residual, out = bench.random(len(x), s.hidden), bench.empty(len(x), s.hidden)

    def fused() -> Tensor:
        project_norm_into(x, weight, bias, residual, scale, shift, EPS, out, tuning)
        return out

    def two() -> Tensor:
        linear_into(x, weight, bias, residual, "linear", out, tuning)
        residual_norm_into(out, None, None, scale, shift, EPS, out, tuning)
        return out

    def epilogue() -> Tensor:
        torch.mm(x, weight.t(), out=out)
        residual_norm_into(out, bias, residual, scale, shift, EPS, out, tuning)
        return out

    def plain(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        total = functional.linear(x, weight, bias) + residual
        return functional.layer_norm(total, total.shape[-1:], scale, shift, EPS)

    inputs = (x, weight, bias, residual, scale, shift)
    return Comparison(
        {"one kernel": fused, "two kernels": two, "cuBLAS + epilogue": epilogue},
        lambda: plain(*inputs),
        lambda: plain(*(tensor.double() for tensor in inputs)),
    )


def _conv_pool(bench: Bench) -> Comparison:
    s, tuning = bench.sizes, bench.tuning
    x = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden)
    convolutions = [
        Convolution(bench.random(s.channels, s.hidden, k, std=(s.hidden * k) ** -0.5), bench.random(s.channels))
        for k in (1, 3, 5)
    ]
    packed = pack_convolutions(convolutions, bench.dtype, bench.device)
    segments, _, blocks, cu_seqlens = bench.blocks(s.sentences, SENTENCE_TOKENS, BLOCK_TOKENS)
    out = bench.empty(s.sentences, packed.num_channels, dtype=torch.float32)

    def fused() -> Tensor:
        conv_pool_into(x, packed.weight, packed.bias, packed.table, segments, cu_seqlens, blocks, "max", 0, out, tuning)
        return out

    def plain(dtype: torch.dtype) -> Tensor:
        columns = x.to(dtype).view(s.sentences, SENTENCE_TOKENS, s.hidden).transpose(1, 2)
        outputs = [
            functional.conv1d(columns, c.weight.to(dtype), c.bias.to(dtype), padding=(c.kernel_size - 1) // 2)
            for c in convolutions
            if c.bias is not None
        ]
        return torch.cat(outputs, dim=1).amax(dim=2)

    return Comparison({"conv_pool": fused}, lambda: plain(bench.dtype), lambda: plain(torch.float64))


def _mean_pool(bench: Bench) -> Comparison:
    s = bench.sizes
    x = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden)
    *_, cu_seqlens = bench.blocks(s.sentences, SENTENCE_TOKENS, BLOCK_TOKENS)
    out = bench.empty(s.sentences, s.hidden, dtype=torch.float32)

    def ours() -> Tensor:
        pool_into(x, cu_seqlens, "mean", 0, True, out, bench.tuning)
        return out

    def plain(x: Tensor) -> Tensor:
        return functional.normalize(x.view(s.sentences, SENTENCE_TOKENS, s.hidden).mean(dim=1), dim=1)

    return Comparison({"pool": ours}, lambda: plain(x), lambda: plain(x.double()))


def _embed(bench: Bench, width: int = 128) -> Comparison:
    s = bench.sizes
    count = s.sentences * SENTENCE_TOKENS
    tables = [bench.random(rows, width) for rows in (500, 512, 2)]
    scale, shift = bench.random(width), bench.random(width)
    weight, bias = bench.random(s.hidden, width, std=0.1), bench.random(s.hidden)
    numbers = [torch.randint(len(table), (count,), device=bench.device, dtype=torch.int32) for table in tables]
    out = bench.empty(count, s.hidden)

    def ours() -> Tensor:
        ids, positions, types = numbers
        embed_into(
            ids, positions, types, None, *tables, scale, shift, weight, bias, EPS, out, bench.tuning
        )  # fmt: skip
        return out

    def plain(dtype: torch.dtype) -> Tensor:
        x = sum(table.to(dtype)[rows.long()] for table, rows in zip(tables, numbers, strict=True))
        x = functional.layer_norm(x, (width,), scale.to(dtype), shift.to(dtype), EPS)
        return functional.linear(x, weight.to(dtype), bias.to(dtype))

    return Comparison({"embed": ours}, lambda: plain(bench.dtype), lambda: plain(torch.float64))


#: One per kernel family, together all kernels.
COMPARISONS = (
    _embed, _short_attention, _long_attention, _gelu, _gelu_tanh, _project_norm, _conv_pool, _mean_pool
)  # fmt: skip
