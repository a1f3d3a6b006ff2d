"""PoolingSpec: what turns token embeddings into one vector per sentence, after the encoder.

The order is the one of sentence-transformers' modules: CNN (optional), pooling, L2 normalisation (optional).
"""

from __future__ import annotations

from dataclasses import dataclass

from fastsal.engine.spec import Array

__all__ = ["POOLING_MODES", "Convolution", "PoolingSpec"]

#: sentence-transformers' names, in the order in which old configs with several flags concatenate them.
POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@dataclass(frozen=True)
class Convolution:
    """One Conv1d over the tokens: weight (out_channels, hidden_size, kernel_size), bias (out_channels,) or None.

    `stride` is the step from one output position to the next. Both sides of the sentence are padded with
    ``(kernel_size - 1) // 2`` zeros, as sentence-transformers' CNN has it.
    """

    weight: Array
    bias: Array | None
    stride: int = 1

    @property
    def kernel_size(self) -> int:
        return self.weight.shape[-1]

    def output_length(self, length: int) -> int:
        """Number of output positions for a sentence of `length` tokens; not positive if it is too short."""
        return (length + 2 * ((self.kernel_size - 1) // 2) - self.kernel_size) // self.stride + 1


@dataclass(frozen=True)
class PoolingSpec:
    """What `PreparedEncoder.sentence_embeddings` does after the last layer.

    Attributes:
        modes: pooling modes, results concatenated in this order; each one of `POOLING_MODES`.
        convolutions: the CNN's convolutions (their outputs concatenated per position), empty for none.
        skip_tokens: leading positions of every sentence that are attended but not pooled (an excluded prompt).
        normalize: scale each result to L2 norm 1 (zero vectors stay zero).

    Values where a sentence has no position to pool, as in sentence-transformers: mean modes and lasttoken give 0, max
    gives -inf, cls gives the sentence's first position, or 0 where the sentence is empty.
    """

    modes: tuple[str, ...] = ("mean",)
    convolutions: tuple[Convolution, ...] = ()
    skip_tokens: int = 0
    normalize: bool = False

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in POOLING_MODES:
                raise ValueError(f"pooling mode must be one of {POOLING_MODES}, got {mode!r}")
        if not self.modes:
            raise ValueError("modes must name at least one pooling mode, got none")

    def output_size(self, hidden_size: int) -> int:
        """Columns of the sentence embeddings of an encoder of this `hidden_size`."""
        width = sum(c.weight.shape[0] for c in self.convolutions) if self.convolutions else hidden_size
        return len(self.modes) * width


def check_lengths(lengths: list[int], pooling: PoolingSpec) -> None:
    """Raise ValueError where a convolution cannot take a sentence, or two give different numbers of positions."""
    for length in dict.fromkeys(lengths):
        positions = [convolution.output_length(length) for convolution in pooling.convolutions]
        if length and positions and min(positions) < 1:
            kernel_size = pooling.convolutions[positions.index(min(positions))].kernel_size
            raise ValueError(
                f"sentence {lengths.index(length)} has {length} tokens, too few for a convolution of kernel size "
                f"{kernel_size}"
            )
        if length and len(set(positions)) > 1:
            raise ValueError(
                f"the convolutions give different lengths for sentence {lengths.index(length)}: {positions}"
            )
