"""A whole ALBERT on the GPU: fastsal beside Hugging Face, torch.compile and sentence-transformers."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_timing import Clock, ratio
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import WORDS, unigram_tokenizer
from tolerance import assert_as_exact_as_reference
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

import fastsal

#: Rows of a rival's batch; sentences are sorted by length first, as sentence-transformers does.
BATCH = 256

#: Words per sentence are drawn so that lengths have the mean and spread of the STS benchmark's: 15 tokens, 6 to 60.
_MEAN_TOKENS, _LEAST_TOKENS, _MOST_TOKENS = 15, 6, 60


@dataclass(frozen=True)
class Load:
    """What is encoded: sentences of STS lengths, or `length` tokens each."""

    name: str
    count: int
    length: int | None = None

    def lengths(self) -> np.ndarray:
        if self.length is not None:
            return np.full(self.count, self.length)
        draw = np.random.default_rng(0).gamma(2.5, (_MEAN_TOKENS - _LEAST_TOKENS) / 2.5, self.count)
        return np.clip(_LEAST_TOKENS + draw.round().astype(int), _LEAST_TOKENS, _MOST_TOKENS)


LOADS = (
    Load("one sentence of 12 tokens", 1, 12),
    Load("32 sentences", 32),
    Load("512 sentences", 512),
    Load("16384 sentences", 16384),
    Load("256 x 512 tokens", 256, 512),
)
REHEARSAL_LOADS = (Load("one sentence", 1, 12), Load("5 sentences", 5), Load("2 x 40 tokens", 2, 40))

ALBERT_BASE = AlbertConfig(
    vocab_size=30000, embedding_size=128, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
    intermediate_size=3072,
)  # fmt: skip
REHEARSAL_CONFIG = AlbertConfig(
    vocab_size=60, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=64,
)  # fmt: skip


def operations(config: AlbertConfig, lengths: np.ndarray) -> int:
    """Of the matrix products for the tokens that there are, padding not counted."""
    hidden, wide = config.hidden_size, config.intermediate_size
    per_token = config.num_hidden_layers * (8 * hidden * hidden + 4 * hidden * wide)
    attention = config.num_hidden_layers * 4 * hidden * int((lengths.astype(np.int64) ** 2).sum())
    return int(lengths.sum()) * (per_token + 2 * config.embedding_size * hidden) + attention


def seeded_model(config: AlbertConfig, dtype: torch.dtype, device: torch.device) -> AlbertModel:
    torch.manual_seed(0)
    return AlbertModel(config, add_pooling_layer=False).eval().to(device, dtype)


def mean_pooled(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Hugging Face's embeddings of padded batches, one after the other."""
    results = []
    for ids, mask in batches:
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        results.append((states * weights).sum(1) / weights.sum(1))
    return torch.cat(results)


def padded_batches(token_lists: list[np.ndarray], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Sorted by length, longest first, BATCH rows each, on the device already."""
    ordered = sorted(token_lists, key=len, reverse=True)
    batches = []
    for start in range(0, len(ordered), BATCH):
        rows = ordered[start : start + BATCH]
        ids = np.zeros((len(rows), len(rows[0])), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        batches.append((torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)))
    return batches


@torch.no_grad()
def from_tokens(
    clock: Clock, dtype: torch.dtype, peak: float | None, loads: tuple[Load, ...] | None = None, compiled: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row per load: seconds from token lists to pooled embeddings on the GPU.

    The rivals' batches are padded and on the GPU beforehand; our packing on the host counts. `compiled` adds
    torch.compile as a rival, which takes a minute or more.
    """
    config = REHEARSAL_CONFIG if clock.rehearses else ALBERT_BASE
    model = seeded_model(config, dtype, clock.device)
    fast = fastsal.accelerate(copy.deepcopy(model), backend="triton", strict=True)
    exact = copy.deepcopy(model).double()
    for load in loads or (REHEARSAL_LOADS if clock.rehearses else LOADS):
        lengths = load.lengths()
        generator = np.random.default_rng(1)
        token_lists = [generator.integers(5, config.vocab_size, length) for length in lengths]
        batches = padded_batches(token_lists, clock.device)
        ordered = sorted(token_lists, key=len, reverse=True)

        check = ordered[:: max(len(ordered) // 8, 1)]
        alone = [(torch.from_numpy(tokens)[None].to(clock.device),) for tokens in check]
        truth, reference = (
            torch.cat([mean_pooled(m, [(ids, torch.ones_like(ids))]) for (ids,) in alone]) for m in (exact, model)
        )
        ours = fast.sentence_embeddings(check, normalize=False)
        assert_as_exact_as_reference(ours, reference, truth)

        def fastsal_run(lists: list[np.ndarray] = token_lists) -> Tensor:
            return fast.sentence_embeddings(lists, normalize=False)

        calls: dict[str, Callable[[], Tensor]] = {
            "fastsal": fastsal_run,
            "hf_sdpa": lambda b=batches: mean_pooled(model, b),
        }
        if compiled:
            traced = torch.compile(model, dynamic=True)
            calls["torch_compile"] = lambda m=traced, b=batches: mean_pooled(m, b)
        seconds = {name: clock.wall(call) for name, call in calls.items()}
        work = operations(config, lengths)
        yield {
            "load": load.name,
            "dtype": str(dtype).removeprefix("torch."),
            "tokens": int(lengths.sum()),
            "seconds": seconds,
            "times_hf_sdpa": ratio(seconds["hf_sdpa"], seconds["fastsal"]),
            "times_torch_compile": ratio(seconds.get("torch_compile"), seconds["fastsal"]),
            "fraction_of_peak": None if peak is None or not seconds["fastsal"] else work / seconds["fastsal"] / peak,
        }


def from_text(clock: Clock, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield a row per number of texts: SentenceEncoder.encode beside SentenceTransformer.encode."""
    tokenizer = unigram_tokenizer()
    options = {"vocab_size": len(tokenizer)}
    config = REHEARSAL_CONFIG if clock.rehearses else ALBERT_BASE
    config = AlbertConfig(**{**config.to_dict(), **options})
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint")
        seeded_model(config, torch.float32, torch.device("cpu")).save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        modules = [Transformer(str(checkpoint)), Pooling(config.hidden_size, pooling_mode="mean")]
        plain = SentenceTransformer(modules=modules, device="cpu").to(clock.device, dtype)
        plain.max_seq_length = config.max_position_embeddings
        fast = fastsal.accelerate(copy.deepcopy(plain), backend="triton")
        for count in (3,) if clock.rehearses else (512, 16384):
            generator = np.random.default_rng(2)
            lengths = Load("", count).lengths() - 2  # [CLS] and [SEP] come by themselves
            texts = [" ".join(generator.choice(WORDS, length)) for length in lengths]
            calls: dict[str, Callable[[], Tensor]] = {
                name: lambda m=model, t=texts: m.encode(t, batch_size=BATCH, convert_to_tensor=True)
                for name, model in (("fastsal", fast), ("sentence_transformers", plain))
            }
            ours, theirs = (call().float() for call in calls.values())
            if not torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99:
                raise AssertionError("encode gives other embeddings than sentence-transformers")
            seconds = {name: clock.wall(call) for name, call in calls.items()}
            yield {
                "load": f"encode {count} texts",
                "dtype": str(dtype).removeprefix("torch."),
                "seconds": seconds,
                "times_sentence_transformers": ratio(seconds["sentence_transformers"], seconds["fastsal"]),
            }
