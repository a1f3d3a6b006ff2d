"""A plain PyTorch twin of the native kernels, sentence by sentence, in any dtype: what every backend is tested against.

It computes from EncoderSpec, EncoderWeights and PoolingSpec alone and implements `PreparedEncoder`.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear

ACTIVATION_FUNCTIONS = {
    "linear": lambda x: x,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_10": lambda x: F.gelu(x).clip(-10, 10),
    "hardswish": F.hardswish,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
    "laplace": lambda x: 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * 2**0.5))),
}


class OracleEncoder:
    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, dtype: torch.dtype = torch.float64) -> None:
        self.spec, self.weights, self.dtype = spec, weights, dtype

    def hidden_states(self, batch: PackedBatch, all_layers: bool = False) -> Tensor:
        bounds = batch.cu_seqlens.tolist()
        sentences = [self._sentence(batch, slice(a, b)) for a, b in itertools.pairwise(bounds)]
        states = (
            torch.cat(sentences, dim=1)
            if sentences
            else self.weights.word_embeddings.new_zeros(len(self.spec.layer_schedule) + 1, 0, self.spec.hidden_size)
        )
        return states if all_layers else states[-1]

    def sentence_embeddings(self, batch: PackedBatch, pooling: PoolingSpec) -> Tensor:
        hidden = self.hidden_states(batch)
        bounds = batch.cu_seqlens.tolist()
        rows = [self._pool(hidden[a:b], pooling) for a, b in itertools.pairwise(bounds)]
        return torch.stack(rows) if rows else hidden.new_zeros(0, pooling.output_size(self.spec.hidden_size))

    def _linear(self, x: Tensor, linear: Linear) -> Tensor:
        return F.linear(x, linear.weight.to(self.dtype), linear.bias.to(self.dtype))

    def _norm(self, x: Tensor, norm: LayerNorm) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], norm.weight.to(self.dtype), norm.bias.to(self.dtype), self.spec.layer_norm_eps
        )

    def _sentence(self, batch: PackedBatch, tokens: slice) -> Tensor:
        weights = self.weights
        if batch.input_ids is not None:
            x = weights.word_embeddings[batch.input_ids[tokens]]
        else:
            assert batch.inputs_embeds is not None
            x = batch.inputs_embeds[tokens]
        x = x.to(self.dtype) + weights.type_embeddings[batch.token_type_ids[tokens]].to(self.dtype)
        x = self._norm(
            x + weights.position_embeddings[batch.position_ids[tokens]].to(self.dtype), weights.embedding_norm
        )
        if weights.mapping is not None:
            x = self._linear(x, weights.mapping)
        states = [x]
        for index in self.spec.layer_schedule:
            x = self._layer(x, weights.layers[index])
            states.append(x)
        return torch.stack(states)

    def _layer(self, x: Tensor, layer: LayerWeights) -> Tensor:
        heads, size = self.spec.num_heads, self.spec.head_size
        q, k, v = (
            self._linear(x, p).view(-1, heads, size).transpose(0, 1) for p in (layer.query, layer.key, layer.value)
        )
        probabilities = torch.softmax(q @ k.transpose(1, 2) * size**-0.5, dim=-1)
        context = (probabilities @ v).transpose(0, 1).reshape(x.shape[0], heads * size)
        x = self._norm(x + self._linear(context, layer.attention_output), layer.attention_norm)
        activation = ACTIVATION_FUNCTIONS[self.spec.activation]
        return self._norm(x + self._linear(activation(self._linear(x, layer.up)), layer.down), layer.output_norm)

    def _pool(self, x: Tensor, pooling: PoolingSpec) -> Tensor:
        if pooling.convolutions:
            outputs = []
            for conv in pooling.convolutions:
                if x.shape[0] == 0:
                    outputs.append(x.new_zeros(0, conv.weight.shape[0]))
                    continue
                bias = None if conv.bias is None else conv.bias.to(self.dtype)
                padding = (conv.kernel_size - 1) // 2
                outputs.append(F.conv1d(x.T[None], conv.weight.to(self.dtype), bias, conv.stride, padding)[0].T)
            x = torch.cat(outputs, dim=1)
        kept = x[pooling.skip_tokens :]
        first = x[0] if len(x) else x.new_zeros(x.shape[1])
        positions = torch.arange(1, len(x) + 1, dtype=self.dtype)[pooling.skip_tokens :, None]
        results = {
            "cls": kept[0] if len(kept) else first,
            "lasttoken": kept[-1] if len(kept) else torch.zeros_like(first),
            "max": kept.amax(0) if len(kept) else x.new_full((x.shape[1],), float("-inf")),
            "mean": kept.sum(0) / max(len(kept), 1e-9),
            "mean_sqrt_len_tokens": kept.sum(0) / max(len(kept), 1e-9) ** 0.5,
            "weightedmean": (kept * positions).sum(0) / positions.sum().clamp(min=1e-9),
        }
        result = torch.cat([results[mode] for mode in pooling.modes])
        return F.normalize(result, dim=0) if pooling.normalize else result
