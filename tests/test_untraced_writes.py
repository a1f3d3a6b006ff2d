"""Writes to weights that count no version: `.data`, NumPy views, collectives, other processes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from models_zoo import TINY, random_batch
from processes import run_python
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, LayerNorm, Pooling
from tiny import TEXTS

import fastsal
from fastsal.backends.content import ContentSample
from fastsal.engine.packing import pack_token_lists


def _scale_data(module):
    for parameter in module.parameters():
        parameter.data.mul_(1.25)


def _average_into_data(module):
    """As averages of weights are put in place of them."""
    for parameter in module.parameters():
        average = 0.9 * parameter.detach() + 0.1 * torch.randn_like(parameter)
        parameter.data.copy_(average.data)


def _write_by_numpy(module):
    for parameter in module.parameters():
        array = parameter.detach().numpy()
        array += np.float32(0.01)


def _write_to_an_alias(module):
    for parameter in module.parameters():
        torch.from_numpy(parameter.detach().numpy()).mul_(0.8)


WRITES = [_scale_data, _average_into_data, _write_by_numpy, _write_to_an_alias]


@pytest.mark.parametrize("write", WRITES)
def test_all_weights_of_an_encoder(fast, write, no_grad):
    batch = random_batch()
    before = fast(**batch).last_hidden_state
    for _ in range(2):
        versions = [parameter._version for parameter in fast.parameters()]
        write(fast)
        assert versions == [parameter._version for parameter in fast.parameters()]
        anew = fastsal.accelerate(fastsal.restore(copy.deepcopy(fast)))
        assert torch.equal(fast(**batch).last_hidden_state, anew(**batch).last_hidden_state)
        assert not torch.equal(fast(**batch).last_hidden_state, before)
    assert fast.fastsal_status().last_fallback is None


@pytest.mark.parametrize("architecture", ["albert", "bert"])
def test_any_single_tensor_of_an_encoder(architecture, no_grad):
    """Whichever is written to, nothing old is computed with."""
    fast = fastsal.accelerate(TINY[architecture](add_pooling_layer=False))
    batch = random_batch()
    for parameter in fast.parameters():
        before = fast(**batch).last_hidden_state
        parameter.data.add_(torch.randn_like(parameter))
        anew = fastsal.accelerate(fastsal.restore(copy.deepcopy(fast)))
        after = fast(**batch).last_hidden_state
        assert torch.equal(after, anew(**batch).last_hidden_state)
        if parameter is not fast.embeddings.position_embeddings.weight:  # rows that no token has
            assert not torch.equal(after, before)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["CNN", "Dense", "LayerNorm"])
def test_modules_around_the_encoder(checkpoint, write, kind):
    behind = {
        "CNN": [CNN(32, 6, [1, 3]), Pooling(12, "max")],
        "Dense": [Pooling(32, "mean"), Dense(32, 8)],
        "LayerNorm": [Pooling(32, "mean"), LayerNorm(32)],
    }[kind]
    model = SentenceTransformer(modules=[Transformer(str(checkpoint)), *behind], device="cpu")
    fast = fastsal.accelerate(copy.deepcopy(model))
    before = fast.encode(TEXTS)
    (changed,) = (module for module in fast if type(module).__name__ == kind)
    write(changed)
    after = fast.encode(TEXTS)
    assert np.array_equal(after, fastsal.accelerate(fastsal.restore(copy.deepcopy(fast))).encode(TEXTS))
    assert not np.array_equal(after, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (7,), (33, 3), (300,), (64, 129), ()])
def test_a_sample_changes_with_all_of_a_tensor(shape, dtype):
    tensor = torch.randn(shape).to(dtype)
    others = [torch.randn(5), torch.randn(40, 40)]
    sample = ContentSample([others[0], tensor, others[1]])
    before = sample.take()
    assert sample.take() == before
    tensor.data.neg_()
    assert sample.take() != before
    tensor.data.neg_()
    assert sample.take() == before


def test_a_sample_sees_every_byte_of_a_small_tensor():
    tensor = torch.zeros(63, dtype=torch.uint8)
    sample = ContentSample([tensor])
    seen = {sample.take()}
    for index in range(63):
        tensor[index] = 1
        seen.add(sample.take())
    assert len(seen) == 64


def test_a_sample_of_views_stays_in_their_memory():
    base = torch.randn(50, 60)
    views = [base[10:20, 5:9], base.t()[3:4], base[49:, 59:], base[:0], torch.empty(3, 0)]
    sample = ContentSample(views)
    before = sample.take()
    base[0, :3].neg_()
    assert sample.take() == before
    base[49, 59].neg_()
    assert sample.take() != before


def test_tables_and_layers_are_of_one_state_where_other_processes_write(no_grad):
    """Tables are read where they are: shared ones could become newer than the packed layers during a call."""
    fast = fastsal.accelerate(TINY["bert"]())
    fast.share_memory()
    before = fast(**random_batch()).last_hidden_state
    encoder, tokens = fast._fastsal.encoder(fast), pack_token_lists([[1, 2, 3]])
    states = encoder.hidden_states(tokens)
    fast.embeddings.word_embeddings.weight.data.mul_(2)
    assert torch.equal(encoder.hidden_states(tokens), states)
    assert not torch.equal(fast(**random_batch()).last_hidden_state, before)


def test_a_write_while_weights_are_packed_is_packed_too(monkeypatch, no_grad):
    from fastsal.backends.cpu import CpuBackend

    fast = fastsal.accelerate(TINY["bert"]())
    prepare, writes = CpuBackend.prepare, [1.5]

    def prepare_and_write(*args):
        packed = prepare(*args)
        if writes:  # a thread or process of another's, when half is packed
            fast.encoder.layer[0].output.dense.weight.data.mul_(writes.pop())
        return packed

    monkeypatch.setattr(CpuBackend, "prepare", prepare_and_write)
    ours = fast(**random_batch()).last_hidden_state
    assert not writes
    anew = fastsal.accelerate(fastsal.restore(copy.deepcopy(fast)))
    assert torch.equal(ours, anew(**random_batch()).last_hidden_state)


def test_collectives():
    """gloo's broadcast and all_reduce write to the tensors themselves."""
    output = run_python(
        """
        import copy, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp
        import fastsal
        from models_zoo import TINY, random_batch

        def work(rank, store):
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            fast = fastsal.accelerate(TINY["albert"](seed=rank))
            batch = random_batch()
            with torch.no_grad():
                before = fast(**batch).last_hidden_state
                for collective in (lambda t: dist.broadcast(t, 0), dist.all_reduce):
                    for parameter in fast.parameters():
                        collective(parameter.data)
                    ours = fast(**batch).last_hidden_state
                    anew = fastsal.accelerate(fastsal.restore(copy.deepcopy(fast)))
                    assert torch.equal(ours, anew(**batch).last_hidden_state), collective
                assert not torch.equal(ours, before)
                assert fast.fastsal_status().last_fallback is None
            dist.destroy_process_group()

        if __name__ == "__main__":
            mp.start_processes(work, (tempfile.mktemp(),), nprocs=2, start_method="fork")
            print("done")
        """,
        timeout=120,
    )
    assert output[-1] == "done"


def test_another_process_trains_shared_weights():
    output = run_python(
        """
        import copy, os, torch, fastsal
        from models_zoo import TINY, random_batch
        torch.set_num_threads(1)
        for architecture in ("albert", "bert"):
            fast = fastsal.accelerate(TINY[architecture]())
            fast.share_memory()
            batch = random_batch()
            with torch.no_grad():
                before = fast(**batch).last_hidden_state
            child = os.fork()
            if child == 0:
                optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
                fast.train()(**batch).last_hidden_state.pow(2).sum().backward()
                optimizer.step()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with torch.no_grad():
                after = fast(**batch).last_hidden_state
                anew = fastsal.accelerate(fastsal.restore(copy.deepcopy(fast)))
                print(torch.equal(after, anew(**batch).last_hidden_state), torch.equal(after, before))
        """
    )
    assert output == ["True False"] * 2
