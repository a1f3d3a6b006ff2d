"""Threads, forks and memory of the native encoder."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from random_encoder import random_batch, random_encoder, random_tokens

from fastsal._cpu import Scheme
from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.native import batch_arguments
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import PoolingSpec

pytestmark = pytest.mark.quiet


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_many_callers_at_once_get_the_serial_results(two_threads):
    encoder = CpuEncoder(*random_encoder(4, 16, 256))
    batches = [random_batch([(7 * i + j) % 90 + 1 for j in range(i % 9 + 1)], seed=i) for i in range(64)]
    expected = [encoder.sentence_embeddings(batch, PoolingSpec()) for batch in batches]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda batch: encoder.sentence_embeddings(batch, PoolingSpec()), batches * 4))
    for i, result in enumerate(results):
        assert torch.equal(result, expected[i % len(batches)])


def test_other_python_threads_run_during_a_call(two_threads):
    """The forward pass holds no GIL: a thread counting beside it makes progress."""
    encoder = CpuEncoder(*random_encoder(4, 32, 512, schedule=(0,) * 12))
    batch, done, counts = random_batch([100] * 50), threading.Event(), []

    def count() -> None:
        total = 0
        while not done.is_set():
            total += 1
        counts.append(total)

    counter = threading.Thread(target=count)
    counter.start()
    encoder.hidden_states(batch)
    done.set()
    counter.join()
    assert counts[0] > 100


def test_a_forked_child_computes_after_its_parent_did(two_threads):
    """In a process of its own with a time limit, since the failure would be a hang. Compared without torch, whose own
    OpenMP threads do not survive a fork."""
    script = """
import os, sys, torch
from random_encoder import random_batch, random_encoder
from fastsal._cpu import Scheme
from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.native import batch_arguments
torch.set_num_threads(2)
encoder, batch = CpuEncoder(*random_encoder(4, 16, 256)), random_batch([40] * 20)
expected = encoder.hidden_states(batch)
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = encoder.hidden_states(batch).numpy().tobytes() == expected.numpy().tobytes()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(encoder.hidden_states(batch), expected)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, start_new_session=True)
    try:
        assert process.wait(timeout=120) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_thread_count_of_torch_is_obeyed_and_unchanged(two_threads):
    encoder, batch = CpuEncoder(*random_encoder(4, 16, 256)), random_batch([40] * 40)
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_utime, resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for _ in range(20):
        encoder.hidden_states(batch)
    after = resource.getrusage(resource.RUSAGE_THREAD).ru_utime, resource.getrusage(resource.RUSAGE_SELF).ru_utime
    own, whole = after[0] - before[0], after[1] - before[1]
    assert whole <= own * 1.2 + 0.05, "with one thread all work is the caller's"
    assert torch.get_num_threads() == 1


def test_no_thread_spins_after_a_call(two_threads):
    encoder, batch = CpuEncoder(*random_encoder(4, 16, 256)), random_batch([40] * 40)
    encoder.hidden_states(batch)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    threading.Event().wait(0.5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 0.25


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_the_shapes_seen(two_threads):
    encoder = CpuEncoder(*random_encoder(4, 16, 256, max_positions=600))
    batches = [random_batch([1 + (37 * i) % 512] * (1 + i % 13)) for i in range(200)]
    for batch in batches:
        encoder.sentence_embeddings(batch, PoolingSpec())
    before = resident_bytes()
    for batch in batches:
        encoder.sentence_embeddings(batch, PoolingSpec())
    assert resident_bytes() - before < 16 << 20


def test_a_large_batch_needs_little_beyond_its_result(two_threads):
    """Peak memory of 10,000 sentences of mixed lengths, in a process of its own."""
    script = """
import resource, torch
from random_encoder import random_encoder, random_tokens
from fastsal._cpu import Scheme
from fastsal.backends.cpu import CpuEncoder
from fastsal.engine.native import batch_arguments
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import PoolingSpec
torch.set_num_threads(2)
encoder = CpuEncoder(*random_encoder(4, 16, 256))
batch = pack_token_lists(random_tokens([1 + 7 * i % 60 for i in range(10_000)]))
encoder.sentence_embeddings(pack_token_lists(random_tokens([512])), PoolingSpec())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
encoder.sentence_embeddings(batch, PoolingSpec())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(output.stdout) < 50  # MB; the result itself is 2.5


def test_packed_weights_are_one_copy_whatever_the_layer_count():
    spec, weights = random_encoder(12, 64, 3072, 128, schedule=(0,) * 12)
    encoder = CpuEncoder(spec, weights)
    layer = weights.layers[0]
    linears = [layer.query, layer.key, layer.value, layer.attention_output, layer.up, layer.down, weights.mapping]
    values = sum(linear.weight.numel() + linear.bias.numel() for linear in linears)
    assert encoder.native.packed_bytes <= 1.1 * values * 4


def test_results_do_not_depend_on_what_scratch_memory_held(two_threads):
    encoder = CpuEncoder(*random_encoder(3, 7, 50))
    poison = CpuEncoder(*random_encoder(3, 7, 50, scale=float("nan")))
    sentences = random_tokens([5, 40, 300, 2])
    expected = encoder.hidden_states(pack_token_lists(sentences))
    assert poison.hidden_states(pack_token_lists(sentences)).isnan().any()
    assert torch.equal(encoder.hidden_states(pack_token_lists(sentences)), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_how_threads_share_the_work_changes_no_bit(dtype):
    spec, weights = random_encoder()
    encoder = CpuEncoder(spec, weights, dtype)
    pooling = encoder.pooling(PoolingSpec(("mean", "max")))
    batch = random_batch([1, 2, 17, 40, 5, 130, 31, 3])
    results = []
    for threads in (1, 2, 3):
        for scheme in Scheme:
            output = torch.full((batch.num_sentences, 2 * spec.hidden_size), torch.nan)
            encoder.native._native.sentence_embeddings(
                pooling=pooling, **batch_arguments(batch), output=output, threads=threads, scheme=scheme
            )
            results.append(output)
    assert not results[0].isnan().any()
    assert all(torch.equal(result, results[0]) for result in results)
