"""The Triton kernels beside torch on the same inputs, each checked against float64; and the ways to compute a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from gpu_timing import Clock, ratio
from tolerance import assert_as_exact_as_reference
from torch import Tensor
from torch.nn import functional

from fastsal.engine.packing import token_blocks
from fastsal.engine.pooling import Convolution
from fastsal.kernels.triton.attention import attention_into, qkv_attention_into
from fastsal.kernels.triton.conv_pool import BLOCK_TOKENS, conv_pool_into, pack_convolutions
from fastsal.kernels.triton.layer_norm import residual_norm_into
from fastsal.kernels.triton.linear import bias_activation_in_place, linear_into, project_norm_into
from fastsal.kernels.triton.pooling import pool_into
from fastsal.kernels.triton.tuning import Tuning

#: Tokens of a sentence: the mean of the STS benchmark's. All are equal, so that the rivals have no padding.
SENTENCE_TOKENS = 15

EPS = 1e-12


@dataclass(frozen=True)
class Sizes:
    """A layer's, and how many sentences of SENTENCE_TOKENS and of `long_tokens` tokens there are."""

    hidden: int = 768
    heads: int = 12
    wide: int = 3072
    channels: int = 256
    sentences: int = 2184
    long_sentences: int = 64
    long_tokens: int = 512


REHEARSAL = Sizes(hidden=32, heads=2, wide=48, channels=16, sentences=6, long_sentences=2, long_tokens=40)


class Bench:
    """Random weights and inputs of one dtype."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, clock: Clock, tuning: Tuning) -> None:
        self.sizes, self.dtype, self.clock, self.tuning = sizes, dtype, clock, tuning
        self._generator = torch.Generator(clock.device).manual_seed(0)

    def random(self, *shape: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*shape, device=self.clock.device, generator=self._generator) * std).to(self.dtype)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(*shape, device=self.clock.device, dtype=dtype or self.dtype)

    def blocks(self, count: int, length: int, block_tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """segments, tiles, blocks, cu_seqlens of `count` sentences of `length` tokens."""
        cu_seqlens = torch.arange(0, count * length + 1, length)
        blocks = token_blocks(cu_seqlens.numpy(), block_tokens)
        parts = (torch.from_numpy(array) for array in (blocks.segments, blocks.tiles(), blocks.blocks))
        segments, tiles, rows = (part.to(self.clock.device) for part in parts)
        return segments, tiles, rows, cu_seqlens.int().to(self.clock.device)

    def compare(
        self,
        name: str,
        ours: dict[str, Callable[[], Tensor]],
        rivals: dict[str, Callable[[], Tensor]],
        truth: Callable[[], Tensor],
    ) -> dict[str, Any]:
        """Check each of `ours` against the truth with the first rival's error as the measure, then time all.

        Raises:
            AssertionError: a result is further off than section 3 of the design allows.
        """
        exact = truth()
        reference = next(iter(rivals.values()))().to(self.dtype)
        for call in ours.values():
            assert_as_exact_as_reference(call().to(self.dtype), reference, exact)
        del exact, reference
        times = {label: self.clock.kernel(call) for label, call in {**ours, **rivals}.items()}
        best = [
            min((times[label] for label in group if times[label] is not None), default=None) for group in (ours, rivals)
        ]
        return {"kernel": name, "seconds": times, "times_faster": ratio(best[1], best[0])}


def comparisons(sizes: Sizes, dtype: torch.dtype, clock: Clock, tuning: Tuning) -> list[dict[str, Any]]:
    """One row per kernel."""
    bench = Bench(sizes, dtype, clock, tuning)
    return [
        row(bench)
        for row in (_short_attention, _long_attention, _linear_activation, _project_norm, _conv_pool, _mean_pool)
    ]


def _sdpa(qkv: Tensor, count: int, heads: int) -> Tensor:
    q, k, v = qkv.view(count, -1, 3, heads, qkv.shape[1] // (3 * heads)).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(qkv), -1)


def _short_attention(bench: Bench) -> dict[str, Any]:
    s, tuning = bench.sizes, bench.tuning
    x, weight = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden), bench.random(3 * s.hidden, s.hidden, std=0.03)
    bias, out = bench.random(3 * s.hidden), bench.empty(len(x), s.hidden)
    segments, tiles, *_ = bench.blocks(s.sentences, SENTENCE_TOKENS, tuning.block_tokens)

    def fused() -> Tensor:
        qkv_attention_into(x, weight, bias, segments, tiles, s.heads, tuning.block_tokens, out, tuning)
        return out

    def split() -> Tensor:
        qkv = torch.addmm(bias, x, weight.t())
        attention_into(qkv, segments, tiles, s.heads, tuning.block_tokens, out, tuning)
        return out

    return bench.compare(
        "QKV + attention, 15 tokens",
        {"fused": fused, "cuBLAS + tiled": split},
        {"linear + SDPA, no padding": lambda: _sdpa(functional.linear(x, weight, bias), s.sentences, s.heads)},
        lambda: _sdpa(functional.linear(x.double(), weight.double(), bias.double()), s.sentences, s.heads),
    )


def _long_attention(bench: Bench) -> dict[str, Any]:
    s, tuning = bench.sizes, bench.tuning
    qkv = bench.random(s.long_sentences * s.long_tokens, 3 * s.hidden)
    out = bench.empty(len(qkv), s.hidden)
    segments, tiles, _, cu_seqlens = bench.blocks(s.long_sentences, s.long_tokens, tuning.block_tokens)

    def tiled() -> Tensor:
        attention_into(qkv, segments, tiles, s.heads, tuning.block_tokens, out, tuning)
        return out

    rivals = {"SDPA, no padding": lambda: _sdpa(qkv, s.long_sentences, s.heads)}
    if not bench.clock.rehearses:
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError:
            pass
        else:
            q, k, v = (part.view(len(qkv), s.heads, -1) for part in qkv.chunk(3, dim=1))
            longest = s.long_tokens
            rivals["varlen_attn"] = lambda: varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest).flatten(1)
    return bench.compare(
        f"attention, {s.long_tokens} tokens",
        {"tiled": tiled},
        rivals,
        lambda: _sdpa(qkv.double(), s.long_sentences, s.heads),
    )


def _linear_activation(bench: Bench) -> dict[str, Any]:
    s, tuning = bench.sizes, bench.tuning
    x, weight = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden), bench.random(s.wide, s.hidden, std=0.03)
    bias, out = bench.random(s.wide), bench.empty(len(x), s.wide)

    def fused() -> Tensor:
        linear_into(x, weight, bias, None, "gelu_tanh", out, tuning)
        return out

    def epilogue() -> Tensor:
        torch.mm(x, weight.t(), out=out)
        bias_activation_in_place(out, bias, "gelu_tanh", tuning)
        return out

    return bench.compare(
        "linear + GELU",
        {"fused": fused, "cuBLAS + epilogue": epilogue},
        {"linear, gelu": lambda: functional.gelu(functional.linear(x, weight, bias), approximate="tanh")},
        lambda: functional.gelu(functional.linear(x.double(), weight.double(), bias.double()), approximate="tanh"),
    )


def _project_norm(bench: Bench) -> dict[str, Any]:
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
    return bench.compare(
        "linear + residual + LayerNorm",
        {"one kernel": fused, "two kernels": two, "cuBLAS + epilogue": epilogue},
        {"linear, add, layer_norm": lambda: plain(*inputs)},
        lambda: plain(*(tensor.double() for tensor in inputs)),
    )


def _conv_pool(bench: Bench) -> dict[str, Any]:
    s, tuning = bench.sizes, bench.tuning
    x = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden)
    convolutions = [
        Convolution(bench.random(s.channels, s.hidden, k, std=(s.hidden * k) ** -0.5), bench.random(s.channels))
        for k in (1, 3, 5)
    ]
    packed = pack_convolutions(convolutions, bench.dtype, bench.clock.device)
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

    return bench.compare(
        "CNN (1, 3, 5) + max",
        {"conv_pool": fused},
        {"Conv1d, cat, max, no padding": lambda: plain(bench.dtype)},
        lambda: plain(torch.float64),
    )


def _mean_pool(bench: Bench) -> dict[str, Any]:
    s = bench.sizes
    x = bench.random(s.sentences * SENTENCE_TOKENS, s.hidden)
    *_, cu_seqlens = bench.blocks(s.sentences, SENTENCE_TOKENS, BLOCK_TOKENS)
    out = bench.empty(s.sentences, s.hidden, dtype=torch.float32)

    def ours() -> Tensor:
        pool_into(x, cu_seqlens, "mean", 0, True, out, bench.tuning)
        return out

    def plain(x: Tensor) -> Tensor:
        return functional.normalize(x.view(s.sentences, SENTENCE_TOKENS, s.hidden).mean(dim=1), dim=1)

    return bench.compare(
        "mean + normalise", {"pool": ours}, {"mean, normalize": lambda: plain(x)}, lambda: plain(x.double())
    )


def stage_times(sizes: Sizes, dtype: torch.dtype, clock: Clock, tuning: Tuning, rows: int) -> dict[str, dict[str, Any]]:
    """For each stage of a layer the seconds of each way to compute it for `rows` tokens."""
    bench = Bench(sizes, dtype, clock, tuning)
    hidden, wide, heads, tile = sizes.hidden, sizes.wide, sizes.heads, tuning.block_tokens
    length = min(SENTENCE_TOKENS, rows)
    count = rows // length
    rows = count * length
    x, residual, out = bench.random(rows, hidden), bench.random(rows, hidden), bench.empty(rows, hidden)
    middle, qkv = bench.random(rows, wide), bench.empty(rows, 3 * hidden)
    scale, shift, bias = (bench.random(hidden) for _ in range(3))
    square, up, down = (bench.random(*shape, std=0.03) for shape in ((hidden, hidden), (wide, hidden), (hidden, wide)))
    up_bias, qkv_bias, qkv_weight = bench.random(wide), bench.random(3 * hidden), bench.random(3 * hidden, hidden)
    segments, tiles, *_ = bench.blocks(count, length, tile)

    def project(way: str, x: Tensor, weight: Tensor) -> Callable[[], None]:
        def call() -> None:
            if way == "fused":
                project_norm_into(x, weight, bias, residual, scale, shift, EPS, out, tuning)
            elif way == "triton":
                linear_into(x, weight, bias, residual, "linear", out, tuning)
                residual_norm_into(out, None, None, scale, shift, EPS, out, tuning)
            else:
                torch.mm(x, weight.t(), out=out)
                residual_norm_into(out, bias, residual, scale, shift, EPS, out, tuning)

        return call

    def up_cublas() -> None:
        torch.mm(x, up.t(), out=middle)
        bias_activation_in_place(middle, up_bias, "gelu_tanh", tuning)

    def split() -> None:
        torch.addmm(qkv_bias, x, qkv_weight.t(), out=qkv)
        attention_into(qkv, segments, tiles, heads, tile, out, tuning)

    ways: dict[str, dict[str, Callable[[], None]]] = {
        "attention": {
            "fused": lambda: qkv_attention_into(
                x, qkv_weight, qkv_bias, segments, tiles, heads, tile, out, tuning
            ),
            "split": split,
        },
        "qkv": {
            "triton": lambda: linear_into(x, qkv_weight, qkv_bias, None, "linear", qkv, tuning),
            "cublas": lambda: torch.addmm(qkv_bias, x, qkv_weight.t(), out=qkv),
        },
        "attention_output": {way: project(way, x, square) for way in ("triton", "cublas", "fused")},
        "up": {
            "triton": lambda: linear_into(x, up, up_bias, None, "gelu_tanh", middle, tuning),
            "cublas": up_cublas,
        },
        "down": {way: project(way, middle, down) for way in ("triton", "cublas", "fused")},
    }  # fmt: skip
    return {stage: {way: clock.kernel(call) for way, call in calls.items()} for stage, calls in ways.items()}


def measured_choices(
    measurements: dict[int, dict[str, dict[str, Any]]], shipped: dict[str, list[dict[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Rules for a configuration file: the fastest way up to each number of rows, like neighbours joined.

    float32 and heads wider than the measured keep the shipped rules.
    """
    choices = {}
    for stage, old in shipped.items():
        rules: list[dict[str, Any]] = []
        for rows in sorted(measurements):
            times = measurements[rows][stage]
            best = min(times, key=times.__getitem__)
            if rules and rules[-1]["use"] == best:
                rules[-1]["max_rows"] = rows
            else:
                rules.append({"dtype": "half", "max_rows": rows, "use": best})
        del rules[-1]["max_rows"]
        if stage == "attention":
            rules = [{**rule, "max_width": 64} for rule in rules] + [{"dtype": "half", "use": "split"}]
        fallback = next(rule["use"] for rule in reversed(old) if rule.get("dtype") in (None, "float32"))
        single = next((rule["use"] for rule in old if rule.get("dtype") == "float32"), fallback)
        choices[stage] = [*rules, {"use": single}]
    return choices
