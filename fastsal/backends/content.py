"""What is noticed of writes that leave no trace in PyTorch: a sample of the content of tensors.

Collectives, ``parameter.data.copy_``, NumPy views and other processes write to a tensor without counting a version. A
few words of each tensor are compared instead, in one native call: whoever writes all of a tensor anew changes some.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fastsal.engine import native


class ContentSample:
    """Takes samples of tensors' memory on the CPU; of other devices' there is none, as it would wait for them.

    The tensors must stay where they are as long as samples are taken.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Without kernels nothing is packed, and nothing has to be noticed.
        sampled = [t for t in tensors if _has_memory(t)] if native.why_unavailable() is None else []
        self._addresses = np.array([tensor.data_ptr() for tensor in sampled], np.int64)
        self._sizes = np.array([_extent(tensor) for tensor in sampled], np.int64)

    def take(self) -> int:
        """A number that changes when a tensor is written anew; some 10 us for a hundred tensors."""
        return native.content_sample(self._addresses, self._sizes) if len(self._sizes) else 0


def _has_memory(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.numel() > 0 and tensor.data_ptr() != 0


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the last, whatever lies between."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.element_size()
