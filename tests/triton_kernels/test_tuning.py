"""The shipped configurations: each file serves every kernel, dtype and size; the first call finds a rule."""

from __future__ import annotations

import pytest
import torch

from fastsal.backends.triton_encoder import GRAPH_TOKENS
from fastsal.kernels.triton.attention import plan_attention
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
    assert FILES == ["default", "h200"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_launch_finds_its_configuration(name, dtype):
    tuning = load(name)
    assert tuning.measured is None or isinstance(tuning.measured, str)
    assert tuning.kernels.keys() == BLOCKS.keys()
    assert tuning.choices.keys() == CHOICES.keys()
    for rows in (1, 16, 1000, 10**6):
        for width in (1, 26, 64, 128, 256, 768, 4096, 8192):
            for kernel, blocks in BLOCKS.items():
                config = tuning.config(kernel, dtype, rows, width)
                assert config.keys() - {"num_warps", "num_stages", "maxnreg"} == blocks
                assert all(config[block].bit_count() == 1 for block in blocks)
            for stage, uses in CHOICES.items():
                assert tuning.choice(stage, dtype, rows, width) in uses
            for way in ("fused", "split"):
                assert tuning.tile_tokens(way, dtype, rows, width) in (16, 32, 64, 128)


@pytest.mark.parametrize("name", FILES)
def test_a_batch_and_the_graph_that_holds_it_find_the_same_rules(name):
    """A sentence's bits are the same in a first call, which is as large as it is, and in a graph's spare rows."""
    tuning = load(name)
    for rules in (*tuning.kernels.values(), *tuning.choices.values(), *tuning.tiles.values()):
        for rule in rules:
            rows = rule.get("max_rows")
            assert rows is None or rows in GRAPH_TOKENS or rows > GRAPH_TOKENS[-1]


@pytest.mark.parametrize("name", FILES)
def test_few_tokens_call_no_cublas(name):
    """Graphs hold none of it."""
    tuning = load(name)
    for dtype in (torch.float32, torch.float16):
        for stage in CHOICES:
            assert tuning.choice(stage, dtype, 512, 3072) != "cublas"


@pytest.mark.parametrize(
    ("dtype", "rows", "longest", "head_size", "fused", "tile_tokens"),
    [
        (torch.float16, 12, 12, 64, True, 16),
        (torch.float16, 33, 20, 64, True, 64),
        (torch.float16, 2048, 128, 64, True, 128),
        (torch.float16, 2048, 129, 64, False, 64),
        (torch.float16, 30_000, 16, 64, False, 16),
        (torch.float16, 30_000, 17, 64, False, 32),
        (torch.float16, 30_000, 512, 64, False, 64),
        (torch.float16, 30_000, 512, 256, False, 32),
        (torch.float32, 30_000, 512, 64, False, 64),
        (torch.float32, 30_000, 512, 80, False, 16),
        (torch.float32, 5, 0, 80, False, 16),
    ],
)
def test_tiles_fit_the_longest_sentence(dtype, rows, longest, head_size, fused, tile_tokens):
    plan = plan_attention(rows, longest, head_size, dtype, load("h200"))
    assert (plan.fused, plan.tile_tokens) == (fused, tile_tokens)


def test_rules_go_by_dtype_rows_and_width():
    tuning = load("h200")
    small, large = (tuning.config("linear", torch.float16, rows, 768) for rows in (8, 100_000))
    assert small["BLOCK_M"] < large["BLOCK_M"]
    assert tuning.choice("attention", torch.float16, 100, 64) == "fused"
    assert tuning.choice("attention", torch.float32, 100, 64) == "split"
    assert tuning.choice("attention", torch.float16, 30_000, 64) == "split"
    with pytest.raises(LookupError, match=r"h200\.json has no rule for nothing"):
        tuning.config("nothing", torch.float16, 1)
