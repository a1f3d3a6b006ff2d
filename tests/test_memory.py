"""Memory: what `del` frees, and what forked processes share."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
from models_zoo import TINY, random_batch
from processes import run_python

import fastsal


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("architecture", ["albert", "bert"])
def test_del_frees_a_model_and_its_packed_weights(architecture, no_collector, no_grad):
    """There is no reference cycle that would have to wait for the garbage collector."""
    model = TINY[architecture]()
    plain = weakref.ref(model)
    model(**random_batch())
    del model
    assert plain() is None

    fast = fastsal.accelerate(TINY[architecture]())
    fast(**random_batch())
    fast.sentence_embeddings([[1, 2]])
    fast.embeddings.LayerNorm.bias.add_(1)
    fast(**random_batch())
    model, packed = weakref.ref(fast), weakref.ref(fast._fastsal.encoder(fast))
    del fast
    assert model() is None
    assert packed() is None


def test_prepare_packs_once(fast, monkeypatch, no_grad):
    from fastsal.backends.cpu import CpuBackend

    prepared = []
    original = CpuBackend.prepare
    monkeypatch.setattr(CpuBackend, "prepare", lambda *args: prepared.append(1) or original(*args))
    assert fastsal.prepare(fast) is fast
    assert len(prepared) == 1
    fastsal.prepare(fast)
    fast(**random_batch())
    assert len(prepared) == 1


def test_prepare_of_what_the_kernels_do_not_compute(model, no_grad):
    with pytest.raises(ValueError, match="accelerated encoder"):
        fastsal.prepare(model)
    fast = fastsal.accelerate(model, backend="reference")
    fastsal.prepare(fast)
    assert fast(**random_batch()).last_hidden_state.isfinite().all()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this system tells no private memory")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_children_share_what_was_prepared(tmp_path):
    output = run_python(
        f"""
        import os, pathlib, torch, fastsal
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sentence_transformer.modules import CNN, Pooling
        from tiny import bert_checkpoint

        checkpoint = bert_checkpoint(
            pathlib.Path({str(tmp_path)!r}) / "bert", hidden_size=512, intermediate_size=2048, num_hidden_layers=4
        )

        def private():
            lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024

        for prepares in (False, True):
            modules = [Transformer(str(checkpoint)), CNN(512, 512, [1, 3, 5]), Pooling(3 * 512, "max")]
            fast = fastsal.accelerate(SentenceTransformer(modules=modules, device="cpu"))
            if prepares:
                fastsal.prepare(fast)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                before = private()
                fast.encode(["the cat sat on the mat", "a dog"])
                os.write(writing, str(private() - before).encode())
                os._exit(0)
            os.waitpid(child, 0)
            print(int(os.read(reading, 100)) >> 20)
        """
    )
    unprepared, prepared = map(int, output)
    packed = (4 * 12 * 512**2 + 9 * 512**2) * 4 >> 20  # layers and convolutions
    assert unprepared >= packed
    assert prepared < packed // 3
