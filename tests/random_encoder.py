"""Random encoders and batches for the kernel tests: EncoderSpec + EncoderWeights without any Hugging Face model."""

from __future__ import annotations

import torch
from torch import Tensor

from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear


def random_encoder(
    num_heads: int = 2,
    head_size: int = 8,
    intermediate_size: int = 40,
    embedding_size: int | None = None,
    schedule: tuple[int, ...] = (0, 1),
    activation: str = "gelu",
    vocab_size: int = 50,
    max_positions: int = 520,
    scale: float = 1.0,
    seed: int = 0,
) -> tuple[EncoderSpec, EncoderWeights]:
    """Weights whose layers keep activations near unit size, so that errors are those of rounding alone."""
    generator = torch.Generator().manual_seed(seed)
    hidden = num_heads * head_size
    width = hidden if embedding_size is None else embedding_size

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    def linear(rows: int, columns: int) -> Linear:
        return Linear(normal(rows, columns, std=scale * columns**-0.5), normal(rows, std=0.1))

    def norm(size: int) -> LayerNorm:
        return LayerNorm(1 + normal(size, std=0.1), normal(size, std=0.1))

    layers = tuple(
        LayerWeights(
            query=linear(hidden, hidden),
            key=linear(hidden, hidden),
            value=linear(hidden, hidden),
            attention_output=linear(hidden, hidden),
            attention_norm=norm(hidden),
            up=linear(intermediate_size, hidden),
            down=linear(hidden, intermediate_size),
            output_norm=norm(hidden),
        )
        for _ in range(max(schedule, default=-1) + 1)
    )
    weights = EncoderWeights(
        word_embeddings=normal(vocab_size, width),
        position_embeddings=normal(max_positions, width, std=0.3),
        type_embeddings=normal(2, width, std=0.3),
        embedding_norm=norm(width),
        mapping=None if embedding_size is None else linear(hidden, width),
        layers=layers,
    )
    spec = EncoderSpec(
        vocab_size=vocab_size,
        max_positions=max_positions,
        type_vocab_size=2,
        embedding_size=width,
        hidden_size=hidden,
        num_heads=num_heads,
        head_size=head_size,
        intermediate_size=intermediate_size,
        activation=activation,
        layer_norm_eps=1e-12,
        layer_schedule=schedule,
    )
    return spec, weights


def random_tokens(lengths: list[int], vocab_size: int = 50, seed: int = 0) -> list[Tensor]:
    """One tensor of random token ids per length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator) for length in lengths]


def random_batch(lengths: list[int], vocab_size: int = 50, seed: int = 0) -> PackedBatch:
    """Sentences of the given lengths with random ids and types."""
    tokens = random_tokens(lengths, vocab_size, seed)
    types = random_tokens(lengths, 2, seed + 1)
    return pack_token_lists(tokens, types)
