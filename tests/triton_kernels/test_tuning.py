"""The shipped configurations: each file serves every kernel, dtype and size; the first call finds a rule."""

from __future__ import annotations

import pytest
import torch

from fastsal.kernels.triton.tuning import CONFIG_DIR, load

FILES = sorted(path.stem for path in CONFIG_DIR.glob("*.json"))

BLOCKS = {
    "embed": {"BLOCK_M", "BLOCK_N"},
    "embed_map": {"BLOCK_M", "BLOCK_N"},
    "residual_norm": {"BLOCK_M"},
    "bias_activation": {"BLOCK_M", "BLOCK_N"},
    "linear": {"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M"},
    "project_norm": {"BLOCK_M", "BLOCK_N", "BLOCK_K"},
    "qkv_attention": {"BLOCK_K"},
    "attention": {"BLOCK_S"},
    "conv_pool": {"BLOCK_K"},
    "pool": {"BLOCK_M"},
}
CHOICES = {
    "attention": {"fused", "split"},
    "qkv": {"triton", "cublas"},
    "up": {"triton", "cublas"},
    "attention_output": {"triton", "cublas", "fused"},
    "down": {"triton", "cublas", "fused"},
}


def test_the_files():
    assert FILES == ["default", "h200", "mi300"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_launch_finds_its_configuration(name, dtype):
    tuning = load(name)
    assert tuning.block_tokens in (64, 128)
    assert tuning.measured is None or isinstance(tuning.measured, str)
    assert tuning.kernels.keys() == BLOCKS.keys()
    assert tuning.choices.keys() == CHOICES.keys()
    for rows in (1, 16, 1000, 10**6):
        for width in (1, 26, 64, 128, 256, 768, 4096, 8192):
            for kernel, blocks in BLOCKS.items():
                config = tuning.config(kernel, dtype, rows, width)
                assert config.keys() - {"num_warps", "num_stages"} == blocks
                assert all(config[block].bit_count() == 1 for block in blocks)
            for stage, uses in CHOICES.items():
                assert tuning.choice(stage, dtype, rows, width) in uses


def test_rules_go_by_dtype_rows_and_width():
    tuning = load("h200")
    small, large = (tuning.config("linear", torch.float16, rows, 768) for rows in (8, 100_000))
    assert small["BLOCK_M"] < large["BLOCK_M"]
    assert tuning.choice("attention", torch.float16, 100, 64) == "fused"
    assert tuning.choice("attention", torch.float32, 100, 64) == "split"
    with pytest.raises(LookupError, match=r"h200\.json has no rule for nothing"):
        tuning.config("nothing", torch.float16, 1)
