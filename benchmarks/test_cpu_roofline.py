"""How close the CPU encoder comes to what the processor can do, and where the rest goes.

    pytest benchmarks/test_cpu_roofline.py --benchmark-only

The peak is measured in the same run: the register tile's arithmetic without its loads, on one core, times the threads.
A row gives sentences/s on all threads, the fraction of that peak that the matrix products' operations (padding there is
none) amount to, and how one thread's time divides into the parts of a forward pass. Lengths are those of STS sentences;
--full adds other mixes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from random_encoder import random_encoder
from rounds import measure

from fastsal import _cpu
from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.native import batch_arguments
from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.pooling import PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights

DTYPES = ("float32", "bfloat16", "int8")
PARTS = ("products", "conversions", "attention", "norms", "embeddings", "pooling")
VOCABULARY = 1000


@dataclass(frozen=True)
class Shape:
    hidden: int
    heads: int
    intermediate: int
    schedule: tuple[int, ...]
    activation: str


SHAPES = {
    "ALBERT-base": Shape(768, 12, 3072, (0,) * 12, "gelu_tanh"),
    "BERT-base": Shape(768, 12, 3072, tuple(range(12)), "gelu"),
    "MiniLM-L6": Shape(384, 12, 1536, tuple(range(6)), "gelu"),
}


def lengths_of(mix: str) -> list[int]:
    """Token counts: log-normal with the mean of the mix."""
    generator = np.random.default_rng(0)

    def draw(mean: float, count: int, longest: int) -> list[int]:
        sizes = generator.lognormal(np.log(mean) - 0.1, 0.45, count)
        return np.clip(np.rint(sizes), 4, longest).astype(int).tolist()

    mixes = {
        "STS": lambda: draw(15, 256, 96),
        "queries": lambda: draw(8, 512, 32),
        "passages": lambda: draw(140, 32, 512),
        "mixed": lambda: draw(8, 128, 32) + draw(15, 128, 96) + draw(140, 16, 512),
    }
    lengths = mixes[mix]()
    generator.shuffle(lengths)
    return lengths


def random_weights(shape: Shape) -> tuple[EncoderSpec, EncoderWeights]:
    return random_encoder(
        shape.heads,
        shape.hidden // shape.heads,
        shape.intermediate,
        schedule=shape.schedule,
        activation=shape.activation,
        vocab_size=VOCABULARY,
        max_positions=512,
    )


def operations(shape: Shape, batch: PackedBatch) -> float:
    """Multiplications and additions of the layers' matrix products, without attention's."""
    per_token = 2 * len(shape.schedule) * shape.hidden * (4 * shape.hidden + 2 * shape.intermediate)
    return float(per_token * batch.num_tokens)


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    return {dtype: _cpu.peak_rate(dtype) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
def test_micro_kernels(benchmark, peaks, table, dtype):
    """A few panels of weights, which stay in L1, times a block of rows."""
    rate = benchmark.pedantic(lambda: _cpu.product_rate(dtype, 96, 384, 64), rounds=3)
    fraction = rate / peaks[dtype]
    benchmark.extra_info.update(operations_per_second=rate, fraction_of_peak=fraction)
    table.append(f"micro-kernel {dtype:9s} {rate / 1e9:7.0f} of {peaks[dtype] / 1e9:.0f} Gop/s a core: {fraction:.0%}")
    assert 0 < fraction < 2, "a rate far beyond the peak is a wrong measurement"


@pytest.mark.parametrize("mix", ["STS", "queries", "passages", "mixed"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_encoder(benchmark, peaks, table, name, dtype, mix, full):
    if mix != "STS" and not full:
        pytest.skip("with --full only")
    shape = SHAPES[name]
    encoder = CpuEncoder(*random_weights(shape), dtype)
    lengths = lengths_of(mix)
    generator = torch.Generator().manual_seed(0)
    batch = pack_token_lists([torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths])
    pooling = PoolingSpec(("mean",), normalize=True)
    embeddings = measure(benchmark, encoder.sentence_embeddings, batch, pooling, full=full)
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(len(lengths)), atol=1e-5)

    seconds = benchmark.stats.stats.min
    fraction = operations(shape, batch) / seconds / (peaks[dtype] * torch.get_num_threads())
    arguments = batch_arguments(batch)
    del arguments["inputs_embeds"]
    parts = encoder.native._native.profile(pooling=encoder.pooling(pooling), **arguments)
    shares = {part: parts[part] / sum(parts.values()) for part in PARTS}
    benchmark.extra_info.update(
        sentences_per_second=len(lengths) / seconds, fraction_of_peak=fraction, shares=shares, tokens=batch.num_tokens
    )
    table.append(
        f"{name:11s} {dtype:9s} {mix:9s} {len(lengths) / seconds:8.0f} sentences/s {fraction:5.0%} of peak   "
        + "  ".join(f"{part} {share:.0%}" for part, share in shares.items())
    )
    assert 0 < fraction < 2, "a rate far beyond the peak is a wrong measurement"
