"""Tiny random models and the float64 truth about them."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel
from transformers import PreTrainedModel as Model

M = TypeVar("M", bound=nn.Module)

ALBERT = {
    "vocab_size": 60,
    "embedding_size": 12,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
BERT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}


def randomize(model: M, seed: int = 0) -> M:
    """Weights at which every part matters, biases and norms and types, without growth of activations or scores."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2 and "embeddings" not in name:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return model.eval()


def albert_config(**options: Any) -> AlbertConfig:
    return AlbertConfig(**{**ALBERT, **options})


def bert_config(**options: Any) -> BertConfig:
    return BertConfig(**{**BERT, **options})


def tiny_albert(add_pooling_layer: bool = True, seed: int = 0, **options: Any) -> AlbertModel:
    return randomize(AlbertModel(albert_config(**options), add_pooling_layer=add_pooling_layer), seed)


def tiny_bert(add_pooling_layer: bool = True, seed: int = 0, **options: Any) -> BertModel:
    return randomize(BertModel(bert_config(**options), add_pooling_layer=add_pooling_layer), seed)


TINY = {"albert": tiny_albert, "bert": tiny_bert}


def random_batch(rows: int = 4, columns: int = 9, vocab_size: int = 60, seed: int = 0) -> dict[str, Tensor]:
    """Ids, types and a right-padded mask whose first row is full and whose lengths fall."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.linspace(columns, 1, rows).round().long()
    return {
        "input_ids": torch.randint(0, vocab_size, (rows, columns), generator=generator),
        "token_type_ids": torch.randint(0, 2, (rows, columns), generator=generator),
        "attention_mask": (torch.arange(columns)[None] < lengths[:, None]).long(),
    }


def true_states(model: Model, batch: dict[str, Tensor]) -> Tensor:
    """(layers + 1, B, S, H) float64: Hugging Face in float64 on each row alone, without padding; zeros where masked.

    Positions are the column numbers unless `batch` has position_ids.
    """
    exact = copy.deepcopy(model).double()
    tokens = batch.get("input_ids", batch.get("inputs_embeds"))
    rows, columns = tokens.shape[:2]
    mask = batch.get("attention_mask", torch.ones(rows, columns)).to(torch.bool)
    positions = batch.get("position_ids", torch.arange(columns)[None]).expand(rows, columns)
    inputs = {name: batch[name] for name in ("input_ids", "inputs_embeds", "token_type_ids") if name in batch}
    result = None
    for row in range(rows):
        kept = mask[row]
        if not kept.any():
            continue
        alone = {name: tensor.expand(rows, *tensor.shape[1:])[row : row + 1, kept] for name, tensor in inputs.items()}
        if "inputs_embeds" in alone:
            alone["inputs_embeds"] = alone["inputs_embeds"].double()
        with torch.no_grad():
            output = exact(**alone, position_ids=positions[row : row + 1, kept], output_hidden_states=True)
        states = torch.stack(output.hidden_states)
        if result is None:
            result = states.new_zeros(states.shape[0], rows, columns, states.shape[-1])
        result[:, row, kept] = states[:, 0]
    return result
