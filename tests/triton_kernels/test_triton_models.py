"""Hugging Face and sentence-transformers models on the Triton backend: tiny ones, also in the interpreter."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from kernel_case import DEVICE, DTYPES, tuning_with
from models_zoo import TINY, random_batch, true_states
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import CNN, Normalize, Pooling
from tiny import TEXTS, albert_checkpoint, bert_checkpoint, model_folder
from tolerance import assert_as_exact_as_reference
from torch import nn

import fastsal
from fastsal.backends import triton_encoder
from fastsal.backends.triton import TritonBackend

on_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU")


@pytest.fixture(autouse=True)
def runs_here(monkeypatch):
    """The interpreter counts as a GPU."""
    if DEVICE.type != "cuda":
        monkeypatch.setattr(TritonBackend, "unavailable", lambda self: None)
        monkeypatch.setattr(TritonBackend, "unsupported", lambda self, spec, dtype, device: None)
        monkeypatch.setattr(triton_encoder, "tuning_for", lambda device: tuning_with())


def fast_twin(model: nn.Module) -> nn.Module:
    return fastsal.accelerate(copy.deepcopy(model), backend="triton", strict=True)


def model_on_device(architecture: str, dtype: torch.dtype) -> nn.Module:
    """Half precision weights are given: rounding them is no error of ours."""
    return TINY[architecture]().to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("holes", [False, True])
def test_forward(architecture, dtype, holes):
    model = model_on_device(architecture, dtype)
    batch = random_batch()
    if holes:
        batch["attention_mask"][0, 1::3] = 0
    truth = true_states(model.cpu().float(), batch)
    model = model.to(DEVICE, dtype)
    moved = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
    fast = fast_twin(model)
    with torch.inference_mode():
        states = fast(**moved, output_hidden_states=True).hidden_states
        reference = model(**moved, output_hidden_states=True).hidden_states
    kept = batch["attention_mask"].bool()
    for out, ref, true in zip(states, reference, truth, strict=True):
        assert out.device.type == DEVICE.type
        assert out.dtype == dtype
        assert not out[~kept.to(DEVICE)].any()
        assert_as_exact_as_reference(out.cpu()[kept], ref.cpu()[kept], true[kept])
    assert fast.fastsal_status().backend == "triton"
    assert fast.fastsal_status().last_fallback is None


def test_torch_compile(architecture):
    fast = fast_twin(model_on_device(architecture, torch.float32))
    batch = {name: tensor.to(DEVICE) for name, tensor in random_batch().items()}
    with torch.inference_mode():
        expected = fast(**batch)
        traced = torch.compile(fast, backend="aot_eager", fullgraph=True)(**batch)
    torch.testing.assert_close(traced.to_tuple(), expected.to_tuple(), rtol=0, atol=0)


def test_weights_that_change_are_noticed(architecture):
    model = model_on_device(architecture, torch.float32)
    fast = fast_twin(model)
    ids = [[2, 5, 7, 3], [2, 3]]
    with torch.no_grad():
        before = fast.sentence_embeddings(ids)
        for module in (model, fast):
            module.embeddings.word_embeddings.weight.mul_(2)
        after = fast.sentence_embeddings(ids)
        expected = fastsal.accelerate(copy.deepcopy(model), backend="reference").sentence_embeddings(ids)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, expected, atol=1e-5, rtol=1e-4)


def test_bad_ids_raise_and_leave_the_device_usable(architecture):
    fast = fast_twin(model_on_device(architecture, torch.float32))
    with torch.no_grad():
        for bad in (60, -1):
            with pytest.raises(IndexError, match="input_ids must be in"):
                fast(input_ids=torch.tensor([[2, bad]], device=DEVICE))
        assert fast(input_ids=torch.tensor([[2, 3]], device=DEVICE)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("checkpoint", [albert_checkpoint, bert_checkpoint], ids=["albert", "bert"])
@pytest.mark.parametrize("cnn", [False, True], ids=["mean", "cnn"])
def test_encode(tmp_path, checkpoint, cnn):
    torch.manual_seed(0)
    behind = [CNN(32, out_channels=20, kernel_sizes=[1, 3])] if cnn else []
    modules = (*behind, Pooling(40 if cnn else 32, pooling_mode="max" if cnn else "mean"), Normalize())
    folder = str(model_folder(tmp_path / "model", checkpoint(tmp_path / "checkpoint"), *modules))
    model = fastsal.SentenceEncoder(folder, device=str(DEVICE), backend="triton")
    texts = TEXTS[:6]
    embeddings = model.encode(texts)
    plain = SentenceTransformer(folder, device="cpu")
    alone = torch.stack([plain.encode(text, convert_to_tensor=True) for text in texts])
    torch.testing.assert_close(torch.from_numpy(embeddings), alone, atol=2e-5, rtol=1e-3)
    assert model.encode(TEXTS[:2], convert_to_tensor=True).device.type == DEVICE.type


def test_threads_share_a_model(architecture):
    fast = fast_twin(model_on_device(architecture, torch.float32))
    lists = [[[2] + [5] * n + [3]] * 2 for n in range(6)]
    with torch.no_grad():
        expected = [fast.sentence_embeddings(ids) for ids in lists]
    results: list = [None] * len(lists)

    def work(index: int) -> None:
        with torch.no_grad():
            results[index] = fast.sentence_embeddings(lists[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(lists))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, true in zip(results, expected, strict=True):
        torch.testing.assert_close(result, true)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_whole_albert_base_on_the_gpu(dtype):
    """Real sizes, mixed lengths up to 512, equal calls equal to the bit."""
    from transformers import AlbertConfig, AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12, vocab_size=1000
    )
    model = AlbertModel(config).eval().to(DEVICE, dtype)
    fast = fastsal.accelerate(copy.deepcopy(model))
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 2, 15, 128, 129, 512, 33, 64]
    ids = [torch.randint(5, 1000, (n,), generator=generator) for n in lengths]
    with torch.inference_mode():
        out = fast.sentence_embeddings(ids, normalize=False)
        assert torch.equal(out, fast.sentence_embeddings(ids, normalize=False))
        reference = torch.cat([model(i[None].to(DEVICE)).last_hidden_state.mean(1) for i in ids])
        exact = copy.deepcopy(model).double()
        truth = torch.cat([exact(i[None].to(DEVICE)).last_hidden_state.mean(1) for i in ids])
    assert fast.fastsal_status().backend == "triton"
    assert_as_exact_as_reference(out, reference, truth)


@on_gpu
def test_memory_full_of_nan_changes_no_bit():
    """B79: masked lanes may hold anything."""
    fast = fast_twin(model_on_device("albert", torch.float16))
    ids = [[2] + [5] * n + [3] for n in (1, 3, 17, 33)]
    with torch.no_grad():
        clean = fast.sentence_embeddings(ids)
        torch.cuda.empty_cache()
        poison = torch.full((1 << 28,), float("nan"), dtype=torch.float16, device=DEVICE)
        del poison
        assert torch.equal(fast_twin(model_on_device("albert", torch.float16)).sentence_embeddings(ids), clean)


@on_gpu
def test_offsets_past_two_to_the_31():
    """B81: the last rows of a product with more than 2**31 results."""
    from fastsal.kernels.triton.linear import linear

    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(131_200, 64, device=DEVICE, dtype=torch.float16, generator=generator)
    weight = torch.randn(16_384, 64, device=DEVICE, dtype=torch.float16, generator=generator)
    out = linear(x, weight, None, None, "linear")
    torch.testing.assert_close(out[-64:], linear(x[-64:].contiguous(), weight, None, None, "linear"))


@on_gpu
def test_memory_does_not_grow_with_shapes_or_texts():
    """B93, B98."""
    fast = fast_twin(model_on_device("bert", torch.float16))
    peaks = []
    with torch.no_grad():
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            for size in range(1, 120):
                fast.sentence_embeddings([[2] + [5] * (n % 30) + [3] for n in range(size)])
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[2] <= peaks[1] * 1.01
