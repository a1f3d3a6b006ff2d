"""A sentence-transformers folder from its files: the encoder's folder, how texts are cut, prompts, and the pipeline."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastsal.engine.checkpoint import Checkpoint
from fastsal.engine.errors import UnsupportedModelError
from fastsal.engine.json_files import read_json, read_json_if_there
from fastsal.engine.pipeline import DenseStep, LayerNormStep, NormalizeStep, Pipeline, Step
from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec
from fastsal.engine.spec import LayerNorm

logger = logging.getLogger(__name__)

#: The Transformer module's file, under the names that older versions gave it.
_TRANSFORMER_CONFIGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

#: Entries of that file, with the values that leave a plain text encoder. None: any value, it changes nothing here
#: (lengths per task count where a task is given, unpadding is what the engine does anyway).
_TRANSFORMER_ENTRIES: dict[str, tuple | None] = {
    "max_seq_length": None,
    "do_lower_case": None,
    "unpad_inputs": None,
    "query_length": None,
    "document_length": None,
    "query_expansion": None,
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_output_name": ("token_embeddings",),
}

#: Flags of old pooling files, in the order in which their results are concatenated.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

#: A Dense module's activation in its file -> `fastsal.engine.spec.ACTIVATIONS`, for classes that need no arguments.
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Hardswish": "hardswish",
    "torch.nn.modules.activation.LeakyReLU": "leaky_relu",
    "torch.nn.modules.activation.Mish": "mish",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.ReLU6": "relu6",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Tanh": "tanh",
}

#: torch.nn.LayerNorm's own.
_LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class SentenceFolder:
    """What a folder says about a model beside its encoder.

    Attributes:
        encoder: the folder of the Hugging Face encoder.
        modules: names of the modules in order, for people.
        max_seq_length: as the folder wants it, or None.
        do_lower_case: texts are lowercased before they are tokenised.
        prompts: by name.
        default_prompt_name: of the prompt used where none is asked for, or None.
        pipeline: what follows the encoder, its weights rounded to the encoder's dtype.
    """

    encoder: Path
    modules: tuple[str, ...]
    max_seq_length: int | None
    do_lower_case: bool
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    pipeline: Pipeline


def read_module_list(folder: Path) -> list[tuple[str, Path]]:
    """(class name, folder) of each module in modules.json, the first of which is the Transformer. A folder without
    modules.json is a plain encoder, of which the mean is pooled.

    Raises:
        UnsupportedModelError: modules with code or arguments of their own, or an encoder that is no Transformer.
        OSError: modules.json is damaged.
    """
    path = folder / "modules.json"
    if not path.is_file():
        logger.warning("%s has no modules.json: mean pooling over its token embeddings is assumed", folder)
        return [("Transformer", folder)]
    modules = []
    for entry in read_json(path, list):
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise OSError(f"{path} must hold a list of modules with a 'type', it holds {entry!r}")
        kind = entry["type"]
        if not kind.startswith("sentence_transformers."):
            raise UnsupportedModelError(f"{path} names the module {kind!r}, which has code of its own")
        if entry.get("kwargs"):
            raise UnsupportedModelError(f"{path}: the module {kind!r} takes keyword arguments")
        place = str(entry.get("path", ""))
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise OSError(f"{path} must name folders inside {folder}, it names {place!r}")
        modules.append((kind.rsplit(".", 1)[-1], folder / place))
    if not modules or modules[0][0] != "Transformer":
        raise UnsupportedModelError(f"{path}: the first module is a {modules[0][0] if modules else 'nothing'}")
    return modules


def read_sentence_folder(folder: Path, hidden_size: int, dtype: str) -> SentenceFolder:
    """Read what stands around the encoder.

    Args:
        hidden_size: of the encoder.
        dtype: of its parameters, which all other modules are brought to.

    Raises:
        UnsupportedModelError: a module or a setting that the engine does not compute.
        OSError: a file is missing or damaged.
        ValueError: tensors are missing or contradict the configuration.
    """
    (_, encoder), *behind = read_module_list(folder)
    settings = _read_transformer_config(encoder)
    general = read_json_if_there(folder / "config_sentence_transformers.json")
    if (model_type := general.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise UnsupportedModelError(f"{folder} is a {model_type}")
    plain = not (folder / "modules.json").is_file()
    return SentenceFolder(
        encoder=encoder,
        modules=("Transformer", *(("Pooling",) if plain else (name for name, _ in behind))),
        max_seq_length=settings.get("max_seq_length"),
        do_lower_case=bool(settings.get("do_lower_case", False)),
        prompts={"query": "", "document": "", **(general.get("prompts") or {})},
        default_prompt_name=general.get("default_prompt_name"),
        pipeline=Pipeline(PoolingSpec()) if plain else _read_pipeline(behind, hidden_size, dtype),
    )


def _read_transformer_config(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in _TRANSFORMER_CONFIGS if (folder / name).is_file()), None)
    if path is None:
        return {}
    settings = read_json(path)
    for key, value in settings.items():
        accepted = _TRANSFORMER_ENTRIES.get(key, ())
        if accepted is not None and value and value not in accepted:
            raise UnsupportedModelError(f"{path}: {key} is {value!r}")
    length = settings.get("max_seq_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise ValueError(f"{path}: max_seq_length must be a positive number, it is {length!r}")
    return settings


def _read_pipeline(modules: list[tuple[str, Path]], hidden_size: int, dtype: str) -> Pipeline:
    rest, width = list(modules), hidden_size
    convolutions: tuple[Convolution, ...] = ()
    if rest and rest[0][0] == "CNN":
        convolutions = _read_cnn(rest.pop(0)[1], width, dtype)
        width = sum(len(convolution.weight) for convolution in convolutions)
    if not rest or rest[0][0] != "Pooling":
        raise UnsupportedModelError(
            f"a {rest[0][0] if rest else 'nothing'} stands where a Pooling module is understood"
        )
    path = rest.pop(0)[1] / "config.json"
    config = read_json(path)
    pooling = PoolingSpec(_read_modes(path, config), convolutions)
    named = config.get("embedding_dimension", config.get("word_embedding_dimension", width))
    if named != width:
        raise ValueError(f"{path}: embedding_dimension must be {width}, what comes before it gives, it is {named!r}")
    width = width * len(pooling.modes)
    if rest and rest[0][0] == "Normalize" and _reads_sentence_embedding(rest[0][1]):
        rest.pop(0)
        pooling = replace(pooling, normalize=True)
    tail: list[Step] = []
    for name, folder in rest:
        if name == "Normalize" and _reads_sentence_embedding(folder):
            tail.append(NormalizeStep())
        elif name == "Dense":
            dense = _read_dense(folder, width, dtype)
            tail.append(dense)
            width = len(dense.weight)
        elif name == "LayerNorm":
            weights = Checkpoint(folder, dtype)
            norm = LayerNorm(weights.array("norm.weight", (width,)), weights.array("norm.bias", (width,)))
            tail.append(LayerNormStep(norm, _LAYER_NORM_EPS))
        elif name != "Dropout":  # which does nothing outside training
            raise UnsupportedModelError(f"{folder}: a {name} module stands behind the pooling")
    return Pipeline(pooling, bool(config.get("include_prompt", True)), tuple(tail))


def _read_modes(path: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not modes or not set(modes) <= set(POOLING_MODES):
        raise ValueError(f"{path}: pooling_mode must be some of {POOLING_MODES}, it is {modes}")
    return modes


def _read_cnn(folder: Path, width: int, dtype: str) -> tuple[Convolution, ...]:
    path = folder / "cnn_config.json"
    config = read_json(path)
    channels, sizes = config.get("out_channels", 256), config.get("kernel_sizes", [1, 3, 5])
    strides = config.get("stride_sizes") or [1] * len(sizes)
    if not all(isinstance(n, int) and n > 0 for n in (channels, *sizes, *strides)) or len(strides) != len(sizes):
        raise ValueError(f"{path}: out_channels, kernel_sizes and stride_sizes must be positive and as many of each")
    weights = Checkpoint(folder, dtype)
    return tuple(
        Convolution(
            weights.array(f"convs.{index}.weight", (channels, width, size)),
            weights.array(f"convs.{index}.bias", (channels,)),
            stride,
        )
        for index, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    )


def _read_dense(folder: Path, width: int, dtype: str) -> DenseStep:
    path = folder / "config.json"
    config = read_json(path)
    if not _reads_sentence_embedding(folder):
        raise UnsupportedModelError(f"{path}: the Dense module reads or writes other features than the embedding")
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"{path}: the activation {name!r} is not one that the kernels compute")
    size = config.get("out_features")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{path}: out_features must be a positive number, it is {size!r}")
    weights = Checkpoint(folder, dtype)
    residual: Any = None
    if config.get("use_residual"):
        residual = True if size == width else weights.array("residual.weight", (size, width))
    return DenseStep(
        weights.array("linear.weight", (size, width)),
        weights.array("linear.bias", (size,)) if config.get("bias", True) else None,
        _ACTIVATIONS[name],
        residual,
    )


def _reads_sentence_embedding(folder: Path) -> bool:
    config = read_json_if_there(folder / "config.json")
    return {config.get(key) for key in ("module_input_name", "module_output_name")} <= {None, "sentence_embedding"}
