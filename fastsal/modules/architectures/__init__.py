"""Hugging Face encoders -> EncoderSpec + EncoderWeights. One file per architecture; a new model is a new file.

What is read are the live modules, not the config alone: a model whose parts were replaced by something unknown is not
read wrongly but refused with the reason, and runs in the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.models.albert.modeling_albert import AlbertModel
from transformers.models.bert.modeling_bert import BertModel

from fastsal.engine.spec import EncoderSpec, EncoderWeights
from fastsal.modules.architectures.albert import read_albert
from fastsal.modules.architectures.bert import read_bert
from fastsal.modules.architectures.reader import ModuleReader, UnreadableError
from fastsal.modules.weights_watch import ModuleWatch

#: Reader of each Hugging Face class: (module, reader) -> (spec, weights), or raises UnreadableError.
ARCHITECTURES: dict[type[nn.Module], Callable[[Any, ModuleReader], tuple[EncoderSpec, EncoderWeights]]] = {
    AlbertModel: read_albert,
    BertModel: read_bert,
}


@dataclass(frozen=True)
class EncoderReading:
    """An encoder read from a module, or the reason why it cannot be.

    Attributes:
        spec, weights: the encoder, both None where `reason` is given. The weights are the live tensors, detached.
        reason: why the module is not covered by any kernel, else None.
        watch: tells whether the module is still as it was read.
    """

    spec: EncoderSpec | None
    weights: EncoderWeights | None
    reason: str | None
    watch: ModuleWatch


def read_encoder(module: nn.Module) -> EncoderReading:
    """Read an AlbertModel or BertModel (or a subclass of one, such as fastsal's own).

    Raises:
        TypeError: `module` is neither.
    """
    reference = next((known for known in ARCHITECTURES if isinstance(module, known)), None)
    if reference is None:
        names = " or ".join(known.__name__ for known in ARCHITECTURES)
        raise TypeError(f"module must be an {names}, got {type(module).__name__}")

    reader = ModuleReader(module)
    spec, weights, reason = None, None, None
    try:
        reader.own_forward(reference)
        spec, weights = ARCHITECTURES[reference](module, reader)
        reader.check_tensors_agree()
    except UnreadableError as error:
        spec, weights, reason = None, None, str(error)
    reader.watch.start()
    return EncoderReading(spec, weights, reason, reader.watch)
