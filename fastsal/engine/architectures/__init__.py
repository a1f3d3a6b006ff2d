"""Encoders from their files: config.json and safetensors -> EncoderSpec + EncoderWeights. One file per architecture.

What reads the same architectures from live modules is `fastsal.modules.architectures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastsal.engine.architectures.albert import read_albert
from fastsal.engine.architectures.bert import read_bert
from fastsal.engine.architectures.parts import Parts
from fastsal.engine.checkpoint import DTYPES, Checkpoint
from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.json_files import read_json
from fastsal.engine.spec import EncoderSpec, EncoderWeights

#: `model_type` in config.json -> the reader of that architecture.
ARCHITECTURES: dict[str, Callable[[Parts], tuple[EncoderSpec, EncoderWeights]]] = {
    "albert": read_albert,
    "bert": read_bert,
}

#: Entries of config.json that change what is computed, with the values that change nothing.
_INERT = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "position_embedding_type": ("absolute",),
    "auto_map": (),
    "quantization_config": (),
}


@dataclass(frozen=True)
class EncoderFolder:
    """An encoder read from its files.

    Attributes:
        model_type: its architecture, one of `ARCHITECTURES`.
        spec, weights: the encoder; weights are float32.
        dtype: of the model's parameters, which the weights are rounded to: "float32", "float16" or "bfloat16".
    """

    model_type: str
    spec: EncoderSpec
    weights: EncoderWeights
    dtype: str


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """Read the encoder of a Hugging Face folder.

    Raises:
        UnsupportedModelError: another architecture, a decoder, code of its own, an adapter, weights in another format.
        OSError: a file is missing or damaged.
        ValueError: tensors are missing, or the configuration contradicts them.
    """
    path = folder / "config.json"
    config = read_json(path)
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(f"{path}: the architecture {model_type!r} is none of the engine's ({known})")
    for key, values in _INERT.items():
        value = config.get(key)
        if value is not None and value not in values:
            raise UnsupportedModelError(f"{path}: {key} is {value!r}")
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedModelError(f"{folder} holds an adapter to a model (adapter_config.json)")
    dtype = config.get("dtype", config.get("torch_dtype"))
    dtype = None if dtype is None else str(dtype).removeprefix("torch.")
    if dtype not in (None, *DTYPES.values()):
        raise UnsupportedModelError(f"{path}: the parameters are to be {dtype}")
    checkpoint = Checkpoint(folder, dtype)
    spec, weights = ARCHITECTURES[model_type](Parts(path, config, checkpoint, f"{model_type}."))
    return EncoderFolder(model_type, spec, weights, checkpoint.dtype)
