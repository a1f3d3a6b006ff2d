"""Who computes: the reference, sentence-transformers and fastsal. The rivals are in peers.py.

An engine is made of a `Subject` and turns a `Workload` into (n, D) float32 embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from subjects import Subject, Workload
from transformers.utils import logging

import fastsal
from fastsal.sentence_transformers.pipeline import read_pipeline

logging.disable_progress_bar()

Run = Callable[[Workload], np.ndarray]


@dataclass
class Engine:
    """What is measured.

    Attributes:
        name: such as "fastsal-int8".
        dtype: that it computes in.
        start: what it starts from, "tokens" or "text".
        run: the work.
        ours: whether the limits of `fastsal.measure.accuracy` hold for it.
    """

    name: str
    dtype: str
    start: str
    run: Run
    ours: bool = False


def embed_features(model: SentenceTransformer, features: dict[str, torch.Tensor]) -> np.ndarray:
    """(b, D) embeddings of a padded batch by all of the model's modules."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        outputs = model({name: tensor.to(device) for name, tensor in features.items()})
    return outputs["sentence_embedding"].float().cpu().numpy()


def make_reference(subject: Subject, dtype: str) -> Engine:
    """The Hugging Face modules on padded batches, sorted by length."""
    model = SentenceTransformer(str(subject.folder), device="cpu").to(getattr(torch, dtype)).eval()

    def run(work: Workload) -> np.ndarray:
        result: np.ndarray | None = None
        for rows, ids, mask in work.batches:
            embeddings = embed_features(model, {"input_ids": ids, "attention_mask": mask})
            if result is None:
                result = np.empty((len(work.texts), embeddings.shape[1]), np.float32)
            result[rows] = embeddings
        assert result is not None
        return result

    return Engine(f"hf-{dtype}", dtype, "tokens", run)


def make_sentence_transformers(subject: Subject, dtype: str) -> Engine:
    model = SentenceTransformer(str(subject.folder), device="cpu").to(getattr(torch, dtype)).eval()
    return Engine(
        "sentence-transformers", dtype, "text", lambda work: model.encode(work.texts, show_progress_bar=False)
    )


def make_fastsal(subject: Subject, dtype: str, backend: str = "cpu") -> Engine:
    """Token lists to embeddings, without padding."""
    model = _load(subject, dtype, backend)
    pipeline = read_pipeline(model)
    if isinstance(pipeline, str):
        raise RuntimeError(f"fastsal does not cover {subject.name}: {pipeline}")

    def run(work: Workload) -> np.ndarray:
        with torch.inference_mode():
            embeddings = pipeline.encoder.sentence_embeddings(work.token_lists, pooling=pipeline.behind.pooling)
        return embeddings.float().cpu().numpy()

    return Engine(f"fastsal-{dtype}", dtype, "tokens", run, ours=True)


def make_fastsal_encode(subject: Subject, dtype: str, backend: str = "cpu") -> Engine:
    model = _load(subject, dtype, backend)
    return Engine(f"fastsal-encode-{dtype}", dtype, "text", lambda work: model.encode(work.texts), ours=True)


def _load(subject: Subject, dtype: str, backend: str) -> fastsal.SentenceEncoder:
    device = "cuda" if backend == "triton" else "cpu"
    return fastsal.SentenceEncoder(str(subject.folder), dtype=dtype, backend=backend, device=device)


#: By name: what is needed beyond the CPU, and how to make it.
ENGINES: dict[str, tuple[str, Callable[[Subject], Engine]]] = {
    "hf-float32": ("cpu", lambda subject: make_reference(subject, "float32")),
    "hf-bfloat16": ("cpu", lambda subject: make_reference(subject, "bfloat16")),
    "sentence-transformers": ("cpu", lambda subject: make_sentence_transformers(subject, "float32")),
    "fastsal-encode-float32": ("cpu", lambda subject: make_fastsal_encode(subject, "float32")),
    "fastsal-float32": ("cpu", lambda subject: make_fastsal(subject, "float32")),
    "fastsal-bfloat16": ("cpu", lambda subject: make_fastsal(subject, "bfloat16")),
    "fastsal-int8": ("cpu", lambda subject: make_fastsal(subject, "int8")),
    "fastsal-triton-float16": ("triton", lambda subject: make_fastsal(subject, "float16", "triton")),
    "fastsal-triton-bfloat16": ("triton", lambda subject: make_fastsal(subject, "bfloat16", "triton")),
}
