"""What `sentence_embeddings` pools with: the public home of `PoolingSpec`, which the engine defines."""

from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec

__all__ = ["POOLING_MODES", "Convolution", "PoolingSpec"]
