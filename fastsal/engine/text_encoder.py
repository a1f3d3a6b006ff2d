"""TextEncoder: texts to vectors without torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np

from fastsal.engine.architectures import read_encoder_folder
from fastsal.engine.checkpoint import round_to
from fastsal.engine.encode_loop import TOKEN_BUDGET, embed
from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.model_files import default_model_folder, find_model_folder
from fastsal.engine.native import PRECISIONS, NativeEncoder, NativePooling, usable_processors, why_unavailable
from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.pipeline import Output
from fastsal.engine.quantization import Precision, quantize
from fastsal.engine.sentence_folder import read_module_list, read_sentence_folder
from fastsal.engine.texts import (
    as_list,
    as_ordered,
    check_rows,
    count_not_finite,
    resolve_prompt,
    surrogates_named,
    warn_if_not_finite,
)
from fastsal.engine.tokenization import TextTokenizer
from fastsal.engine.tokenizer_files import load_tokenizer

logger = logging.getLogger(__name__)

#: Ways of tokenising that are kept: a bound for callers who come with ever new prompts.
_MAX_TOKENIZERS = 256

TokenLists = Sequence[Sequence[int] | np.ndarray]


class TextEncoder:
    """A sentence-transformers model on fastsal's CPU kernels alone: no torch, so that it starts in a third of a second.

    It reads the model from its files and gives the vectors of `fastsal.SentenceEncoder`, to the last bit, as numpy
    arrays. What it cannot be sure to compute right it refuses; `SentenceEncoder` takes any model. Threads may share an
    encoder, and forked processes may go on using it.

    Args:
        model: a folder or a Hugging Face Hub id of a sentence-transformers model or of a plain BERT or ALBERT, whose
            mean is pooled then. None is SALBERT-mini, the small English model that comes with fastsal.
        dtype: what the matrix products multiply: "float32", "bfloat16", "int8" (chosen here, no calibration data);
            None for the dtype of the model's parameters, float32 for float16. Vectors are rounded to the parameters'
            dtype: float16 arrays for float16, float32 arrays for bfloat16, which numpy lacks.
        threads: None for as many as this process has processors.

    Raises:
        UnsupportedModelError: the engine does not compute this model; the message says why. (A ValueError.)
        OSError: a file of the model is missing, truncated or damaged, or the Hub does not give it.
        ValueError: tensors are missing or contradict the configuration, or an argument has an unknown value.
        RuntimeError: the compiled kernels are missing here.
    """

    def __init__(
        self, model: str | PathLike[str] | None = None, dtype: str | None = None, threads: int | None = None
    ) -> None:
        if dtype is not None and dtype not in PRECISIONS:
            raise ValueError(f"dtype must be None or one of {PRECISIONS}, got {dtype!r}")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ValueError(f"threads must be None or a positive number, got {threads!r}")
        if reason := why_unavailable():
            raise RuntimeError(reason)
        folder = default_model_folder() if model is None else find_model_folder(str(model))
        encoder_folder = read_module_list(folder)[0][1]
        read = read_encoder_folder(encoder_folder)
        spec = read.spec
        self._folder, self._model_type, self._parameter_dtype = folder, read.model_type, read.dtype
        self._threads = threads or usable_processors()
        self._sentence = read_sentence_folder(folder, spec.hidden_size, read.dtype)
        self._tokenizer = load_tokenizer(encoder_folder, read.model_type, spec.vocab_size, self._sentence.do_lower_case)
        computed = dtype or ("float32" if read.dtype == "float16" else read.dtype)
        self._encoder = NativeEncoder(spec, read.weights, computed, self._threads)
        self._poolings: dict[tuple, NativePooling] = {}
        self._tokenizers: dict[tuple[str, int], tuple[TextTokenizer, int]] = {}
        # As sentence-transformers: what its own file says counts even beyond the position table.
        length = self._tokenizer.max_length or spec.max_positions
        self._max_seq_length = self._sentence.max_seq_length or min(length, spec.max_positions)

    @property
    def max_seq_length(self) -> int:
        """Longer texts are cut to this number of tokens, special tokens included."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        positions = self._encoder.spec.max_positions
        if not isinstance(value, int) or not 0 < value <= positions:
            raise ValueError(f"max_seq_length must be between 1 and the model's {positions}, got {value!r}")
        self._max_seq_length = value

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        width = self._sentence.pipeline.pooling.output_size(self._encoder.spec.hidden_size)
        for step in self._sentence.pipeline.tail:
            width = len(getattr(step, "weight", range(width)))
        return width

    @property
    def prompts(self) -> dict[str, str]:
        """The model's own prompts, by name."""
        return dict(self._sentence.prompts)

    def encode(
        self,
        inputs: str | Sequence[str] | np.ndarray,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        precision: Precision | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> np.ndarray:
        """Embed texts.

        Args:
            inputs: a text, or texts in a list, tuple, array or pandas Series.
            prompt_name: of one of the model's `prompts`, to put before each text; the model's default one otherwise.
            prompt: text to put before each text, instead.
            precision: "int8", "uint8", "binary" or "ubinary" quantise the result, as in sentence-transformers.
            normalize_embeddings: scale each vector to L2 norm 1.
            truncate_dim: keep the first numbers of each vector only.

        Returns:
            (len(inputs), dimension) float32 (float16 where the model's parameters are), or (dimension,) for one text.
            A vector does not depend on what else is in `inputs`, nor on the number of threads.

        Raises:
            TypeError: an input is None or another thing that is no text, or holds half of a surrogate pair; the message
                names its position.
            ValueError: `inputs` has no order or no length (set, generator), or an argument has an unknown value.
            IndexError: a text has more tokens than the model has positions.

        Warns:
            RuntimeWarning: vectors hold NaN or infinity; once per call with the number of rows.
        """
        inputs = as_ordered(inputs)
        is_singular = isinstance(inputs, str)
        texts: list = [inputs] if is_singular else as_list(inputs)
        if not check_rows(texts, is_singular) and texts:
            index = next(i for i, text in enumerate(texts) if not isinstance(text, str))
            raise TypeError(
                f"inputs[{index}] must be a text (str), got {type(texts[index]).__name__}: {texts[index]!r}"
            )
        sentence = self._sentence
        prompt = resolve_prompt(prompt, prompt_name, sentence.prompts, sentence.default_prompt_name) or ""
        with surrogates_named(texts, is_singular, prompt):
            tokenize, prompt_length = self._tokenizer_for(prompt)
            output = sentence.pipeline.output(prompt_length, normalize_embeddings, truncate_dim)
            compute = self._computation(output)
            if not texts:
                vectors = compute(pack_token_lists([]))
            else:
                vectors = embed(texts, tokenize, compute, self._encoder.spec.max_positions)
        return self._finish(vectors, precision, is_singular)

    def encode_tokens(
        self,
        token_lists: TokenLists,
        *,
        precision: Precision | None = "float32",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> np.ndarray:
        """Embed texts given as token ids, special tokens included; results as of `encode`.

        Args:
            token_lists: sequences or 1-D arrays of token ids. Token types are 0.
            precision, normalize_embeddings, truncate_dim: as of `encode`.

        Raises:
            TypeError: a text is not a sequence of integers.
            ValueError: a text is longer than the model's position table.
            IndexError: a token id outside the vocabulary.
        """
        batch = pack_token_lists(token_lists)
        lengths, positions = np.diff(batch.cu_seqlens), self._encoder.spec.max_positions
        if len(lengths) and lengths.max() > positions:
            index = int(lengths.argmax())
            raise ValueError(f"token_lists[{index}] has {lengths[index]} tokens, the position table {positions} rows")
        compute = self._computation(self._sentence.pipeline.output(0, normalize_embeddings, truncate_dim))
        pieces = [compute(piece) for piece in _split(batch)]
        return self._finish(np.concatenate(pieces), precision, is_singular=False)

    def info(self) -> dict[str, Any]:
        """What this encoder is and what computes it, for people, by label."""
        spec = self._encoder.spec
        return {
            "model": str(self._folder),
            "architecture": self._model_type,
            "modules": " -> ".join(self._sentence.modules),
            "layers": len(spec.layer_schedule),
            "sets of layer weights": len(set(spec.layer_schedule)),
            "hidden size": spec.hidden_size,
            "heads": spec.num_heads,
            "vocabulary": spec.vocab_size,
            "positions": spec.max_positions,
            "max_seq_length": self.max_seq_length,
            "dimension": self.dimension,
            "parameters": self._parameter_dtype,
            "computed in": self._encoder.precision,
            "instruction set": self._encoder.instruction_set,
            "threads": self._threads,
            "packed weights, bytes": self._encoder.packed_bytes,
        }

    def _tokenizer_for(self, prompt: str) -> tuple[TextTokenizer, int]:
        """What tokenises texts behind `prompt`, and the tokens that the prompt takes (with those in front of it)."""
        key = (prompt, self._max_seq_length)
        known = self._tokenizers.get(key)
        if known is None:
            loaded = self._tokenizer
            tokenizer = TextTokenizer(loaded.truncated_to(self._max_seq_length), prompt, loaded.passes_types)
            ids = tokenizer.tokenizer.encode(prompt).ids if prompt else []
            length = len(ids) - (bool(ids) and ids[-1] in loaded.special_ids)
            if len(self._tokenizers) >= _MAX_TOKENIZERS:
                self._tokenizers.clear()
            known = self._tokenizers[key] = (tokenizer, length)
        return known

    def _computation(self, output: Output) -> Callable[[PackedBatch], np.ndarray]:
        key = (output.pooling.skip_tokens, output.pooling.normalize)
        pooling = self._poolings.get(key)
        if pooling is None:
            pooling = self._poolings[key] = self._encoder.pooling(output.pooling)
        return output.computation(self._encoder, pooling, self._threads)

    def _finish(self, vectors: np.ndarray, precision: Precision | None, is_singular: bool) -> np.ndarray:
        vectors = round_to(vectors, self._parameter_dtype)
        if self._parameter_dtype == "float16":
            vectors = vectors.astype(np.float16)
        warn_if_not_finite(count_not_finite(vectors), len(vectors), stacklevel=3)
        vectors = quantize(vectors, precision)
        return vectors[0] if is_singular else vectors


def _split(batch: PackedBatch) -> list[PackedBatch]:
    """Consecutive texts of at most TOKEN_BUDGET tokens, or one longer one: a call's memory and patience are bounded."""
    bounds = batch.cu_seqlens
    pieces: list[PackedBatch] = []
    first = 0
    while first < batch.num_sentences or not pieces:
        end = int(np.searchsorted(bounds, bounds[first] + TOKEN_BUDGET, side="right")) - 1
        end = min(max(end, first + 1), batch.num_sentences)
        tokens = slice(int(bounds[first]), int(bounds[end]))
        pieces.append(
            PackedBatch(
                bounds[first : end + 1] - bounds[first],
                batch.position_ids[tokens],
                batch.token_type_ids[tokens],
                None if batch.input_ids is None else batch.input_ids[tokens],
            )
        )
        first = end
    return pieces


__all__ = ["TextEncoder", "UnsupportedModelError"]
