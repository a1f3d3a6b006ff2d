"""Whole models on the GPU: fastsal beside Hugging Face, torch.compile and sentence-transformers."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gpu_configuration import chosen_tuning, shipped_tuning
from gpu_rows import Row
from gpu_timing import Clock
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import WORDS, unigram_tokenizer
from tolerance import assert_as_exact_as_reference
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel, PretrainedConfig

import fastsal
from fastsal.backends import triton_encoder
from fastsal.engine.pooling import Convolution, PoolingSpec
from fastsal.kernels.triton.tuning import Tuning

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


QUERY = Load("one sentence of 12 tokens", 1, 12)
SMALL = Load("512 sentences", 512)
LARGE = Load("16384 sentences", 16384)
LONG = Load("256 x 512 tokens", 256, 512)
#: What float32 gets for LARGE.
MEDIUM = Load("2048 sentences", 2048)

#: What stands for each in a rehearsal.
REHEARSED = Load("3 sentences", 3)


@dataclass(frozen=True)
class Subject:
    """A model: its configuration and the channels of a CNN behind it, 0 for mean pooling."""

    config: PretrainedConfig
    channels: int = 0

    def build(self, dtype: torch.dtype, device: torch.device, attention: str = "sdpa") -> nn.Module:
        torch.manual_seed(0)
        cls = AlbertModel if isinstance(self.config, AlbertConfig) else BertModel
        config = copy.deepcopy(self.config)
        config._attn_implementation = attention
        return cls(config, add_pooling_layer=False).eval().to(device, dtype)

    def pooling(self, dtype: torch.dtype, device: torch.device) -> PoolingSpec:
        if not self.channels:
            return PoolingSpec(("mean",))
        generator = torch.Generator().manual_seed(0)
        hidden = self.config.hidden_size
        weights = [torch.randn(self.channels, hidden, k, generator=generator) * (hidden * k) ** -0.5 for k in (1, 3, 5)]
        return PoolingSpec(("max",), tuple(Convolution(weight.to(device, dtype), None) for weight in weights))


_BASE = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072}
SUBJECTS = {
    "ALBERT-base": Subject(AlbertConfig(vocab_size=30000, embedding_size=128, **_BASE)),
    "MiniLM": Subject(
        BertConfig(hidden_size=384, num_attention_heads=12, num_hidden_layers=6, intermediate_size=1536)
    ),
    "BERT-base": Subject(BertConfig(**_BASE)),
    "SALBERT with CNN": Subject(AlbertConfig(vocab_size=30000, embedding_size=128, **_BASE), channels=256),
}  # fmt: skip
_TINY = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 60}
REHEARSED_SUBJECTS = {
    name: Subject(type(subject.config)(**_TINY), channels=min(subject.channels, 16))
    for name, subject in SUBJECTS.items()
}


def operations(config: PretrainedConfig, lengths: np.ndarray) -> int:
    """Of the encoder's matrix products for the tokens that there are, padding not counted."""
    hidden, wide = config.hidden_size, config.intermediate_size
    per_token = config.num_hidden_layers * (8 * hidden * hidden + 4 * hidden * wide)
    attention = config.num_hidden_layers * 4 * hidden * int((lengths.astype(np.int64) ** 2).sum())
    width = getattr(config, "embedding_size", hidden)
    mapping = 2 * width * hidden if width != hidden else 0
    return int(lengths.sum()) * (per_token + mapping) + attention


def pooled(states: Tensor, mask: Tensor, pooling: PoolingSpec) -> Tensor:
    """A rival's embeddings from padded states (B, S, H) and a mask (B, S)."""
    if not pooling.convolutions:
        weights = mask[..., None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)
    columns = (states * mask[..., None]).transpose(1, 2)
    outputs = [nn.functional.conv1d(columns, c.weight, padding=(c.kernel_size - 1) // 2) for c in pooling.convolutions]
    return torch.cat(outputs, dim=1).masked_fill(~mask[:, None].bool(), float("-inf")).amax(2)


def rival(model: Callable[..., Any], batches: list[tuple[Tensor, Tensor]], pooling: PoolingSpec) -> Tensor:
    """Hugging Face's embeddings of padded batches, one after the other."""
    return torch.cat(
        [pooled(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, pooling) for ids, mask in batches]
    )


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


class Setting:
    """A model, a load and a dtype, ready to be run by fastsal and by rivals."""

    def __init__(self, name: str, load: Load, dtype: torch.dtype, clock: Clock, tuning: Tuning) -> None:
        self.clock, self.dtype = clock, dtype
        self.subject = (REHEARSED_SUBJECTS if clock.rehearses else SUBJECTS)[name]
        self.load = REHEARSED if clock.rehearses else load
        self.lengths = self.load.lengths()
        generator = np.random.default_rng(1)
        self.token_lists = [generator.integers(5, self.subject.config.vocab_size, length) for length in self.lengths]
        self.model = self.subject.build(dtype, clock.device)
        self.pooling = self.subject.pooling(dtype, clock.device)
        self.tuning = tuning

    def fastsal(self, tuning: Tuning | None = None) -> Callable[[], Tensor]:
        """From token lists on the host, packing included."""
        fast = fastsal.accelerate(copy.deepcopy(self.model), backend="triton", strict=True)
        chosen = tuning or self.tuning

        @torch.no_grad()
        def run(lists: list[np.ndarray] = self.token_lists) -> Tensor:
            return fast.sentence_embeddings(lists, pooling=self.pooling)

        with mock.patch.object(triton_encoder, "tuning_for", return_value=chosen):
            run(self.token_lists[:1])  # the first call prepares the encoder, which keeps its configuration
        return run

    def hugging_face(self, attention: str) -> Callable[[], Tensor]:
        """From padded batches that are on the GPU already."""
        model = self.subject.build(self.dtype, self.clock.device, attention)
        batches = padded_batches(self.token_lists, self.clock.device)

        @torch.no_grad()
        def run() -> Tensor:
            return rival(model, batches, self.pooling)

        return run

    @torch.no_grad()
    def check(self, run: Callable[[list[np.ndarray]], Tensor]) -> None:
        """Compare 8 sentences with float64, one by one; raises an AssertionError."""
        chosen = sorted(self.token_lists, key=len, reverse=True)[:: max(len(self.token_lists) // 8, 1)]
        ours = run(chosen)
        if self.clock.rehearses:
            return
        exact, wide = copy.deepcopy(self.model).double(), self.subject.pooling(torch.float64, self.clock.device)
        alone = [padded_batches([tokens], self.clock.device) for tokens in chosen]
        truth = torch.cat([rival(exact, batch, wide) for batch in alone])
        reference = torch.cat([rival(self.model, batch, self.pooling) for batch in alone])
        assert_as_exact_as_reference(ours, reference, truth)


def rows(part: str, folder: Path, configuration: Path | None) -> Iterator[Row]:
    """The rows of a part; `configuration` is what is measured, by default the file that the sweep left in `folder`."""
    measured = configuration or _file_in(folder)
    if part == "encoder":
        for dtype in (torch.bfloat16, torch.float32, torch.float16):
            for name in SUBJECTS:
                for load in (MEDIUM if dtype == torch.float32 else LARGE, SMALL, QUERY):
                    yield _row(part, name, load, dtype, partial(_beside_hugging_face, measured=measured))
        yield _row(part, "ALBERT-base", LONG, torch.bfloat16, partial(_beside_hugging_face, measured=measured))
        for count in (512, 16384):
            yield Row(part, f"encode {count} texts", partial(_from_text, count))
    elif part == "verify":
        for name in ("ALBERT-base", "MiniLM"):
            for load in (LARGE, SMALL, QUERY):
                yield _row(part, name, load, torch.bfloat16, partial(_beside_shipped, measured=measured))
    elif part == "profile":
        for name in ("ALBERT-base", "MiniLM"):
            yield _row(part, name, LARGE, torch.bfloat16, partial(_profile, measured=measured))
    elif part == "compile":
        for name in ("ALBERT-base", "MiniLM"):
            for load, mode in ((QUERY, "reduce-overhead"), (SMALL, "default")):
                yield _row(part, name, load, torch.bfloat16, partial(_compiled, mode=mode))


def _file_in(folder: Path) -> Path | None:
    file = folder / "h200.json"
    return file if file.exists() else None


def _row(part: str, name: str, load: Load, dtype: torch.dtype, measure: Callable[..., dict[str, Any]]) -> Row:
    label = str(dtype).removeprefix("torch.")
    return Row(part, f"{part} {name} {load.name} {label}", partial(measure, name, load, dtype))


def _beside_hugging_face(
    name: str, load: Load, dtype: torch.dtype, clock: Clock, measured: Path | None
) -> dict[str, Any]:
    setting = Setting(name, load, dtype, clock, chosen_tuning(measured, clock))
    run = setting.fastsal()
    setting.check(run)
    times = {"fastsal": clock.wall(run)}
    for attention in ("sdpa", "eager"):
        times[f"hf_{attention}"] = clock.wall(setting.hugging_face(attention))
    return {
        "model": name,
        "load": load.name,
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": int(setting.lengths.sum()),
        "operations": operations(setting.subject.config, setting.lengths),
        "times": times,
    }


def _beside_shipped(name: str, load: Load, dtype: torch.dtype, clock: Clock, measured: Path | None) -> dict[str, Any]:
    """What the measured configuration gains over the one in the package."""
    setting = Setting(name, load, dtype, clock, chosen_tuning(measured, clock))
    run = setting.fastsal()
    setting.check(run)
    times = {"measured": clock.wall(run), "shipped": clock.wall(setting.fastsal(shipped_tuning(clock)))}
    return {"model": name, "load": load.name, "times": times}


def _profile(name: str, load: Load, dtype: torch.dtype, clock: Clock, measured: Path | None) -> dict[str, Any]:
    """Calls and GPU microseconds of each kernel in one pass."""
    setting = Setting(name, load, dtype, clock, chosen_tuning(measured, clock))
    run = setting.fastsal()
    for _ in range(2):
        run()
    if clock.rehearses:
        return {"kernels": []}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    found = [
        {"kernel": event.key, "calls": event.count, "microseconds": event.self_device_time_total}
        for event in profile.key_averages()
        if event.self_device_time_total > 0
    ]
    return {"kernels": sorted(found, key=lambda kernel: -kernel["microseconds"])}


def _compiled(name: str, load: Load, dtype: torch.dtype, clock: Clock, mode: str) -> dict[str, Any]:
    setting = Setting(name, load, dtype, clock, shipped_tuning(clock))
    if clock.rehearses:
        return {"model": name, "load": load.name, "times": {}}
    batches = padded_batches(setting.token_lists, clock.device)
    traced = torch.compile(setting.model, mode=mode, dynamic=mode == "default")

    @torch.no_grad()
    def run() -> Tensor:
        return rival(traced, batches, setting.pooling)

    return {"model": name, "load": load.name, "times": {f"torch.compile {mode}": clock.wall(run)}}


def _from_text(count: int, clock: Clock) -> dict[str, Any]:
    """SentenceEncoder.encode beside SentenceTransformer.encode, ALBERT-base."""
    dtype = torch.bfloat16
    subject = (REHEARSED_SUBJECTS if clock.rehearses else SUBJECTS)["ALBERT-base"]
    tokenizer = unigram_tokenizer()
    config = AlbertConfig(**{**subject.config.to_dict(), "vocab_size": len(tokenizer)})
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint")
        Subject(config).build(torch.float32, torch.device("cpu")).save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        modules = [Transformer(str(checkpoint)), Pooling(config.hidden_size, pooling_mode="mean")]
        plain = SentenceTransformer(modules=modules, device="cpu").to(clock.device, dtype)
    plain.max_seq_length = config.max_position_embeddings
    fast = fastsal.accelerate(copy.deepcopy(plain), backend="triton")
    generator = np.random.default_rng(2)
    lengths = Load("", 3 if clock.rehearses else count).lengths() - 2  # [CLS] and [SEP] come by themselves
    texts = [" ".join(generator.choice(WORDS, length)) for length in lengths]
    calls = {
        name: partial(model.encode, texts, batch_size=BATCH, convert_to_tensor=True)
        for name, model in (("fastsal", fast), ("sentence_transformers", plain))
    }
    ours, theirs = (call().float() for call in calls.values())
    if not clock.rehearses and not torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99:
        raise AssertionError("encode gives other embeddings than sentence-transformers")
    return {
        "model": "ALBERT-base",
        "load": f"encode {count} texts",
        "dtype": "bfloat16",
        "times": {name: clock.wall(call) for name, call in calls.items()},
    }
