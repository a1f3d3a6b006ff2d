"""SBERT and SALBERT: sentence encoders from plain BERT and ALBERT checkpoints, as in arXiv 2101.10642."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar

import torch
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fastsal.sentence_transformers.sentence_encoder import SentenceEncoder

POOLINGS = ("cls", "mean", "max", "cnn")

#: The paper's CNN, with sentence-transformers' defaults.
_CNN_DEFAULTS: dict[str, Any] = {
    "out_channels": 256,
    "kernel_sizes": [1, 3, 5],
    "stride_sizes": None,
    "pooling": "max",
}


class _PaperModel(SentenceEncoder):
    """Builds the modules of SBERT and SALBERT."""

    _model_type: ClassVar[str]
    _other: ClassVar[str]

    def __init__(
        self,
        model: str | PathLike[str] | PreTrainedModel,
        pooling: str = "mean",
        cnn: Mapping[str, Any] | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        seed: int = 0,
        max_seq_length: int | None = None,
        dtype: str | torch.dtype | None = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        cnn_options = _check_pooling(pooling, cnn)
        if isinstance(model, PreTrainedModel):
            if tokenizer is None:
                raise ValueError("tokenizer must be given with a model that is loaded already")
            self._check_type(model.config.model_type, type(model).__name__)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                super().__init__(folder, dtype=dtype, backend=backend, **kwargs)
        else:
            if tokenizer is not None:
                raise ValueError("tokenizer must not be given with a checkpoint's name: it comes from the checkpoint")
            super().__init__(str(model), dtype=dtype, backend=backend, **kwargs)
        transformer = self[0]
        if not isinstance(transformer, Transformer):
            found = type(transformer).__name__
            raise ValueError(f"model must be a transformer checkpoint, {model!r} starts with a {found} module")
        self._check_type(transformer.config.model_type, repr(model))
        if max_seq_length is not None:
            positions = transformer.config.max_position_embeddings
            if not 0 < max_seq_length <= positions:
                raise ValueError(f"max_seq_length must be between 1 and the model's {positions}, got {max_seq_length}")
            self.max_seq_length = max_seq_length

        for name in list(self._modules)[1:]:
            del self._modules[name]
        parameter = next(transformer.parameters())
        for module in _modules_behind(transformer, pooling, cnn_options, seed):
            self.append(module.to(device=parameter.device, dtype=parameter.dtype))
        self.eval()

    @classmethod
    def _check_type(cls, model_type: str, what: str) -> None:
        if model_type != cls._model_type:
            hint = f"use fastsal.{cls._other}" if model_type in ("bert", "albert") else "use fastsal.SentenceEncoder"
            raise ValueError(f"{cls.__name__} needs a {cls._model_type!r} model, but {what} is {model_type!r}: {hint}")

    def _load_default_modules(self, *args: Any, **kwargs: Any) -> Any:
        # Without SentenceEncoder's notice that mean pooling is assumed: here the pooling is the caller's.
        return super(SentenceEncoder, self)._load_default_modules(*args, **kwargs)


class SBERT(_PaperModel):
    """A sentence encoder from a BERT checkpoint: four of the eight models of arXiv 2101.10642.

    Choi, Kim, Joe, Gwon, "Evaluation of BERT and ALBERT Sentence Embedding Performance on Downstream NLP Tasks" compare
    {BERT, ALBERT} x {[CLS], mean, siamese fine-tuned mean, siamese fine-tuned CNN}; `SALBERT` builds the other four.
    The fine-tuned ones start as this model with pooling "mean" or "cnn", trained then as any SentenceTransformer.

    Args:
        model: folder or Hugging Face Hub id of a checkpoint (of a sentence-transformers model only the encoder is
            taken), or a loaded Hugging Face model, whose weights are copied, together with its `tokenizer`.
        pooling: "cls" (the first token), "mean", "max" over the tokens, or "cnn": convolutions over the tokens, then
            pooling over their outputs.
        cnn: with ``pooling="cnn"`` only; any of ``out_channels`` (256, per kernel size), ``kernel_sizes`` ([1, 3, 5]),
            ``stride_sizes`` (1 each) and ``pooling`` ("max", or "mean").
        seed: of the CNN's initial weights.
        max_seq_length: longer texts are truncated to this number of tokens; None for the checkpoint's own.
        dtype, backend: see `fastsal.accelerate`.
        **kwargs: SentenceTransformer's other arguments (device, prompts, truncate_dim, model_kwargs, ...).

    Raises:
        ValueError: an unknown pooling, `cnn` without ``pooling="cnn"``, or a checkpoint of another type.
        OSError: a file of the checkpoint is missing, truncated or damaged.
    """

    _model_type = "bert"
    _other = "SALBERT"


class SALBERT(_PaperModel):
    """A sentence encoder from an ALBERT checkpoint; arguments and errors as in `SBERT`.

    With it four of the eight models of arXiv 2101.10642 are built: ALBERT with [CLS] or mean pooling, SALBERT (siamese
    fine-tuned mean) and CNN-SALBERT (siamese fine-tuned CNN).
    """

    _model_type = "albert"
    _other = "SBERT"


def _check_pooling(pooling: str, cnn: Mapping[str, Any] | None) -> dict[str, Any]:
    """The CNN's options with the defaults filled in."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {POOLINGS}, got {pooling!r}")
    if cnn is not None and pooling != "cnn":
        raise ValueError(f"cnn is an option of pooling='cnn', got it with pooling={pooling!r}")
    options = {**_CNN_DEFAULTS, **(cnn or {})}
    if unknown := options.keys() - _CNN_DEFAULTS:
        raise ValueError(f"cnn must hold only {tuple(_CNN_DEFAULTS)}, got {sorted(unknown)}")
    if options["pooling"] not in ("max", "mean"):
        raise ValueError(f"cnn['pooling'] must be 'max' or 'mean', got {options['pooling']!r}")
    kernel_sizes, stride_sizes = options["kernel_sizes"], options["stride_sizes"]
    if not kernel_sizes or min(kernel_sizes) < 1:
        raise ValueError(f"cnn['kernel_sizes'] must be positive numbers, got {kernel_sizes!r}")
    if stride_sizes is not None and (len(stride_sizes) != len(kernel_sizes) or min(stride_sizes) < 1):
        raise ValueError(f"cnn['stride_sizes'] must be a positive number per kernel size, got {stride_sizes!r}")
    return options


def _modules_behind(transformer: Transformer, pooling: str, cnn: dict[str, Any], seed: int) -> list[nn.Module]:
    hidden_size = transformer.get_embedding_dimension()
    if pooling != "cnn":
        return [Pooling(hidden_size, pooling)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = CNN(hidden_size, cnn["out_channels"], list(cnn["kernel_sizes"]), cnn["stride_sizes"])
    return [module, Pooling(module.get_embedding_dimension(), cnn["pooling"])]
