"""What benchmarks/gpu_check.py makes of measurements; the measuring itself is rehearsed by benchmarks/gpu_check.sh."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from gpu_check import markdown
from gpu_encoder import ALBERT_BASE, Load, operations
from gpu_kernels import measured_choices

from fastsal.kernels.triton.tuning import Tuning, load


def test_choices_follow_the_measurements():
    shipped = load("h200")
    fast_triton, fast_cublas = (
        {"triton": 1.0, "cublas": 2.0, "fused": 3.0},
        {"triton": 2.0, "cublas": 1.0, "fused": 3.0},
    )
    measurements = {
        rows: {
            "attention": {"fused": 1.0, "split": 2.0},
            **dict.fromkeys(("qkv", "attention_output", "up", "down"), fast_triton if rows < 1000 else fast_cublas),
        }
        for rows in (16, 256, 4096, 32768)
    }
    choices = measured_choices(measurements, shipped.choices)
    assert choices.keys() == shipped.choices.keys()
    tuning = Tuning("measured", "today", 128, shipped.kernels, choices)
    for stage in ("qkv", "attention_output", "up", "down"):
        assert tuning.choice(stage, torch.float16, 256, 768) == "triton"
        assert tuning.choice(stage, torch.bfloat16, 257, 768) == "cublas"
        assert tuning.choice(stage, torch.bfloat16, 10**6, 768) == "cublas"
        assert tuning.choice(stage, torch.float32, 10**6, 768) == shipped.choice(stage, torch.float32, 10**6, 768)
    assert tuning.choice("attention", torch.float16, 10**6, 64) == "fused"
    assert tuning.choice("attention", torch.float16, 16, 128) == "split"
    assert tuning.choice("attention", torch.float32, 16, 64) == "split"


def test_the_table_names_every_figure():
    encoder = {"load": "32 sentences", "dtype": "bfloat16", "tokens": 480, "fraction_of_peak": 0.5}
    report = {
        "rehearsal": False, "gpu": "GPU", "date": "2000-01-01", "torch": "2", "triton": "3",
        "peak_operations_per_second": {"bfloat16": 7e14},
        "encoder": [{**encoder, "seconds": {"fastsal": 0.001, "hf_sdpa": 0.004}}],
        "kernels": [{"kernel": "k", "dtype": "float16", "seconds": {"fused": 0.001, "linear, gelu": 0.003}}],
        "stages": {"16": {"up": {"triton": 1e-5, "cublas": 2e-5}}},
    }  # fmt: skip
    text = markdown(report)
    assert "| 32 sentences | bfloat16 | fastsal 1.000 | hf_sdpa 4.000 | 4.00 | 50% |" in text
    assert "| k | float16 | fused 1.000 | linear, gelu 3.000 | 3.00 |  |" in text
    assert "| up | 16 | triton 10.0, cublas 20.0 |" in text
    assert "700 TFLOP/s" in text
    assert "nothing was measured" in markdown({"rehearsal": True})


def test_operations_and_lengths():
    lengths = Load("", 16384).lengths()
    assert 14 < lengths.mean() < 16
    assert lengths.min() >= 6
    one = operations(ALBERT_BASE, lengths[:1] * 0 + 12)
    # 12 layers of 7.08 million weights, 0.1 million of the mapping, two operations each, and the scores
    assert one == pytest.approx(2 * 12 * (12 * 7.078e6 + 98304) + 12 * 4 * 768 * 144, rel=1e-3)
