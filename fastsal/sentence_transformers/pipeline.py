"""A SentenceTransformer's modules -> a ModelPipeline: an encoder, what is pooled from it, the modules behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Dropout, LayerNorm, Pooling
from torch import nn

from fastsal.engine.pipeline import Pipeline
from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec
from fastsal.modules.encoders import FastEncoderMixin, runs_fast_forward
from fastsal.modules.linear import is_hooked
from fastsal.sentence_transformers.tail import make_step

#: How the Transformer module must run its model: `last_hidden_state` of a plain forward pass.
_TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}


@dataclass(frozen=True)
class ModelPipeline:
    """What `encode` computes for a model.

    Attributes:
        encoder: the accelerated encoder inside the first module.
        behind: what follows it, on the model's live tensors; its tail stands for `tail`.
        tail: modules behind the pooling, which turn the "sentence_embedding" of a features dict into another.
    """

    encoder: FastEncoderMixin
    behind: Pipeline
    tail: tuple[nn.Module, ...]


def read_pipeline(model: SentenceTransformer) -> ModelPipeline | str:
    """The pipeline of a model's modules as they are now, or why there is none.

    Transformer -> [CNN] -> Pooling -> [Normalize] is computed natively if nothing hooks into it; Dense, Normalize,
    LayerNorm and Dropout may follow. The classes must be those of sentence-transformers, not subclasses.
    """
    modules: list[Any] = list(model.children())  # a module that stands there twice once, as in the reference
    if reason := _not_plain_transformer(modules[0]):
        return reason
    transformer, rest = modules[0], modules[1:]
    convolutions: tuple[Convolution, ...] = ()
    skipped = [model, transformer, transformer.model]
    if rest and type(rest[0]) is CNN:
        cnn = rest.pop(0)
        if not all(map(_is_plain_convolution, cnn.convs)):
            return "its CNN has convolutions other than the module itself makes"
        skipped += [cnn, *cnn.convs]
        convolutions = tuple(Convolution(conv.weight, conv.bias, conv.stride[0]) for conv in cnn.convs)
    if not rest or type(rest[0]) is not Pooling:
        return f"{_name(rest[0]) if rest else 'nothing'} stands where a Pooling module is understood"
    pooling = rest.pop(0)
    skipped.append(pooling)
    modes = (pooling.pooling_mode,) if isinstance(pooling.pooling_mode, str) else tuple(pooling.pooling_mode)
    if not set(modes) <= set(POOLING_MODES):
        return f"pooling mode {modes} is not known"
    normalize = bool(rest) and _is_plain_normalize(rest[0])
    if normalize:
        skipped.append(rest.pop(0))
    for module in rest:
        if reason := _not_understood_behind(module):
            return reason
    for module in skipped:
        if is_hooked(module):
            return f"{_name(module)} has a forward hook or a replaced forward"
    if model.module_kwargs and any(model.module_kwargs.values()):
        return "its modules take keyword arguments"
    return ModelPipeline(
        encoder=transformer.model,
        behind=Pipeline(
            PoolingSpec(modes, convolutions, normalize=normalize), pooling.include_prompt, tuple(map(make_step, rest))
        ),
        tail=tuple(rest),
    )


def _not_plain_transformer(module: Any) -> str | None:
    if type(module) is not Transformer:
        return f"its first module is {_name(module)}, not sentence-transformers' Transformer"
    if not isinstance(module.model, FastEncoderMixin):
        return f"its model is {_name(module.model)}, which is not accelerated"
    if not runs_fast_forward(module.model):
        return f"its model is {_name(module.model)}, which has a forward of its own"
    if module.modality_config.get("text") != _TEXT_MODALITY or module.module_output_name != "token_embeddings":
        return "its Transformer module gives other features than token embeddings of texts"
    if "message" in module.modality_config:
        return "its Transformer module renders texts through a chat template"
    if module.processing_kwargs:
        return "its Transformer module has processing_kwargs"
    if "preprocess" in module.__dict__ or "tokenize" in module.__dict__:
        return "its Transformer module has a replaced preprocess"
    return None


def _is_plain_convolution(conv: nn.Module) -> bool:
    return (
        type(conv) is nn.Conv1d
        and conv.padding == ((conv.kernel_size[0] - 1) // 2,)
        and conv.padding_mode == "zeros"
        and conv.dilation == (1,)
        and conv.groups == 1
        and conv.weight.data_ptr() != 0
    )


def _is_plain_normalize(module: nn.Module) -> bool:
    return type(module) is Normalize and module.module_input_name == module.module_output_name == "sentence_embedding"


def _not_understood_behind(module: Any) -> str | None:
    if type(module) in (LayerNorm, Dropout):
        return None
    if type(module) not in (Dense, Normalize):
        return f"{_name(module)} behind the pooling may need more than sentence embeddings"
    if module.module_input_name != "sentence_embedding":
        return f"{_name(module)} reads {module.module_input_name!r}"
    return None


def _name(module: nn.Module) -> str:
    return type(module).__name__
