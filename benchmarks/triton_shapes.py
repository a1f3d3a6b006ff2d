"""The launches that the Triton backend makes at real models' shapes, with the bytes and operations of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsal.engine.pooling import POOLING_MODES
from fastsal.kernels.triton.attention import attention_into, qkv_attention_into
from fastsal.kernels.triton.conv_pool import BLOCK_CHANNELS, BLOCK_TOKENS, conv_pool_into
from fastsal.kernels.triton.embeddings import embed_into
from fastsal.kernels.triton.layer_norm import residual_norm_into
from fastsal.kernels.triton.linear import bias_activation_in_place, linear_into, project_norm_into
from fastsal.kernels.triton.pooling import normalize_in_place, pool_into
from fastsal.kernels.triton.tuning import Tuning

#: Mean number of tokens in the STS benchmark's sentences, special tokens included.
STS_TOKENS = 15

#: The CNN of sentence-transformers' defaults.
CNN_CHANNELS, CNN_KERNEL_SIZES = 256, (1, 3, 5)


@dataclass(frozen=True)
class Model:
    """Sizes of an encoder."""

    hidden_size: int
    num_heads: int
    intermediate_size: int
    embedding_size: int
    activation: str
    vocab_size: int = 30000


MODELS = {
    "albert-base": Model(768, 12, 3072, 128, "gelu_tanh"),
    "bert-base": Model(768, 12, 3072, 768, "gelu"),
    "minilm": Model(384, 12, 1536, 384, "gelu"),
}


@dataclass(frozen=True)
class Case:
    """One launch.

    Attributes:
        name: what it computes.
        launch: makes it, with tensors on the meta device.
        bytes: that must move between memory and the chip, each tensor once.
        operations: multiplications and additions of matrix products, padding not counted.
    """

    name: str
    launch: Callable[[], None]
    bytes: int
    operations: int

    @property
    def multiplies(self) -> bool:
        return self.operations > 0


def attention_cases(
    head_size: int, num_heads: int, num_tokens: int, dtype: torch.dtype, tuning: Tuning
) -> Iterator[Case]:
    """The tiled attention with each tile that sentences of some length get, which are so long or STS_TOKENS."""
    model_size = head_size * num_heads
    qkv = torch.empty(num_tokens, 3 * model_size, dtype=dtype, device="meta")
    out = torch.empty(num_tokens, model_size, dtype=dtype, device="meta")
    segments = torch.empty(num_tokens, dtype=torch.int32, device="meta")
    tile_tokens = 16
    while tile_tokens <= tuning.tile_tokens("split", dtype, num_tokens, head_size):
        tiles = torch.empty(-(-num_tokens // tile_tokens), 4, dtype=torch.int32, device="meta")
        yield Case(
            f"attention_{tile_tokens}",
            lambda size=tile_tokens, tiles=tiles: attention_into(qkv, segments, tiles, num_heads, size, out, tuning),
            bytes=4 * num_tokens * model_size * dtype.itemsize,
            operations=4 * num_tokens * min(STS_TOKENS, num_tokens) * model_size,
        )
        tile_tokens *= 2


def cases(model: Model, num_tokens: int, dtype: torch.dtype, tuning: Tuning) -> Iterator[Case]:
    """All kernels for `num_tokens` tokens in sentences of STS_TOKENS tokens."""
    hidden, wide, heads, width = model.hidden_size, model.intermediate_size, model.num_heads, model.embedding_size
    size, tokens = dtype.itemsize, num_tokens
    sentences = max(tokens // STS_TOKENS, 1)
    tile = tuning.tile_tokens("fused", dtype, tokens, hidden // heads)

    def floats(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    def integers(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.int32, device="meta")

    def singles(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float32, device="meta")

    x, residual, out = floats(tokens, hidden), floats(tokens, hidden), floats(tokens, hidden)
    middle = floats(tokens, wide)
    qkv = floats(tokens, 3 * hidden)
    vector, wide_vector = floats(hidden), floats(wide)
    numbers, cu_seqlens = integers(tokens), integers(sentences + 1)
    tiles = integers(-(-tokens // tile), 4)

    mapping = (None, None) if width == hidden else (floats(hidden, width), vector)
    yield Case(
        "embed" if width == hidden else "embed_map",
        lambda: embed_into(
            numbers, numbers, numbers, None, floats(model.vocab_size, width), floats(512, width), floats(2, width),
            floats(width), floats(width), *mapping, 1e-12, out, tuning,
        ),
        bytes=tokens * (12 + (width + hidden) * size),
        operations=0 if width == hidden else 2 * tokens * width * hidden,
    )  # fmt: skip
    yield Case(
        "qkv_attention",
        lambda: qkv_attention_into(
            x, floats(3 * hidden, hidden), floats(3 * hidden), numbers, tiles, heads, tile, out, tuning
        ),
        bytes=(2 * tokens * hidden + 3 * hidden * hidden) * size,
        operations=2 * tokens * 3 * hidden * hidden + 4 * tokens * min(STS_TOKENS, tokens) * hidden,
    )
    yield from attention_cases(hidden // heads, heads, tokens, dtype, tuning)
    for name, weight, rows, epilogue, result in (
        ("linear_qkv", floats(3 * hidden, hidden), x, (floats(3 * hidden), None, "linear"), qkv),
        ("linear_residual", floats(hidden, hidden), x, (vector, residual, "linear"), out),
        ("linear_up", floats(wide, hidden), x, (wide_vector, None, model.activation), middle),
        ("linear_down", floats(hidden, wide), middle, (vector, residual, "linear"), out),
    ):
        bias, added, activation = epilogue
        yield Case(
            name,
            lambda w=weight, r=rows, b=bias, a=added, f=activation, o=result: linear_into(r, w, b, a, f, o, tuning),
            bytes=(weight.numel() + rows.numel() + result.numel() + (0 if added is None else added.numel())) * size,
            operations=2 * tokens * weight.numel(),
        )
    yield Case(
        "project_norm",
        lambda: project_norm_into(
            x, floats(hidden, hidden), vector, residual, vector, vector, 1e-12, out, tuning
        ),
        bytes=(3 * tokens * hidden + hidden * hidden) * size,
        operations=2 * tokens * hidden * hidden,
    )  # fmt: skip
    yield Case(
        "residual_norm",
        lambda: residual_norm_into(x, vector, residual, vector, vector, 1e-12, out, tuning),
        bytes=3 * tokens * hidden * size,
        operations=0,
    )
    yield Case(
        "bias_activation",
        lambda: bias_activation_in_place(middle, wide_vector, model.activation, tuning),
        bytes=2 * tokens * wide * size,
        operations=0,
    )
    for mode in POOLING_MODES:
        yield Case(
            f"pool_{mode}",
            lambda mode=mode: pool_into(x, cu_seqlens, mode, 0, True, singles(sentences, hidden), tuning),
            bytes=tokens * hidden * size + sentences * hidden * 4,
            operations=0,
        )
    channels = CNN_CHANNELS * len(CNN_KERNEL_SIZES)
    weight_rows = CNN_CHANNELS * sum(CNN_KERNEL_SIZES)
    for mode in POOLING_MODES:
        yield Case(
            f"conv_pool_{mode}",
            lambda mode=mode: conv_pool_into(
                x, floats(weight_rows, hidden), floats(channels), integers(channels // BLOCK_CHANNELS, 6), numbers,
                cu_seqlens, integers(-(-tokens // BLOCK_TOKENS), 4), mode, 0, singles(sentences, channels), tuning,
            ),
            bytes=(tokens * hidden + weight_rows * hidden) * size + sentences * channels * 4,
            operations=2 * tokens * weight_rows * hidden,
        )  # fmt: skip
    yield Case(
        "normalize",
        lambda: normalize_in_place(singles(sentences, channels)),
        bytes=2 * sentences * channels * 4,
        operations=0,
    )
