"""SentenceEncoder: a SentenceTransformer whose `encode` runs on fastsal's kernels."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CNN
from sentence_transformers.util.decorators import deprecated_kwargs
from torch import Tensor
from tqdm.autonotebook import tqdm
from transformers import PreTrainedTokenizerBase

from fastsal.backends import BACKENDS, PreparedEncoder
from fastsal.backends.cpu import CpuEncoder
from fastsal.backends.rows import cast
from fastsal.engine.encode_loop import embed
from fastsal.engine.model_files import default_model_folder, find_damage
from fastsal.engine.quantization import PRECISIONS, Precision, quantize
from fastsal.engine.texts import (
    as_list,
    as_ordered,
    check_rows,
    count_not_finite,
    surrogates_named,
    warn_if_not_finite,
)
from fastsal.modules.acceleration import accelerate_encoders
from fastsal.modules.architectures.reader import has_other_forward
from fastsal.modules.encoders import FAST_CLASSES, fast_encoders, reference_twin
from fastsal.modules.forks import one_thread_if_forked
from fastsal.modules.preparation import Plan
from fastsal.sentence_transformers.device_loop import device_computation, embed_on_device
from fastsal.sentence_transformers.loaded_weights import find_missing_weights
from fastsal.sentence_transformers.pipeline import ModelPipeline, read_pipeline
from fastsal.sentence_transformers.tokenization import (
    UnknownFeaturesError,
    find_vocabulary_gap,
    make_tokenize,
    read_settings,
    tokenizer_lock,
)

logger = logging.getLogger(__name__)

#: Backends of sentence-transformers that are none of fastsal's.
_EXPORTS = ("onnx", "openvino")

#: As in sentence-transformers, progress is shown where its logger shows INFO.
_reference_logger = logging.getLogger(SentenceTransformer.__module__)


class SentenceEncoder(SentenceTransformer):
    """A sentence-transformers model, faster, with the same numbers.

    It loads and saves the same folders, and `encode` takes the same arguments and gives the same shapes and types. The
    steps Transformer (BERT, ALBERT) -> [CNN] -> Pooling -> [Normalize] run in one native call per batch, on tokens
    without padding; Dense, LayerNorm, Dropout and Normalize modules run behind as they are. Whatever else a model or a
    call holds runs in sentence-transformers' own code, with the accelerated encoder inside where it can be.

    Two results differ from sentence-transformers on purpose: embeddings do not depend on what else is in the batch,
    and a CNN sees zeros beyond the sentence's ends, not the other sentences' padding. ``backend="reference"`` keeps
    sentence-transformers' own results.

    Args:
        model_name_or_path: a folder or a Hugging Face Hub id. Without a modules.json in it, mean pooling is assumed.
            None, without `modules` either, is SALBERT-mini, the small English model that comes with fastsal.
        dtype: what the kernels compute in, see `fastsal.accelerate`.
        backend: "auto", "cpu", "triton" or "reference", see `fastsal.accelerate`. "torch", which sentence-transformers
            calls a model of PyTorch modules and wrappers pass on, is "auto".
        **kwargs: SentenceTransformer's other arguments.

    Raises:
        ValueError: an unknown backend; "onnx" and "openvino" are sentence-transformers', not fastsal's.
        OSError: a file of the model is missing, truncated or damaged, or lacks weights of the encoder.
        fastsal.BackendError: an explicitly chosen dtype or backend cannot run here.
    """

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        dtype: str | torch.dtype | None = None,
        backend: str = "auto",
        **kwargs: Any,
    ) -> None:
        if backend in _EXPORTS:
            raise ValueError(
                f"backend={backend!r} is sentence-transformers' way to run an exported model; fastsal's says whose "
                f"kernels compute: it must be one of {('auto', *BACKENDS)}. For {backend} use "
                f"sentence_transformers.SentenceTransformer(..., backend={backend!r})"
            )
        backend = "auto" if backend == "torch" else backend
        if model_name_or_path is None and kwargs.get("modules") is None:
            model_name_or_path = str(default_model_folder())
        try:
            super().__init__(model_name_or_path, **kwargs)
        except Exception as error:
            folder = Path(model_name_or_path or "")
            damage = find_damage(folder) if model_name_or_path and folder.is_dir() else None
            if damage is None:
                raise
            raise OSError(f"the model in {model_name_or_path} cannot be loaded: {damage}") from error
        self._check_vocabulary()
        self._check_weights()
        if dtype is None and backend == "auto" and not any(isinstance(m, tuple(FAST_CLASSES)) for m in self.modules()):
            logger.warning("the model holds neither BERT nor ALBERT: sentence-transformers computes it, at its speed")
        else:
            accelerate_encoders(self, dtype, backend)

    @torch.compiler.disable(reason="texts are no tensors: compile a call of the model instead")
    @deprecated_kwargs(sentences="inputs")
    def encode(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"] | None = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | list[str | torch.device] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: dict[Literal["input", "output", "processes"], Any] | None = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Embed texts, as `SentenceTransformer.encode` does, whose documentation describes the arguments.

        `inputs` may also be a pandas Series, whatever its index. `batch_size` must be positive but does not matter:
        batches hold a fixed number of tokens, and an embedding does not depend on its batch. As in
        sentence-transformers the model is in evaluation mode afterwards; the results are ordinary tensors (not
        inference tensors) without gradients. Threads may share a model.

        Raises:
            TypeError: an input is None or a number, or holds half of a surrogate pair, which is no text; the message
                names its position.
            ValueError: `inputs` has no order or no length (set, generator), or an argument has an unknown value.
            IndexError: a text has more tokens than the model has positions.

        Warns:
            RuntimeWarning: embeddings hold NaN or infinity; once per call with the number of rows.
        """
        inputs = as_ordered(inputs)
        is_singular = isinstance(inputs, str) or self.is_singular_input(inputs)
        rows: list = [inputs] if is_singular else as_list(inputs)
        only_texts = check_rows(rows, is_singular) if self.modalities == ["text"] else False

        embeddings = None
        if (
            only_texts
            and output_value == "sentence_embedding"
            and precision in (None, *PRECISIONS)
            and batch_size > 0
            and pool is None
            and not isinstance(device, list)
            and not kwargs.keys() - {"task"}
        ):
            with surrogates_named(rows, is_singular, self._resolve_prompt(prompt, prompt_name)):
                embeddings = self._embed_natively(
                    rows,
                    prompt=self._resolve_prompt(prompt, prompt_name),
                    task=kwargs.get("task"),
                    batch_size=batch_size,
                    show_progress_bar=show_progress_bar,
                    device=device,
                    normalize_embeddings=normalize_embeddings,
                    truncate_dim=self.truncate_dim if truncate_dim is None else truncate_dim,
                    # batch by batch, so that the GPU's memory does not fill with the results of many texts
                    to_cpu=convert_to_numpy and not convert_to_tensor,
                )
        if embeddings is None:
            with _sole_user(pool), one_thread_if_forked(), surrogates_named(rows, is_singular, prompt):
                result = super().encode(
                    rows[0] if is_singular else rows,
                    prompt_name=prompt_name,
                    prompt=prompt,
                    batch_size=batch_size,
                    show_progress_bar=show_progress_bar,
                    output_value=output_value,
                    precision=precision,
                    convert_to_numpy=convert_to_numpy,
                    convert_to_tensor=convert_to_tensor,
                    device=device,
                    normalize_embeddings=normalize_embeddings,
                    truncate_dim=truncate_dim,
                    pool=pool,
                    chunk_size=chunk_size,
                    **kwargs,
                )
            if output_value == "sentence_embedding":
                _warn_if_not_finite(result)
            return result

        _warn_if_not_finite(embeddings)
        result = _convert(embeddings, precision, convert_to_numpy, convert_to_tensor)
        return result[0] if is_singular else result

    def _inference(self, inputs: list, **kwargs: Any) -> Any:
        """What the worker processes of a pool call in sentence-transformers >= 6.2."""
        embeddings = None
        native = {"prompt", "batch_size", "show_progress_bar", "device", "normalize_embeddings", "truncate_dim", "task"}
        if (
            kwargs.get("output_value") == "sentence_embedding"
            and not kwargs.keys() - native - {"output_value", "save_to_cpu"}
            and inputs
            and all(isinstance(text, str) for text in inputs)
        ):
            arguments = {name: value for name, value in kwargs.items() if name in native}
            to_cpu = bool(kwargs.get("save_to_cpu"))
            embeddings = self._embed_natively(inputs, **{"task": None, "device": None, **arguments}, to_cpu=to_cpu)
        return super()._inference(inputs, **kwargs) if embeddings is None else embeddings

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """As `SentenceTransformer.preprocess`, and safe to call from several threads and in forked processes."""
        with self._tokenizer_locked(), one_thread_if_forked():
            return super().preprocess(inputs, prompt=prompt, **kwargs)

    def _prepare_pooling(self) -> None:
        """Pack the convolutions of this model's own `encode`, if the kernels compute it."""
        computation = self._computation(None)
        if isinstance(computation, str):
            self._note_reference(computation)
        elif isinstance(computation[2], CpuEncoder):
            computation[2].pooling(computation[0].behind.output(0, False, None).pooling)

    def _tokenizer_locked(self) -> AbstractContextManager:
        tokenizer = getattr(self[0], "tokenizer", None)
        return tokenizer_lock(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else nullcontext()

    def _create_model_card(self, *args: Any, **kwargs: Any) -> None:
        # A saved folder is a plain SentenceTransformer's, and the card names the classes.
        own_class = type(self)
        if not own_class.__module__.startswith("fastsal."):
            return super()._create_model_card(*args, **kwargs)
        twin = reference_twin(self)
        twin.__class__ = SentenceTransformer
        twin.model_card_data = copy.copy(self.model_card_data)
        twin.model_card_data.model = twin
        with self._tokenizer_locked():  # the card shows similarities that the twin computes
            twin._create_model_card(*args, **kwargs)
        self.model_card_data.__dict__.update({**twin.model_card_data.__dict__, "model": self})
        if not twin.training:
            self.eval()

    def _check_vocabulary(self) -> None:
        tokenizer, vocab_size = getattr(self[0], "tokenizer", None), getattr(self.config, "vocab_size", None)
        if isinstance(tokenizer, PreTrainedTokenizerBase) and isinstance(vocab_size, int):
            error, warning = find_vocabulary_gap(tokenizer, vocab_size)
            if error:
                raise OSError(f"the model cannot be used: {error}")
            if warning:
                logger.warning("the model loaded, but %s", warning)

    def _check_weights(self) -> None:
        encoder: Any = getattr(self[0], "model", None)
        if type(encoder) in FAST_CLASSES and (problem := find_missing_weights(encoder)):
            raise OSError(f"the model cannot be used: {problem}")

    def _load_default_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        logger.warning("%s has no modules.json: mean pooling over its token embeddings is assumed", model_name_or_path)
        return super()._load_default_modules(model_name_or_path, *args, **kwargs)

    def _embed_natively(
        self,
        texts: list[str],
        *,
        prompt: str | None,
        task: str | None,
        batch_size: int,
        show_progress_bar: bool | None,
        device: str | torch.device | None,
        normalize_embeddings: bool,
        truncate_dim: int | None,
        to_cpu: bool,
    ) -> Tensor | None:
        """(len(texts), D) embeddings, or None if sentence-transformers has to compute them."""
        computation = self._computation(device)
        if not isinstance(computation, str):
            try:
                settings = read_settings(self, prompt, task)
            except UnknownFeaturesError as error:
                computation = str(error)
        if isinstance(computation, str):
            self._note_reference(computation)
            return None
        pipeline, plan, encoder = computation
        if plan.reading.spec is None:
            raise RuntimeError("a plan that computes must have a spec")
        output = pipeline.behind.output(settings.prompt_length, normalize_embeddings, truncate_dim)
        tokenize = make_tokenize(self, settings, task)
        max_tokens = plan.reading.spec.max_positions
        with torch.no_grad(), _Progress(len(texts), batch_size, show_progress_bar) as report:
            if isinstance(encoder, CpuEncoder):
                compute = output.computation(encoder.native, encoder.pooling(output.pooling), torch.get_num_threads())
                embeddings = embed(texts, tokenize=tokenize, compute=compute, max_tokens=max_tokens, report=report)
                return cast(torch.from_numpy(embeddings), plan.parameter_dtype)
            run = device_computation(encoder, output, pipeline.tail, plan.parameter_dtype, to_cpu)
            return embed_on_device(texts, tokenize, run, max_tokens, report)

    def _note_reference(self, reason: str) -> None:
        """Say once for every reason why sentence-transformers computes, where nobody asked for it."""
        encoders = fast_encoders(self).values()
        noted: set[str] = self.__dict__.setdefault("_fastsal_noted", set())
        if not encoders or reason in noted or all(e._fastsal.settings.backend == "reference" for e in encoders):
            return
        noted.add(reason)
        consequence = ", and embeddings depend on their batch" if any(type(m) is CNN for m in self) else ""
        logger.warning("encode runs in sentence-transformers, at its speed%s: %s", consequence, reason)

    @torch.no_grad()
    def _computation(self, device: str | torch.device | None) -> tuple[ModelPipeline, Plan, PreparedEncoder] | str:
        """What the kernels compute for this model as it is now, or why they don't."""
        cls = type(self)
        if cls.forward is not SentenceTransformer.forward or cls.preprocess is not SentenceEncoder.preprocess:
            return f"{cls.__name__} has a forward or preprocess of its own"
        if "_original_forward" in vars(self) and has_other_forward(self):
            return (
                "training in mixed precision has replaced the model's forward, which goes on computing so; "
                "accelerate.utils.extract_model_from_parallel(model, keep_fp32_wrapper=False) takes that back"
            )
        if "preprocess" in vars(self) or has_other_forward(self):
            return "its forward or preprocess was replaced"
        if getattr(self, "_distributed_inference", None) is not None:
            return "encode is distributed over processes"
        pipeline = read_pipeline(self)
        if isinstance(pipeline, str):
            return pipeline
        if self.training or any(module.training for module in pipeline.tail):
            self.eval()
        plan = pipeline.encoder._plan()
        if isinstance(plan, str):
            self.eval()  # a part of the encoder may be in training mode
            plan = pipeline.encoder._plan()
        if isinstance(plan, str):
            return plan
        if device is not None and torch.empty(0, device=device).device != plan.device:
            return f"the model has to move to {device}"
        return pipeline, plan, pipeline.encoder._fastsal.encoder(pipeline.encoder)


class _Progress:
    """sentence-transformers' progress bar, which counts batches of `batch_size`; called with numbers of texts."""

    def __init__(self, num_texts: int, batch_size: int, show: bool | None) -> None:
        if show is None:
            show = _reference_logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
        self._batch_size, self._num_done = batch_size, 0
        self._bar = tqdm(total=math.ceil(num_texts / batch_size), desc="Batches") if show else None

    def __call__(self, num_texts: int) -> None:
        self._num_done += num_texts
        if self._bar is not None:
            self._bar.update(math.ceil(self._num_done / self._batch_size) - self._bar.n)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def _sole_user(pool: dict | None) -> Iterator[None]:
    """Hold a pool of processes: its queues do not tell the results of two calls apart."""
    with nullcontext() if pool is None else pool.setdefault("lock", threading.Lock()):
        yield


def _convert(
    embeddings: Tensor, precision: Precision | None, convert_to_numpy: bool, convert_to_tensor: bool
) -> Tensor | np.ndarray | list[Tensor]:
    """The type that the arguments of `encode` ask for."""
    if precision not in (None, "float32"):
        quantized = quantize(_to_numpy(embeddings.cpu()), precision)
        if convert_to_numpy and not convert_to_tensor:
            return quantized
        embeddings = torch.from_numpy(quantized)
    if convert_to_tensor:
        return embeddings
    if convert_to_numpy:
        return _to_numpy(embeddings.cpu())
    return list(embeddings)


def _to_numpy(embeddings: Tensor) -> np.ndarray:
    """Tensors on the CPU with their values; numpy has no bfloat16, so that becomes float32."""
    return (cast(embeddings, torch.float32) if embeddings.dtype == torch.bfloat16 else embeddings).numpy()


def _warn_if_not_finite(embeddings: Any) -> None:
    """Warn of rows with NaN or infinity in what `encode` returns: an array or tensor of one or two axes, or a list."""
    if isinstance(embeddings, list):
        bad = sum(_count_not_finite(row[None]) for row in embeddings)
        num_rows = len(embeddings)
    else:
        rows = embeddings if embeddings.ndim > 1 else embeddings[None]
        bad, num_rows = _count_not_finite(rows), len(rows)
    warn_if_not_finite(bad, num_rows, stacklevel=4)


def _count_not_finite(rows: np.ndarray | Tensor) -> int:
    if isinstance(rows, Tensor):
        if not rows.is_cpu:
            return int((~torch.isfinite(rows)).any(dim=-1).sum())
        rows = _to_numpy(rows)
    return count_not_finite(rows)
