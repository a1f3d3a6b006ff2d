"""The CPU backend: torch tensors around the engine's kernels, which see the same memory as numpy arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastsal.backends.fingerprint import pooling_fingerprint
from fastsal.backends.rows import cast, contiguous
from fastsal.engine.native import PRECISIONS, NativeEncoder, NativePooling, describe_kernels, why_unavailable
from fastsal.engine.packing import PackedBatch
from fastsal.engine.pooling import Convolution, PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights

#: Convolutions kept packed per encoder; a model has one set, more only while its weights change.
_MAX_PACKED_POOLINGS = 4


class CpuBackend:
    """Compiled kernels for x86-64 and 64-bit Arm."""

    name = "cpu"

    def unavailable(self) -> str | None:
        return why_unavailable()

    def describe(self) -> str:
        """Instruction sets of this build, the selected one named first. Only where the backend is available."""
        return describe_kernels()

    def unsupported(self, spec: EncoderSpec, dtype: str, device: torch.device) -> str | None:
        if device.type != "cpu":
            return f"the CPU kernels need the model on the CPU, it is on {device}"
        if dtype not in PRECISIONS:
            return f"the CPU kernels compute in {', '.join(PRECISIONS)}, not in {dtype}"
        return None

    def prepare(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str) -> CpuEncoder:
        return CpuEncoder(spec, weights, dtype)


class CpuEncoder:
    """`NativeEncoder` for torch: implements `PreparedEncoder`.

    float32 embedding tables are read where they are, unless another process may write to them: no call may compute with
    new tables and old layers. Everything else is copied once into the kernels' layout. Threads are as many as torch is
    set to at the call.
    """

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, dtype: str = "float32") -> None:
        self.native = NativeEncoder(spec, weights.map(_as_own_floats), dtype, torch.get_num_threads())
        # No lock, which a forked child could find held: each operation on it is atomic.
        self._poolings: dict[tuple, tuple[PoolingSpec, NativePooling]] = {}

    def hidden_states(self, batch: PackedBatch, all_layers: bool = False) -> Tensor:
        output = torch.from_numpy(self.native.hidden_states(batch, torch.get_num_threads(), all_layers))
        return output if all_layers else output[0]

    def sentence_embeddings(self, batch: PackedBatch, pooling: PoolingSpec) -> Tensor:
        packed = self.pooling(pooling)
        return torch.from_numpy(self.native.sentence_embeddings(batch, packed, torch.get_num_threads()))

    def warm_up(self, pooling: PoolingSpec) -> None:
        """Nothing is left to do: the kernels are compiled, the weights laid out."""

    def pooling(self, pooling: PoolingSpec) -> NativePooling:
        """`pooling` packed, kept for the next call with the same one."""
        key = pooling_fingerprint(pooling)
        known = self._poolings.get(key)
        if known is not None:
            return known[1]
        convolutions = tuple(
            Convolution(as_floats(c.weight), None if c.bias is None else as_floats(c.bias), c.stride)
            for c in pooling.convolutions
        )
        packed = self.native.pooling(
            PoolingSpec(pooling.modes, convolutions, max(pooling.skip_tokens, 0), pooling.normalize)
        )
        self._poolings[key] = (pooling, packed)  # the spec keeps its tensors, so that no address is reused
        for oldest in list(self._poolings)[:-_MAX_PACKED_POOLINGS]:
            self._poolings.pop(oldest, None)
        return packed


def as_floats(tensor: Tensor) -> np.ndarray:
    """A tensor on the CPU as a contiguous float32 array: the same memory where it is one already.

    By DLPack, as `Tensor.numpy` would forbid the owner to resize the tensor's storage, which sharding does.
    """
    return np.from_dlpack(contiguous(cast(tensor.detach(), torch.float32)))


def _as_own_floats(tensor: Tensor) -> np.ndarray:
    """As `as_floats`, in memory of this process."""
    floats = as_floats(tensor)
    return floats.copy() if tensor.is_shared() else floats
