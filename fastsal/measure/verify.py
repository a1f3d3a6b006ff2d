"""verify(): the errors of an accelerated model on a user's own sentences, beside those of the model it replaces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from fastsal.modules.encoders import FastEncoderMixin, fast_encoders
from fastsal.sentence_transformers.acceleration import restore

#: Sentences that the accelerated model computes at a time; the models it is compared with see one at a time.
BATCH_SIZE = 16

#: An error may be so many times the reference's, plus so many times the resolution of the dtype.
ERROR_RATIO, ERROR_ULPS = 2, 4

#: int8 has no reference to compare with: cosines to the truth, the worst (of vectors, one a sentence) and the mean.
INT8_WORST_COSINE, INT8_MEAN_COSINE = 0.998, 0.9995

#: What a model makes of one sentence: vectors (D,) and arrays of vectors (n, D), by name. The rows may be more than the
#: sentence's own where it was padded in its batch.
Outputs = dict[str, Tensor]
Runner = Callable[[Any, list], list[Outputs]]


@dataclass(frozen=True)
class Comparison:
    """Errors of one output. All are ``||x - truth|| / ||truth||``.

    Attributes:
        name: the output, such as "token_embeddings" or "sentence_embedding".
        error, reference_error: over all sentences together, of fastsal and of the reference.
        worst_error, worst_reference_error: the largest over a single sentence.
        mean_error: the mean over sentences.
        min_cosine, mean_cosine: the smallest and the mean cosine between a vector and its truth.
        one_vector: whether a sentence has one vector, not one per token.
        dtype: what was computed in, which decides how it is judged.
        worst: index of the sentence with fastsal's largest error.
        resolution: distance from 1 to the next number in the reference's dtype.
    """

    name: str
    error: float
    reference_error: float
    worst_error: float
    worst_reference_error: float
    mean_error: float
    min_cosine: float
    mean_cosine: float
    one_vector: bool
    dtype: str
    worst: int
    resolution: float

    @property
    def passed(self) -> bool:
        if self.dtype == "int8":
            worst = INT8_WORST_COSINE if self.one_vector else -1.0
            return self.min_cosine >= worst and self.mean_cosine >= INT8_MEAN_COSINE
        return self.error <= self._limit(self.reference_error) and self.worst_error <= self._limit(
            self.worst_reference_error
        )

    def _limit(self, reference_error: float) -> float:
        return ERROR_RATIO * reference_error + ERROR_ULPS * self.resolution


@dataclass(frozen=True)
class VerificationReport:
    """The result of `verify`; ``str()`` gives it as a text.

    Attributes:
        comparisons: one per output of the model.
        num_sentences: how many sentences were compared.
        fast_path: whether fastsal's kernels computed every call.
        path: who computed, in which dtype, and why.
        worst_texts: the start of the sentence with the largest error, per comparison.
    """

    comparisons: tuple[Comparison, ...]
    num_sentences: int
    fast_path: bool
    path: str
    worst_texts: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every error is within the limit. It says nothing about who computed: see `fast_path`."""
        return all(comparison.passed for comparison in self.comparisons)

    def __str__(self) -> str:
        lines = [
            f"{'passed' if self.passed else 'FAILED'}: {self.num_sentences} sentences, computed by {self.path}",
            "" if self.fast_path else "note: fastsal's kernels did not compute this, or not all of it",
            f"errors against float64, one sentence at a time; the limit is {ERROR_RATIO} x the reference's error "
            f"+ {ERROR_ULPS} ulp; in int8 a mean cosine of {INT8_MEAN_COSINE}, of sentence vectors {INT8_WORST_COSINE} "
            "at worst",
        ]
        for comparison, text in zip(self.comparisons, self.worst_texts, strict=True):
            c = comparison
            lines += [
                f"{c.name}: {'passed' if c.passed else 'FAILED'}",
                f"  all sentences   {c.error:.2e}, reference {c.reference_error:.2e}",
                f"  worst sentence  {c.worst_error:.2e}, reference {c.worst_reference_error:.2e}",
                f"  mean            {c.mean_error:.2e}",
                f"  min cosine      {c.min_cosine:.9f}, mean {c.mean_cosine:.9f}",
                f"  worst is        sentences[{c.worst}]: {text}",
            ]
        return "\n".join(line for line in lines if line)


def verify(
    model: nn.Module, sentences: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None = None
) -> VerificationReport:
    """Compare an accelerated model with the model it replaces, on these sentences.

    The truth is the model without fastsal, in float64, run on each sentence alone; the reference is the same in the
    dtype that fastsal computes in. fastsal, run on batches, passes if its error is at most twice the reference's plus a
    few ulp; int8, which has no reference, by its cosines to the truth. Give it some dozens of sentences: the rounding
    errors of a few may differ by more than that by chance.
    The model is not changed. Memory: two copies of it, one of them in float64.

    Args:
        model: a `SentenceEncoder`, or what `fastsal.accelerate` returned.
        sentences: texts for a SentenceTransformer; texts or pairs of texts for a CrossEncoder; lists of token ids for a
            Hugging Face model, or texts where `tokenizer` is given.
        tokenizer: makes token ids of texts for a Hugging Face model.

    Raises:
        ValueError: nothing in `model` is accelerated, or `sentences` is empty.
        TypeError: `sentences` is no sequence, or holds texts and there is no tokenizer for them; or `model` is
            of a class that cannot be run on sentences, or an encoder in it of one that `fastsal.restore` does not know.
    """
    encoders = list(fast_encoders(model).values())
    if not encoders:
        raise ValueError(f"model must be accelerated, got a plain {type(model).__name__}: see fastsal.accelerate")
    if isinstance(sentences, (str, bytes)) or not isinstance(sentences, Sequence):
        raise TypeError(f"sentences must be a list of sentences, got {type(sentences).__name__}")
    if not sentences:
        raise ValueError("sentences must not be empty")
    run = _runner(model, sentences, tokenizer)

    reference = restore(copy.deepcopy(model)).eval()
    if fast_encoders(reference):
        raise TypeError(
            f"model holds a subclass of fastsal's own classes, which cannot be restored: {type(model).__name__}"
        )
    truth = copy.deepcopy(reference).double()
    computed = {status.dtype for status in (encoder.fastsal_status() for encoder in encoders)}
    dtype = computed.pop() if len(computed) == 1 else "mixed"
    if dtype in ("bfloat16", "float16"):
        reference = reference.to(getattr(torch, dtype))
    errors: dict[str, _Errors] = {}
    fallbacks: dict[str, None] = {}  # an ordered set
    with torch.no_grad(), _evaluating(model):
        for start in range(0, len(sentences), BATCH_SIZE):
            batch = list(sentences[start : start + BATCH_SIZE])
            outputs = run(model, batch)
            fallbacks.update(dict.fromkeys(filter(None, (e.fastsal_status().last_fallback for e in encoders))))
            for sentence, output in zip(batch, outputs, strict=True):
                exact, usual = run(truth, [sentence])[0], run(reference, [sentence])[0]
                for name in exact:
                    own_rows = output[name][: len(exact[name])]  # in a batch, padding may follow
                    errors.setdefault(name, _Errors()).add(own_rows, usual[name], exact[name])
        statuses = [encoder.fastsal_status() for encoder in encoders]

    resolution = torch.finfo(next(reference.parameters()).dtype).eps
    comparisons = tuple(found.compare(name, resolution, dtype) for name, found in errors.items())
    paths = dict.fromkeys(f"{s.backend} in {s.dtype} ({s.detail})" for s in statuses)
    fallback_notes = [f"partly by reference ({reason})" for reason in fallbacks]
    return VerificationReport(
        comparisons=comparisons,
        num_sentences=len(sentences),
        fast_path=not fallbacks and all(status.backend != "reference" for status in statuses),
        path=", ".join([*paths, *fallback_notes]),
        worst_texts=tuple(_start_of(sentences[comparison.worst]) for comparison in comparisons),
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _start_of(sentence: Any) -> str:
    if isinstance(sentence, Tensor):
        sentence = sentence.tolist()
    text = repr(sentence)
    return text if len(text) <= 60 else text[:57] + "..."


class _Errors:
    """Collects the errors of one output, sentence by sentence."""

    def __init__(self) -> None:
        self.errors: list[float] = []  # norms of the differences
        self.reference_errors: list[float] = []
        self.truths: list[float] = []  # norms
        self.cosines: list[Tensor] = []
        self.one_vector = True

    def add(self, output: Tensor, reference: Tensor, truth: Tensor) -> None:
        truth = truth.double()
        output = output.to(truth.device).double()
        self.errors.append(_distance(output, truth))
        self.reference_errors.append(_distance(reference.to(truth.device).double(), truth))
        self.truths.append(float(torch.linalg.vector_norm(truth.nan_to_num(0, 0, 0))))
        if output.shape == truth.shape and truth.numel():
            cosines = F.cosine_similarity(output, truth, dim=-1).nan_to_num(0)
            equal = (output == truth).all(dim=-1)  # zero vectors have no angle
            self.cosines.append(cosines.masked_fill(equal, 1).reshape(-1))
        elif output.shape != truth.shape:
            self.cosines.append(torch.zeros(1))
        self.one_vector = self.one_vector and truth.dim() == 1

    def compare(self, name: str, resolution: float, dtype: str) -> Comparison:
        cosines = torch.cat(self.cosines) if self.cosines else torch.zeros(1)
        relative = [_ratio(error, truth) for error, truth in zip(self.errors, self.truths, strict=True)]
        references = [_ratio(error, truth) for error, truth in zip(self.reference_errors, self.truths, strict=True)]
        norm = math.hypot(*self.truths)
        return Comparison(
            name=name,
            error=_ratio(math.hypot(*self.errors), norm),
            reference_error=_ratio(math.hypot(*self.reference_errors), norm),
            worst_error=max(relative),
            worst_reference_error=max(references),
            mean_error=sum(relative) / len(relative),
            min_cosine=float(cosines.min()),
            mean_cosine=float(cosines.mean()),
            one_vector=self.one_vector,
            dtype=dtype,
            worst=relative.index(max(relative)),
            resolution=resolution,
        )


def _distance(value: Tensor, truth: Tensor) -> float:
    """Norm of the difference; equal infinities and NaNs do not differ, other ones and other shapes do by infinity."""
    if value.shape != truth.shape:
        return math.inf
    equal = (value == truth) | (value.isnan() & truth.isnan())
    distance = float(torch.linalg.vector_norm((value - truth).masked_fill(equal, 0)))
    return math.inf if math.isnan(distance) else distance


def _ratio(error: float, norm: float) -> float:
    if norm == 0:
        return 0.0 if error == 0 else math.inf
    return error / norm


def _runner(model: nn.Module, sentences: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None) -> Runner:
    """What runs a batch of `sentences` through `model` or a copy of it."""
    if isinstance(model, SentenceTransformer):
        return _run_sentence_transformer
    if isinstance(model, CrossEncoder):
        return _run_cross_encoder
    if not isinstance(model, PreTrainedModel):
        inside = ", ".join(f"{name} ({type(encoder).__name__})" for name, encoder in fast_encoders(model).items())
        raise TypeError(
            f"model must be a SentenceTransformer, a CrossEncoder or a model of transformers, which can be run on "
            f"sentences; how to call a {type(model).__name__} is not known. Verify the encoders in it: {inside}"
        )
    if tokenizer is None and any(isinstance(sentence, str) for sentence in sentences):
        raise TypeError(
            f"sentences must be lists of token ids for a {type(model).__name__} without a tokenizer, got text"
        )

    def run(model: Any, batch: list) -> list[Outputs]:
        return _run_hugging_face(model, [_features(sentence, tokenizer, model.config) for sentence in batch])

    return run


def _run_sentence_transformer(model: SentenceTransformer, texts: list) -> list[Outputs]:
    tokens: Any = model.encode(texts, output_value="token_embeddings")
    embeddings: Any = model.encode(texts, convert_to_tensor=True)
    return [
        {"token_embeddings": rows, "sentence_embedding": embedding}
        for rows, embedding in zip(tokens, embeddings, strict=True)
    ]


def _run_cross_encoder(model: CrossEncoder, inputs: list) -> list[Outputs]:
    scores: Any = model.predict(inputs, convert_to_tensor=True)
    return [{"scores": score.reshape(-1)} for score in scores]


def _features(sentence: Any, tokenizer: PreTrainedTokenizerBase | None, config: Any) -> dict[str, list[int]]:
    """The model's inputs for one sentence, each a list as long as the sentence."""
    if tokenizer is None:
        return {"input_ids": sentence.tolist() if hasattr(sentence, "tolist") else list(sentence)}
    max_length = min(tokenizer.model_max_length, config.max_position_embeddings)
    encoding = tokenizer(sentence, truncation=True, max_length=max_length, return_attention_mask=False)
    return dict(encoding)


def _run_hugging_face(model: Any, batch: list[dict[str, list[int]]]) -> list[Outputs]:
    device = next(model.parameters()).device
    lengths = [len(features["input_ids"]) for features in batch]
    inputs = {
        name: nn.utils.rnn.pad_sequence([torch.tensor(features[name]) for features in batch], batch_first=True)
        for name in batch[0]
    }
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    result = model(**{name: tensor.to(device) for name, tensor in inputs.items()}, attention_mask=mask.to(device))

    outputs: list[Outputs] = [{} for _ in batch]
    for name, tensor in result.items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.shape[:1] == (len(batch),):
            for row, output in zip(tensor, outputs, strict=True):
                output[name] = torch.atleast_1d(row)
    types = inputs.get("token_type_ids")
    if "last_hidden_state" in result and (types is None or not types.any()):
        if isinstance(model, FastEncoderMixin):  # the way without padding
            lists = [features["input_ids"] for features in batch]
            embeddings = model.sentence_embeddings(lists, pooling="mean", normalize=False)
        else:
            embeddings = torch.stack([output["last_hidden_state"].mean(dim=0) for output in outputs])
        for output, embedding in zip(outputs, embeddings, strict=True):
            output["sentence_embeddings"] = embedding
    return outputs
