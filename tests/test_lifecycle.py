"""What happens to a model between calls: new weights, copies, pickles, threads, forks, many shapes."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import resource
import threading
import weakref
from pathlib import Path

import pytest
import torch
from models_zoo import TINY, random_batch, tiny_albert, tiny_bert
from processes import run_python
from torch import nn
from torch.nn.utils import parametrize

import fastsal


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def run(encoder):
    return encoder(**random_batch()).last_hidden_state


def assert_ran_native(fast):
    status = fast.fastsal_status()
    assert status.backend == "cpu"
    assert status.last_fallback is None


def assert_follows(fast):
    """What `fast` computes is what a model with its weights, accelerated anew, computes; and what plain HF does."""
    ours = run(fast)
    assert_ran_native(fast)
    plain = fastsal.restore(copy.deepcopy(fast))
    assert torch.equal(ours, run(fastsal.accelerate(copy.deepcopy(plain))))
    mask = random_batch()["attention_mask"].bool()
    torch.testing.assert_close(ours[mask], run(plain)[mask], rtol=1e-3, atol=1e-4)


# ----------------------------------------------------------------------------------------------------- stale weights


def _attention(fast):
    if hasattr(fast.encoder, "layer"):
        return fast.encoder.layer[0].attention.self
    return fast.encoder.albert_layer_groups[0].albert_layers[0].attention


def _other(fast):
    return TINY[fast.config.model_type](seed=7)


def _optimizer_step(make):
    def change(fast):
        with torch.enable_grad():
            optimizer = make(fast.parameters())
            fast.train()(**random_batch()).last_hidden_state.pow(2).sum().backward()
            optimizer.step()
            fast.eval()

    return change


def _swap_layer(fast):
    other = _other(fast)
    if hasattr(fast.encoder, "layer"):
        fast.encoder.layer[1] = other.encoder.layer[1]
    else:
        fast.encoder.albert_layer_groups[0] = other.encoder.albert_layer_groups[0]


def _set_data(fast):
    weight = _attention(fast).query.weight
    weight.data = torch.randn_like(weight)


def _transpose_data(fast):
    weight = _attention(fast).query.weight  # same memory, same shape, other strides
    weight.data = weight.data.t()


def _shrink_vocabulary_in_place(fast):
    weight = fast.embeddings.word_embeddings.weight  # same memory, fewer rows
    weight.data = torch.cat([weight.data[1:], weight.data[:1]])


def _delete_attribute_and_register(fast):
    linear = _attention(fast).value
    weight = linear.weight
    del linear.weight
    linear.register_parameter("weight", nn.Parameter(weight * 2))


CHANGES = {
    "load_state_dict": lambda fast: fast.load_state_dict(_other(fast).state_dict()),
    "load_state_dict by assignment": lambda fast: fast.load_state_dict(_other(fast).state_dict(), assign=True),
    "SGD": _optimizer_step(lambda parameters: torch.optim.SGD(parameters, lr=0.05)),
    "Adam": _optimizer_step(lambda parameters: torch.optim.Adam(parameters, lr=0.01)),
    "fused AdamW": _optimizer_step(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True)),
    "in place": lambda fast: _attention(fast).key.weight.mul_(1.5),
    "one element": lambda fast: fast.embeddings.LayerNorm.bias[3:4].add_(0.5),
    "vector_to_parameters": lambda fast: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(fast.parameters()) * 1.01, fast.parameters()
    ),
    "new parameter": lambda fast: setattr(_attention(fast).query, "bias", nn.Parameter(torch.randn(32))),
    "new module": lambda fast: setattr(_attention(fast), "query", nn.Linear(32, 32)),
    "new layer": _swap_layer,
    "new data": _set_data,
    "transposed data": _transpose_data,
    "rolled table": _shrink_vocabulary_in_place,
    "deleted and registered": _delete_attribute_and_register,
    "swap_tensors": lambda fast: torch.utils.swap_tensors(
        _attention(fast).query.weight, nn.Parameter(torch.randn(32, 32))
    ),
    "input embeddings": lambda fast: fast.set_input_embeddings(_other(fast).get_input_embeddings()),
    "init": lambda fast: fast.apply(lambda m: m.reset_parameters() if isinstance(m, nn.Linear) else None),
    "half and back": lambda fast: fast.half().float(),
    "double and back, scaled": lambda fast: fast.double().float().embeddings.word_embeddings.weight.mul_(1.1),
    "eps": lambda fast: [setattr(m, "eps", 0.3) for m in fast.modules() if isinstance(m, nn.LayerNorm)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed_at_the_next_call(fast, change):
    before = run(fast)
    assert_ran_native(fast)
    embeddings = fast.sentence_embeddings([[1, 2, 3]])
    torch.manual_seed(0)
    CHANGES[change](fast)
    assert_follows(fast)
    assert not torch.equal(run(fast), before)
    assert not torch.equal(fast.sentence_embeddings([[1, 2, 3]]), embeddings)
    CHANGES[change](fast)  # and again
    assert_follows(fast)


def test_resized_vocabulary_accepts_the_new_ids(fast):
    ids = torch.tensor([[75]])
    with pytest.raises(IndexError):
        fast(ids)
    fast.resize_token_embeddings(90)
    assert fast(ids).last_hidden_state.isfinite().all()
    assert_follows(fast)
    fast.resize_token_embeddings(50)
    with pytest.raises(IndexError, match="50"):
        fast(torch.tensor([[55]]))


def test_layers_taken_away():
    fast = fastsal.accelerate(tiny_bert(num_hidden_layers=4))
    run(fast)
    fast.encoder.layer = fast.encoder.layer[:2]
    assert_follows(fast)
    del fast.encoder.layer[1]
    assert_follows(fast)
    assert len(fast(**random_batch(), output_hidden_states=True).hidden_states) == 2


def test_number_of_layers_of_albert_is_the_configs():
    """Hugging Face reads it at every call."""
    fast = fastsal.accelerate(tiny_albert())
    before = run(fast)
    fast.config.num_hidden_layers = 5
    assert_follows(fast)
    assert not torch.equal(run(fast), before)


def test_adapters_come_and_go(fast):
    """A parametrization is refused while it is there and forgotten after."""

    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    before = run(fast)
    linear = _attention(fast).value
    parametrize.register_parametrization(linear, "weight", Doubled())
    plain = copy.deepcopy(fast)
    assert torch.equal(run(fast), run(fastsal.restore(plain)))
    assert fast.fastsal_status().backend == "reference"
    parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
    assert torch.equal(run(fast), before)
    assert_ran_native(fast)


def test_adapters_that_are_merged_between_two_calls(fast):
    """As PEFT's merge_and_unload: the layer is wrapped, written to past the version counter, and taken back."""
    before = run(fast)
    attention, linear = _attention(fast), _attention(fast).value
    attention.value = nn.Sequential(linear)
    linear.weight.data += 0.1 * torch.randn_like(linear.weight)
    attention.value = linear
    assert not torch.allclose(run(fast), before)
    assert_follows(fast)
    assert_ran_native(fast)


def test_settings_that_are_read_once_are_watched(fast):
    run(fast)
    fast.embeddings.word_embeddings.max_norm = 0.5
    assert "max_norm" in fast.fastsal_status().detail
    fast.embeddings.word_embeddings.max_norm = None
    if fast.config.model_type == "albert":
        fast.encoder.config = copy.deepcopy(fast.config)
        fast.encoder.config.num_hidden_layers = 1
        before = run(fast)
        fast.encoder.config = copy.deepcopy(fast.config)
        assert not torch.equal(run(fast), before)
    assert_follows(fast)


@pytest.mark.parametrize("of", ["the model", "attention", "a linear layer", "a norm", "the activation"])
def test_a_method_that_a_class_is_given_is_used_as_long_as_it_is_there(fast, of, monkeypatch):
    attention = _attention(fast)
    classes = {
        "the model": next(base for base in type(fast).__mro__ if base.__module__.startswith("transformers.models")),
        "attention": type(attention),
        "a linear layer": nn.Linear,
        "a norm": nn.LayerNorm,
        "the activation": next(type(m) for name, m in fast.named_modules() if name.endswith(("activation", "act_fn"))),
    }
    before = run(fast)
    plain = fastsal.restore(copy.deepcopy(fast))
    original = classes[of].forward

    def replaced(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if of == "the model":
            result.last_hidden_state = result.last_hidden_state * 2
            return result
        return (result[0] * 2, *result[1:]) if isinstance(result, tuple) else result * 2

    with monkeypatch.context() as patch:
        patch.setattr(classes[of], "forward", replaced)
        during = run(fast)
        assert "forward method" in fast.fastsal_status().last_fallback
        assert torch.equal(during, run(plain))
        assert not torch.allclose(during, before, rtol=1e-2, atol=1e-2)
    assert torch.equal(run(fast), before)


def test_freed_memory_is_noticed_before_a_kernel_reads_it(fast):
    """As sharding does between uses of a layer: the same tensor object, storage and version, but no memory."""
    before = run(fast)
    weight = fast.embeddings.word_embeddings.weight
    storage, saved = weight.untyped_storage(), weight.clone()
    num_bytes = storage.nbytes()
    storage.resize_(0)
    assert "freed" in fast.fastsal_status().detail
    storage.resize_(num_bytes)
    weight.copy_(saved)
    assert torch.equal(run(fast), before)
    assert_ran_native(fast)


def test_dtypes_come_and_go(fast):
    before = run(fast)
    fast.to(torch.float16)
    assert run(fast).dtype == torch.float16
    assert "float16" in fast.fastsal_status().detail
    fast.to(torch.float32)
    after = run(fast)
    assert_ran_native(fast)
    assert not torch.equal(after, before)
    assert_follows(fast)


def test_weights_are_packed_once_and_again_only_after_a_change(fast, monkeypatch):
    from fastsal.backends.cpu import CpuBackend

    prepared = []
    original = CpuBackend.prepare
    monkeypatch.setattr(CpuBackend, "prepare", lambda *args: prepared.append(1) or original(*args))
    fast.fastsal_status()
    assert len(prepared) == 0
    for _ in range(3):
        run(fast)
        fast.sentence_embeddings([[1, 2]])
    assert len(prepared) == 1
    fast(**random_batch(), output_hidden_states=[0])  # transformers installs hooks; the weights are the same
    run(fast)
    fast.train().eval().requires_grad_(False)
    run(fast)
    assert len(prepared) == 1
    fast.embeddings.LayerNorm.bias.add_(1)
    run(fast)
    assert len(prepared) == 2


def test_old_packed_weights_are_freed(fast):
    run(fast)
    old = weakref.ref(fast._fastsal.encoder(fast))
    fast.embeddings.LayerNorm.bias.add_(1)
    run(fast)
    gc.collect()
    assert old() is None
    current = weakref.ref(fast._fastsal.encoder(fast))
    fastsal.restore(fast)
    gc.collect()
    assert current() is None


# ------------------------------------------------------------------------------------------------ copies and pickles


def _pickle(fast):
    return pickle.loads(pickle.dumps(fast))


def _torch_save(fast):
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _pickle, _torch_save])
@pytest.mark.parametrize("when", ["before the first call", "after it"])
def test_copies_work_and_share_nothing(model, duplicate, when):
    """B88."""
    fast = fastsal.accelerate(model, dtype="float32", strict=True)
    if when == "after it":
        run(fast)
    twin = duplicate(fast)
    assert type(twin) is type(fast)
    expected = run(fast)
    assert torch.equal(run(twin), expected)
    assert_ran_native(twin)
    assert twin.fastsal_status() == fast.fastsal_status()
    assert twin._fastsal is not fast._fastsal
    assert twin._fastsal.encoder(twin) is not fast._fastsal.encoder(fast)
    twin.embeddings.word_embeddings.weight.mul_(2)
    assert not torch.equal(run(twin), expected)
    assert torch.equal(run(fast), expected)
    assert list(twin.state_dict()) == list(fast.state_dict())
    assert fastsal.restore(twin) is twin


def test_pickles_hold_no_packed_weights(fast):
    empty = len(pickle.dumps(fast))
    run(fast)
    assert abs(len(pickle.dumps(fast)) - empty) < 100


def test_unpickled_elsewhere_it_still_records_hidden_states(tmp_path):
    """transformers' registry of recorders is filled by constructors, which unpickling does not call."""
    models = [fastsal.accelerate(tiny_albert()), fastsal.accelerate(tiny_bert())]
    (tmp_path / "models.pickle").write_bytes(pickle.dumps(models))
    output = run_python(
        f"""
        import pickle, torch
        for fast in pickle.loads(open({str(tmp_path / "models.pickle")!r}, "rb").read()):
            with torch.no_grad():
                states = fast(torch.tensor([[1, 2]]), output_hidden_states=[0, 1]).hidden_states
            print(len(states), states[1] is not None, fast.fastsal_status().last_fallback is not None)
        """
    )
    assert output == ["4 True True", "3 True True"]


# ------------------------------------------------------------------------------------------------ threads and forks


def test_threads_share_one_model(fast):
    """B91: results equal serial ones; the first calls also race to prepare."""
    batches = [random_batch(rows=1 + seed % 5, columns=1 + 3 * seed % 17, seed=seed) for seed in range(40)]
    serial = fastsal.accelerate(copy.deepcopy(fast))
    expected = [serial(**batch).last_hidden_state for batch in batches]
    wrong, start = [], threading.Barrier(8)

    def work(offset):
        start.wait()
        with torch.inference_mode():
            for step in range(len(batches)):
                index = (offset * 5 + step) % len(batches)
                try:
                    if not torch.equal(fast(**batches[index]).last_hidden_state, expected[index]):
                        wrong.append(index)
                except Exception as error:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert_ran_native(fast)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_a_forward():
    """The child computes with what the parent packed, or packs its own; a hang fails by timeout.

    The parent has used torch's OpenMP threads, which then hang in the child (a head's linear layer, say, as in plain
    Hugging Face): nothing that runs here may start them.
    """
    output = run_python(
        """
        import os, torch, fastsal
        from models_zoo import random_batch, tiny_bert
        torch.randn(2000, 2000).exp() @ torch.randn(2000, 2000)
        fast = fastsal.accelerate(tiny_bert(add_pooling_layer=False))
        batch, query = random_batch(rows=16, columns=40), torch.tensor([[1, 2, 3]])
        sentences = [list(range(1, 1 + n)) for n in range(1, 40)] * 20

        @torch.inference_mode()
        def run():
            return fast(**batch)[0], fast(query)[0], fast.sentence_embeddings(sentences)

        expected = run()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for child_prepares in (False, True):
                child = os.fork()
                if child == 0:
                    if child_prepares:
                        with torch.no_grad():
                            fast.embeddings.LayerNorm.bias.add_(0)
                    os._exit(0 if all(map(torch.equal, run(), expected)) else 1)
                status = os.waitpid(child, 0)[1]
                print(os.waitstatus_to_exitcode(status), all(map(torch.equal, run(), expected)))
        """
    )
    assert output == ["0 True"] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_with_large_results(tmp_path):
    """Results of more elements than torch computes without OpenMP threads, whatever is done to them behind the kernels.

    A child that hangs dies of its alarm.
    """
    output = run_python(
        f"""
        import os, pathlib, signal, numpy as np, torch, fastsal
        from models_zoo import random_batch, tiny_bert
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Dense, Normalize, Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling
        from tiny import bert_checkpoint

        checkpoint = str(bert_checkpoint(pathlib.Path({str(tmp_path)!r}) / "bert"))
        padded = random_batch(rows=64, columns=40)
        unpadded = dict(padded, attention_mask=None, position_ids=torch.arange(40, dtype=torch.int32)[None])
        texts = ["the cat sat on the mat", "a dog", "old green house"] * 1700

        def encoder(*behind, dtype=torch.float32):
            modules = [Transformer(checkpoint), Pooling(32, "mean"), *behind]
            return fastsal.accelerate(SentenceTransformer(modules=modules, device="cpu").to(dtype))

        def forward(dtype, batch):
            fast = fastsal.accelerate(tiny_bert(add_pooling_layer=False).to(dtype), strict=True)
            return lambda: fast(**batch, output_hidden_states=True).hidden_states[-1].view(torch.uint8).numpy()

        def encode(*args, **options):
            fast = encoder(*args, **options)
            return lambda: fast.encode(texts)

        plain = encoder()
        cases = {{
            "padded": forward(torch.float32, padded),
            "padded bfloat16": forward(torch.bfloat16, padded),
            "unpadded bfloat16": forward(torch.bfloat16, unpadded),
            "encode bfloat16": encode(dtype=torch.bfloat16),
            "Dense, Normalize": encode(Dense(32, 48), Normalize()),
            "truncated": lambda: plain.encode(texts, truncate_dim=20, normalize_embeddings=True),
        }}
        torch.set_num_threads(2)
        with torch.no_grad():
            for name, run in cases.items():
                expected = run()
                assert expected.size > 32_768
                torch.randn(700, 700).exp() @ torch.randn(700, 700)
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    os._exit(0 if np.array_equal(run(), expected) else 1)
                print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=": ")
        """,
        timeout=240,
    )
    names = ["padded", "padded bfloat16", "unpadded bfloat16", "encode bfloat16", "Dense, Normalize", "truncated"]
    assert output == [f"{name}: 0" for name in names]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_while_another_thread_prepares():
    """The lock of a thread that does not exist in the child must not be waited for."""
    output = run_python(
        """
        import os, threading, torch, fastsal
        from fastsal.modules import preparation
        from models_zoo import tiny_bert
        fast = fastsal.accelerate(tiny_bert(add_pooling_layer=False))
        preparation._prepare_lock.acquire()  # as if held by a thread
        child = os.fork()
        if child == 0:
            with torch.inference_mode():
                os._exit(0 if fast(torch.tensor([[1, 2, 3]])).last_hidden_state.isfinite().all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert output == ["0"]


def test_data_parallel(model):
    """B90: without a GPU it calls the module; a replica has its weights as plain attributes."""
    fast = fastsal.accelerate(copy.deepcopy(model))
    batch = random_batch()
    wrapped = nn.DataParallel(fast)
    assert torch.equal(wrapped(**batch).last_hidden_state, fast(**batch).last_hidden_state)

    modules = list(fast.modules())
    replicas = {module: module._replicate_for_data_parallel() for module in modules}
    for module, replica in replicas.items():  # as torch.nn.parallel.replicate does it
        for name, child in module._modules.items():
            replica._modules[name] = replicas.get(child)
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter.detach().clone())
    replica = replicas[fast]
    assert torch.equal(replica(**batch).last_hidden_state, model(**batch).last_hidden_state)
    assert "DataParallel" in replica.fastsal_status().last_fallback
    assert_ran_native(fast)


# ------------------------------------------------------------------------------------------------------------ memory


def test_memory_does_not_grow_with_the_number_of_shapes():
    """B93: 400 shapes, twice."""
    fast = fastsal.accelerate(tiny_albert(max_position_embeddings=128, num_hidden_layers=1))
    shapes = [(1 + index % 8, 1 + index * 7 % 120) for index in range(400)]

    def resident():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
        return pages * resource.getpagesize()

    def run_all():
        for rows, columns in shapes:
            fast(**random_batch(rows=rows, columns=columns))
        return resident()

    first = run_all()
    assert run_all() - first < 16 * 2**20
    assert_ran_native(fast)
