"""Candidates for every launch configuration, timed at a few numbers of rows for two hidden sizes.

A row's result has a list of candidates: what was tried, and its seconds or its error. `gpu_configuration` makes a
configuration file of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_configuration import shipped_tuning
from gpu_kernels import EPS, SENTENCE_TOKENS, Bench, Sizes
from gpu_rows import Row
from gpu_timing import Clock

from fastsal.kernels.triton.attention import attention_into, qkv_attention_into
from fastsal.kernels.triton.layer_norm import residual_norm_into
from fastsal.kernels.triton.linear import bias_activation_in_place, linear_into, project_norm_into
from fastsal.kernels.triton.tuning import Tuning

#: Half precision stands for both of its dtypes: they have the same instructions.
DTYPE = torch.bfloat16

#: Numbers of tokens that rules are made for; up to _WARM of them weights and activations stay in L2 between layers.
ROWS = (16, 64, 256, 1024, 4096, 16_384)
_WARM = 4096

SIZES = (Sizes(hidden=768, heads=12, wide=3072), Sizes(hidden=384, heads=12, wide=1536))

Config = dict[str, int]


def _matrix(m: int, n: int, k: int, warps: int, stages: int) -> Config:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "num_warps": warps, "num_stages": stages}


#: By the number of rows up to which they are tried.
LINEAR = {
    64: [
        _matrix(16, 16, 128, 2, 4), _matrix(16, 16, 256, 4, 3), _matrix(16, 32, 128, 4, 4), _matrix(16, 32, 256, 4, 3),
        _matrix(16, 64, 128, 4, 4), _matrix(64, 32, 128, 4, 4), _matrix(64, 64, 64, 4, 4),
    ],
    1024: [
        _matrix(64, 32, 128, 4, 4), _matrix(64, 64, 64, 4, 4), _matrix(64, 64, 128, 4, 3), _matrix(64, 128, 64, 4, 4),
        _matrix(64, 256, 64, 8, 3), _matrix(128, 64, 64, 4, 4), _matrix(128, 128, 64, 8, 3),
    ],
    16_384: [
        _matrix(64, 128, 64, 4, 4), _matrix(128, 64, 64, 4, 4), _matrix(128, 128, 64, 8, 3),
        # two programs per multiprocessor: one computes GELU while the other multiplies
        {**_matrix(128, 128, 64, 8, 3), "maxnreg": 128},
        _matrix(128, 128, 64, 8, 4), _matrix(128, 128, 64, 4, 3), _matrix(128, 256, 64, 8, 3),
        _matrix(128, 256, 64, 8, 4),
    ],
}  # fmt: skip

RESIDUAL_NORM = [
    {"BLOCK_M": rows, "num_warps": warps} for rows, warps in ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4), (8, 8))
]
BIAS_ACTIVATION = [
    {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": 4}
    for rows, columns in ((1, 1024), (4, 512), (4, 1024), (8, 512))
]
PROJECT_NORM = [
    {"BLOCK_M": m, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": warps, "num_stages": 3}
    for m, warps in ((64, 4), (128, 8))
]

#: (tokens of a tile, configuration).
FUSED = [
    (tile, {"BLOCK_K": k, "num_warps": warps, "num_stages": stages})
    for tile, k, warps, stages in (
        (16, 64, 2, 4), (16, 64, 4, 4), (16, 128, 4, 2), (32, 64, 4, 4), (64, 64, 4, 4), (64, 64, 8, 4),
        (128, 64, 8, 3),
    )
]  # fmt: skip
SPLIT = [
    (tile, {"BLOCK_S": s, "num_warps": warps, "num_stages": stages})
    for tile, s, warps, stages in (
        (16, 16, 1, 1), (16, 16, 2, 1), (32, 32, 1, 1), (32, 32, 2, 1), (32, 16, 2, 2), (64, 64, 4, 1), (64, 64, 4, 2),
        (64, 32, 4, 2), (128, 64, 8, 2), (128, 64, 4, 2),
    )
]  # fmt: skip


def linear_candidates(rows: int) -> list[Config]:
    return next(candidates for most, candidates in LINEAR.items() if rows <= most)


def rows() -> Iterator[Row]:
    """A row for each kernel, hidden size and number of rows."""
    for sizes in SIZES:
        for count in ROWS:
            for family in (_linear, _norm, _fused):
                name = family.__name__.strip("_")
                yield Row("sweep", f"sweep {name} {sizes.hidden} {count}", partial(family, sizes, count))
        for length in (SENTENCE_TOKENS, 512):
            yield Row("sweep", f"sweep split {sizes.hidden} {length}", partial(_split, sizes, length))


def _with(tuning: Tuning, kernel: str, config: Config) -> Tuning:
    return replace(tuning, kernels={**tuning.kernels, kernel: [{"config": config}]})


def _timed(clock: Clock, count: int, call: Callable[[], Any], **what: Any) -> dict[str, Any]:
    """`what` was tried, with its seconds, or with the error that the compiler or the launch gave."""
    try:
        return {**what, "seconds": clock.kernel(call, warm=count <= _WARM)}
    except RuntimeError as error:
        if not clock.rehearses:
            torch.cuda.synchronize()  # raises where the error was no mere refusal
        return {**what, "error": f"{type(error).__name__}: {error}"[:300]}


def _linear(sizes: Sizes, count: int, clock: Clock) -> dict[str, Any]:
    """The four products of a layer, each by Triton's candidates and by cuBLAS with what follows it."""
    tuning = shipped_tuning(clock)
    bench = Bench(sizes, DTYPE, clock, tuning)
    hidden, wide = sizes.hidden, sizes.wide
    x, y, residual, middle = (bench.random(count, width) for width in (hidden, hidden, hidden, wide))
    qkv, out = bench.empty(count, 3 * hidden), bench.empty(count, hidden)
    vector, wide_vector, qkv_vector = bench.random(hidden), bench.random(wide), bench.random(3 * hidden)
    square, up, down = (bench.random(*shape, std=0.03) for shape in ((hidden, hidden), (wide, hidden), (hidden, wide)))
    qkv_weight = bench.random(3 * hidden, hidden, std=0.03)
    activation = "gelu_tanh" if hidden == 768 else "gelu"

    def mm_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
        torch.mm(x, weight.t(), out=out)
        residual_norm_into(out, vector, residual, vector, vector, EPS, out, tuning)

    def mm_activation() -> None:
        torch.mm(y, up.t(), out=middle)
        bias_activation_in_place(middle, wide_vector, activation, tuning)

    products = {
        "qkv": (x, qkv_weight, qkv_vector, None, "linear", qkv),
        "attention_output": (x, square, vector, residual, "linear", out),
        "up": (y, up, wide_vector, None, activation, middle),
        "down": (middle, down, vector, residual, "linear", out),
    }
    cublas: dict[str, Callable[[], Any]] = {
        "qkv": lambda: torch.addmm(qkv_vector, x, qkv_weight.t(), out=qkv),
        "attention_output": lambda: mm_norm(x, square),
        "up": mm_activation,
        "down": lambda: mm_norm(middle, down),
    }
    result: dict[str, Any] = {}
    for stage, (inputs, weight, bias, added, function, target) in products.items():
        result[stage] = {
            "width": len(weight),
            "candidates": [
                _timed(
                    clock,
                    count,
                    lambda i=inputs, w=weight, b=bias, a=added, f=function, o=target, c=config: linear_into(
                        i, w, b, a, f, o, _with(tuning, "linear", c)
                    ),
                    config=config,
                )
                for config in linear_candidates(count)
            ],
            "cublas": _timed(clock, count, cublas[stage]),
        }
        if stage in ("attention_output", "down"):
            result[stage]["project_norm"] = [
                _timed(
                    clock,
                    count,
                    lambda i=inputs, w=weight, c=config: project_norm_into(
                        i, w, vector, residual, vector, vector, EPS, out, _with(tuning, "project_norm", c)
                    ),
                    config=config,
                )
                for config in PROJECT_NORM
            ]
    return result


def _norm(sizes: Sizes, count: int, clock: Clock) -> dict[str, Any]:
    """What follows a plain product."""
    tuning = shipped_tuning(clock)
    bench = Bench(sizes, DTYPE, clock, tuning)
    x, residual, out = (bench.random(count, sizes.hidden) for _ in range(3))
    middle, vector, wide_vector = bench.random(count, sizes.wide), bench.random(sizes.hidden), bench.random(sizes.wide)
    return {
        "residual_norm": {
            "width": sizes.hidden,
            "candidates": [
                _timed(
                    clock,
                    count,
                    lambda c=config: residual_norm_into(
                        x, vector, residual, vector, vector, EPS, out, _with(tuning, "residual_norm", c)
                    ),
                    config=config,
                )
                for config in RESIDUAL_NORM
            ],
        },
        "bias_activation": {
            "width": sizes.wide,
            "candidates": [
                _timed(
                    clock,
                    count,
                    lambda c=config: bias_activation_in_place(
                        middle, wide_vector, "gelu_tanh", _with(tuning, "bias_activation", c)
                    ),
                    config=config,
                )
                for config in BIAS_ACTIVATION
            ],
        },
    }


def _fused(sizes: Sizes, count: int, clock: Clock) -> dict[str, Any]:
    """QKV and attention in one kernel."""
    tuning = shipped_tuning(clock)
    bench = Bench(sizes, DTYPE, clock, tuning)
    length = min(SENTENCE_TOKENS, count)
    x, out = bench.random(count, sizes.hidden), bench.empty(count, sizes.hidden)
    weight, bias = bench.random(3 * sizes.hidden, sizes.hidden, std=0.03), bench.random(3 * sizes.hidden)
    candidates = []
    for tile, config in FUSED:
        segments, tiles, *_ = bench.blocks(count // length, length, tile)
        candidates.append(
            _timed(
                clock,
                count,
                lambda s=segments, t=tiles, size=tile, c=config: qkv_attention_into(
                    x, weight, bias, s, t, sizes.heads, size, out, _with(tuning, "qkv_attention", c)
                ),
                tile=tile,
                config=config,
            )
        )
    return {"width": sizes.hidden // sizes.heads, "candidates": candidates}


def _split(sizes: Sizes, length: int, clock: Clock) -> dict[str, Any]:
    """Attention on projections in memory, for sentences of `length` tokens, beside SDPA without padding."""
    tuning = shipped_tuning(clock)
    bench = Bench(sizes, DTYPE, clock, tuning)
    sentences = ROWS[-1] // length
    qkv, out = bench.random(sentences * length, 3 * sizes.hidden), bench.empty(sentences * length, sizes.hidden)
    candidates = []
    for tile, config in SPLIT:
        segments, tiles, *_ = bench.blocks(sentences, length, tile)
        candidates.append(
            _timed(
                clock,
                len(qkv),
                lambda s=segments, t=tiles, size=tile, c=config: attention_into(
                    qkv, s, t, sizes.heads, size, out, _with(tuning, "attention", c)
                ),
                tile=tile,
                config=config,
            )
        )
    q, k, v = qkv.view(sentences, length, 3, sizes.heads, -1).permute(2, 0, 3, 1, 4)
    sdpa = _timed(clock, len(qkv), lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    return {"width": sizes.hidden // sizes.heads, "rows": len(qkv), "candidates": candidates, "sdpa": sdpa}
