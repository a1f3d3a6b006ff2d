"""Programs that load MiniLM and embed one sentence, for measuring whole processes from their start to the vector.

usage: python benchmarks/start_up.py ENGINE FOLDER ONNX_FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SENTENCE = "Which old towns near the coast can be reached by train?"

# Each imports what it needs, and nothing else: imports are most of what is measured.


def fastsal_engine(folder: str, onnx_file: str) -> Any:
    import fastsal

    return fastsal.TextEncoder(None if folder == "salbert-mini" else folder).encode(SENTENCE)


def sentence_transformers(folder: str, onnx_file: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu").encode(SENTENCE)


def sentence_encoder(folder: str, onnx_file: str) -> Any:
    import fastsal

    return fastsal.SentenceEncoder(folder, device="cpu").encode(SENTENCE)


def onnx_runtime(folder: str, onnx_file: str) -> Any:
    """ONNX Runtime and the tokenizers library, as people put them together where torch is too large."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    ids = np.array([tokenizer.encode(SENTENCE).ids])
    states = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    mean = states[0].mean(axis=0)
    return mean / np.linalg.norm(mean)


def fastembed(folder: str, onnx_file: str) -> Any:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        "local/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local/minilm"),
        dim=384,
        model_file=Path(onnx_file).name,
    )
    model = TextEmbedding("local/minilm", specific_model_path=str(Path(onnx_file).parent))
    return next(iter(model.embed([SENTENCE])))


#: By name, with the packages that each needs beside fastsal's own.
ENGINES: dict[str, tuple[Callable[[str, str], Any], tuple[str, ...]]] = {
    "fastsal.TextEncoder": (fastsal_engine, ()),
    "fastsal.SentenceEncoder": (sentence_encoder, ()),
    "sentence-transformers": (sentence_transformers, ()),
    "onnxruntime and tokenizers": (onnx_runtime, ("onnx", "onnxruntime")),
    "fastembed": (fastembed, ("onnx", "onnxruntime", "fastembed")),
}


if __name__ == "__main__":
    name, model_folder, exported = sys.argv[1:]
    vector = ENGINES[name][0](model_folder, exported)
    print(json.dumps([float(number) for number in vector]))
