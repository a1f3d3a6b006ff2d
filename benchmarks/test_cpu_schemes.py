"""How threads should share a batch: what each scheme costs, and whether the encoder picks the cheaper one.

    pytest benchmarks/test_cpu_schemes.py --benchmark-only

A block of sentences for each thread needs no barriers but leaves threads waiting where the blocks differ; sharing every
block costs barriers. The table gives both times and the choice; `kMaxImbalance` (kernels/cpu/forward.cpp) rests on it.
"""

from __future__ import annotations

import time

import pytest
import torch
from test_cpu_roofline import SHAPES, VOCABULARY, random_weights

from fastsal._cpu import Scheme
from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.native import batch_arguments
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import PoolingSpec

BATCHES = {
    "1 x 12": [12],
    "2 x 12": [12] * 2,
    "12 and 14": [12, 14],
    "12 and 16": [12, 16],
    "3 x 12": [12] * 3,
    "5 x 15": [15] * 5,
    "9 x 15": [15] * 9,
    "16 x 15": [15] * 16,
    "17 x 15": [15] * 17,
    "33 x 15": [15] * 33,
    "60 and 40": [60, 40],
    "512 and 100": [512, 100],
}
MIN_ROUNDS, SECONDS = 3, 0.2
# Far from the choice's own cost, which the table shows: noise on a shared machine passes, a wrong choice does not.
LOST_AT_MOST = 1.4


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread: there is nothing to share")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", ["ALBERT-base", "MiniLM-L6"])
def test_schemes(benchmark, table, name, dtype):
    encoder = CpuEncoder(*random_weights(SHAPES[name]), dtype)
    pooling = encoder.pooling(PoolingSpec(("mean",)))
    generator = torch.Generator().manual_seed(0)

    def measure(lengths: list[int]) -> dict[Scheme, float]:
        batch = pack_token_lists([torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths])
        outputs = {scheme: torch.empty(len(lengths), SHAPES[name].hidden) for scheme in Scheme}
        seconds = dict.fromkeys(Scheme, float("inf"))
        rounds, end = 0, time.perf_counter() + SECONDS
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            rounds += 1
            for scheme, output in outputs.items():  # in turns, so that noise meets all
                start = time.perf_counter()
                encoder.native._native.sentence_embeddings(
                    pooling=pooling,
                    **batch_arguments(batch),
                    output=output,
                    threads=torch.get_num_threads(),
                    scheme=scheme,
                )
                seconds[scheme] = min(seconds[scheme], time.perf_counter() - start)
        assert torch.equal(outputs[Scheme.block_per_thread], outputs[Scheme.shared_blocks])
        return seconds

    results = benchmark.pedantic(lambda: {label: measure(lengths) for label, lengths in BATCHES.items()}, rounds=1)
    for label, seconds in results.items():
        apart, shared, chosen = (seconds[s] for s in (Scheme.block_per_thread, Scheme.shared_blocks, Scheme.by_cost))
        table.append(
            f"{name:11s} {dtype:8s} {label:12s} apart {apart * 1e3:8.2f} ms  shared {shared * 1e3:8.2f} ms  "
            f"chosen {chosen * 1e3:8.2f} ms = {chosen / min(apart, shared):.2f} of the better"
        )
        assert chosen <= LOST_AT_MOST * min(apart, shared), f"the dearer scheme was chosen for {label}"
    benchmark.extra_info.update({label: {s.name: t for s, t in seconds.items()} for label, seconds in results.items()})
