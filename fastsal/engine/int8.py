"""Which columns the int8 kernels scale before they round, from the weights alone: no calibration data.

A LayerNorm's own weights say how large each channel of its output gets: about 3 |gamma| + |beta|. Dividing the channel
by its smoothing and multiplying the weights that read it moves the large channels' rounding error into the weights, as
in SmoothQuant (Xiao et al. 2023, arXiv 2211.10438), which measures the sizes instead.
"""

from __future__ import annotations

import numpy as np

from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear

#: Shares of the channel's size that go into the weights, for the inputs of q, k, v and of the feed-forward layer.
#: Chosen, as the other weights that count, by benchmarks/int8_accuracy.py.
QKV_EXPONENT, UP_EXPONENT = 0.25, 0.75

#: A channel counts at least as much as this share of what q and k read of it.
_OTHERS_SHARE = 0.1


def int8_smoothing(spec: EncoderSpec, weights: EncoderWeights) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every layer in ``weights.layers`` (float32 arrays) what its q, k, v input and its feed-forward input are
    divided by.

    Both are (hidden_size,) float32 and positive. A layer that runs several times (ALBERT) sees the outputs of several
    norms; the largest size of each channel counts.
    """
    norms_before: list[list[LayerNorm]] = [[] for _ in weights.layers]
    previous = weights.embedding_norm if weights.mapping is None else None
    for index in spec.layer_schedule:
        if previous is not None:
            norms_before[index].append(previous)
        previous = weights.layers[index].output_norm
    return [
        (
            smoothing(norms, qkv_sizes(layer), QKV_EXPONENT),
            smoothing([layer.attention_norm], column_sizes(layer.up), UP_EXPONENT),
        )
        for layer, norms in zip(weights.layers, norms_before, strict=True)
    ]


def column_sizes(reader: Linear) -> np.ndarray:
    """The largest weight that reads each channel."""
    return np.maximum(reader.weight.max(0), -reader.weight.min(0))


def qkv_sizes(layer: LayerWeights) -> np.ndarray:
    """Of q, k and v, whose input is the same, v decides: its errors reach the output, theirs shift the softmax. But
    what v ignores must not be blown up for the others: in their weights it alone would set the scale of its group."""
    others = np.maximum(column_sizes(layer.query), column_sizes(layer.key))
    return np.maximum(column_sizes(layer.value), np.float32(_OTHERS_SHARE) * others)


def smoothing(norms: list[LayerNorm], reader_sizes: np.ndarray, exponent: float) -> np.ndarray:
    """What each channel is divided by, given the norms that it may come from and the weights that read it."""
    if not norms:
        return np.ones_like(reader_sizes)
    sizes = np.max([3 * np.abs(norm.weight) + np.abs(norm.bias) for norm in norms], axis=0)
    divisors = np.maximum(sizes, 1e-5) ** exponent / np.maximum(reader_sizes, 1e-5) ** (1 - exponent)
    return np.maximum(divisors, 1e-5).astype(np.float32)
