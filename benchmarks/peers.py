"""The rivals: ONNX Runtime and OpenVINO on the same exported encoder, the same padded batches, the same pooling.

They need the extra `peers`. Each runs the way its makers advise: ONNX Runtime with its graph optimisations on all
threads; OpenVINO once for latency and, as "-streams", in its throughput mode of one stream per thread with an
asynchronous queue. int8 is ONNX Runtime's dynamic quantisation per channel, and OpenVINO's static one, which is
calibrated on texts of another mix than the one that is measured.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import Engine
from subjects import Subject, Workload
from torch import nn

from fastsal.measure.length_mixes import make_texts

INPUTS = ("input_ids", "attention_mask")

#: By name: dtype and the packages it needs.
PEERS = {
    "ort-float32": ("float32", ("onnx", "onnxruntime")),
    "ort-int8": ("int8", ("onnx", "onnxruntime")),
    "ov-float32": ("float32", ("onnx", "openvino")),
    "ov-bfloat16": ("bfloat16", ("onnx", "openvino")),
    "ov-int8": ("int8", ("onnx", "openvino", "nncf")),
    "ov-float32-streams": ("float32", ("onnx", "openvino")),
    "ov-bfloat16-streams": ("bfloat16", ("onnx", "openvino")),
    "ov-int8-streams": ("int8", ("onnx", "openvino", "nncf")),
}

_CALIBRATION_TEXTS = 128


def missing_packages(peer: str) -> list[str]:
    """What has to be installed for this one."""
    missing = []
    for package in PEERS[peer][1]:
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    return missing


def make_peer(peer: str, subject: Subject, folder: Path) -> Engine:
    """Export, convert and compile.

    Args:
        peer: of `PEERS`.
        folder: keeps what was exported, for the next peer of the same subject.
    """
    dtype = PEERS[peer][0]
    path = _exported(subject, folder)
    if peer.startswith("ort"):
        return Engine(peer, dtype, "tokens", _onnxruntime(path if dtype == "float32" else _quantised(path)))
    network = _openvino().read_model(_calibrated(subject, path) if dtype == "int8" else path)
    hint = "bf16" if dtype == "bfloat16" else "f32"
    make = _streams if peer.endswith("-streams") else _latency
    return Engine(peer, dtype, "tokens", make(network, hint))


class _HiddenStates(nn.Module):
    """The encoder as exporters want it: two tensors in, one out."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids, attention_mask).last_hidden_state


def _exported(subject: Subject, folder: Path) -> Path:
    path = folder / f"{subject.name}.onnx"
    if not path.exists():
        encoder = type(subject.reference[0].model).from_pretrained(subject.folder, attn_implementation="eager").eval()
        example = subject.workload("sts", 2).batches[0][1:]
        axes = {0: "batch", 1: "tokens"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _HiddenStates(encoder),
                example,
                str(path),
                input_names=list(INPUTS),
                output_names=["states"],
                dynamic_axes=dict.fromkeys((*INPUTS, "states"), axes),
                opset_version=17,
                dynamo=False,
            )
    return path


def _quantised(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = path.with_suffix(".int8.onnx")
    if not target.exists():
        quantize_dynamic(path, target, weight_type=QuantType.QInt8, per_channel=True)
    return target


def _onnxruntime(path: Path) -> Callable[[Workload], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return _one_by_one(lambda features: session.run(None, features)[0])


def _openvino() -> Any:
    import openvino

    return openvino.Core()


def _calibrated(subject: Subject, path: Path) -> Path:
    import nncf
    import openvino

    target = path.with_suffix(".int8.xml")
    if not target.exists():
        logging.getLogger("nncf").setLevel(logging.ERROR)
        work = subject.workload_of(make_texts("mixed", _CALIBRATION_TEXTS))
        samples = nncf.Dataset([_features(ids, mask) for _, ids, mask in work.batches])
        network = _openvino().read_model(path)
        transformer = nncf.ModelType.TRANSFORMER
        quantised = nncf.quantize(network, samples, model_type=transformer, subset_size=len(work.batches))
        openvino.save_model(quantised, target, compress_to_fp16=False)
    return target


def _latency(network: Any, hint: str) -> Callable[[Workload], np.ndarray]:
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = _openvino().compile_model(network, "CPU", options | {"INFERENCE_PRECISION_HINT": hint})
    request = compiled.create_infer_request()
    return _one_by_one(lambda features: request.infer(features)[0])


def _streams(network: Any, hint: str) -> Callable[[Workload], np.ndarray]:
    import openvino

    threads = torch.get_num_threads()
    options = {"NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint}
    queue = openvino.AsyncInferQueue(_openvino().compile_model(network, "CPU", options), threads)

    def run(work: Workload) -> np.ndarray:
        pieces: list[tuple[np.ndarray, np.ndarray]] = []

        def done(request: Any, batch: tuple[np.ndarray, np.ndarray]) -> None:
            rows, mask = batch
            pieces.append((rows, _pool(request.get_output_tensor(0).data, mask)))

        queue.set_callback(done)
        for rows, ids, mask in work.batches:
            queue.start_async(_features(ids, mask), (rows, mask.numpy()))
        queue.wait_all()
        return _assembled(pieces, len(work.texts))

    return run


def _one_by_one(infer: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Callable[[Workload], np.ndarray]:
    def run(work: Workload) -> np.ndarray:
        pieces = [(rows, _pool(infer(_features(ids, mask)), mask.numpy())) for rows, ids, mask in work.batches]
        return _assembled(pieces, len(work.texts))

    return run


def _features(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, np.ndarray]:
    return {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}


def _pool(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the sentence's tokens, at length 1."""
    weights = mask[..., None].astype(np.float32)
    means = (states * weights).sum(axis=1) / weights.sum(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def _assembled(pieces: list[tuple[np.ndarray, np.ndarray]], number: int) -> np.ndarray:
    result = np.empty((number, pieces[0][1].shape[1]), np.float32)
    for rows, embeddings in pieces:
        result[rows] = embeddings
    return result
