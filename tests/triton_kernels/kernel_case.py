"""Where the kernel tests run: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fastsal.engine.packing import TokenBlocks, token_blocks
from fastsal.kernels.triton.tuning import Tuning, tuning_for

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

#: The interpreter's tl.dot multiplies the bit patterns of bfloat16 (triton-lang/triton #11584).
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]

# The interpreter takes its time per operation, not per element: blocks as large as the kernels have them.
_MATRIX_BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}
_INTERPRETED = Tuning(
    name="interpreter",
    measured=None,
    kernels={
        name: [{"config": config}]
        for name, config in {
            "embed": {"BLOCK_M": 32, "BLOCK_N": 16},
            "embed_map": {"BLOCK_M": 32, "BLOCK_N": 64},
            "residual_norm": {"BLOCK_M": 32},
            "bias_activation": {"BLOCK_M": 32, "BLOCK_N": 64},
            "linear": {**_MATRIX_BLOCKS, "GROUP_M": 2},
            "project_norm": _MATRIX_BLOCKS,
            "qkv_attention": {"BLOCK_K": 64},
            "attention": {"BLOCK_S": 64},
            "conv_pool": {"BLOCK_K": 64},
            "pool": {"BLOCK_M": 32},
        }.items()
    },
    choices={},
    tiles={"fused": [{"tokens": 64}], "split": [{"tokens": 64}]},
)

#: How the tests launch: as the GPU would, or in few large blocks.
TUNING = tuning_for(DEVICE) if DEVICE.type == "cuda" else _INTERPRETED

#: What the backend can compute in several ways.
STAGES = ("attention", "qkv", "attention_output", "up", "down")


def tuning_with(**uses: str) -> Tuning:
    """Every stage by its Triton kernels, those named otherwise."""
    choices = {"attention": "fused", **dict.fromkeys(STAGES[1:], "triton"), **uses}
    return replace(TUNING, choices={stage: [{"use": use}] for stage, use in choices.items()})


def normal(*shape: int, std: float = 1.0, seed: int = 0) -> Tensor:
    """float64, to be rounded by `rounded`."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * std


def rounded(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    """The tensors in `dtype` on the device: what kernel, reference and truth all start from."""
    return [tensor.to(DEVICE, dtype) for tensor in tensors]


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Memory for a result, full of NaN: what a kernel forgets to write shows."""
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def blocks_of(lengths: list[int], block_tokens: int) -> tuple[TokenBlocks, Tensor, Tensor, Tensor]:
    """Token blocks of sentences of these lengths, and segments, tiles and cu_seqlens on the device."""
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    blocks = token_blocks(cu_seqlens.numpy(), block_tokens)
    segments, tiles = torch.from_numpy(blocks.segments), torch.from_numpy(blocks.tiles())
    return blocks, segments.to(DEVICE), tiles.to(DEVICE), cu_seqlens.int().to(DEVICE)
