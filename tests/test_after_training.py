"""What a Trainer leaves behind in a model, and `encode` afterwards."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from models_zoo import TINY, random_batch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import TEXTS, bert_checkpoint, model_folder

import fastsal

datasets = pytest.importorskip("datasets")
accelerate = pytest.importorskip("accelerate")

DATA = {"anchor": ["the cat", "a dog", "old man", "red car"], "positive": ["a cat", "the dog", "a man", "green car"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    return str(model_folder(path / "model", bert_checkpoint(path / "checkpoint"), Pooling(32)))


def trained(folder, tmp_path, **options):
    model = fastsal.SentenceEncoder(folder, device="cpu")
    before = model.encode(TEXTS)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    loss = losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_dict(DATA), loss=loss
    ).train()
    return model, before


def assert_native_and_right(model, tmp_path, before):
    ours = model.encode(TEXTS)
    status = model[0].model.fastsal_status()
    assert status.backend == "cpu"
    assert status.last_fallback is None
    assert not isinstance(model._computation(None), str)
    assert not np.allclose(ours, before)
    model.save(str(tmp_path / "saved"), create_model_card=False)
    assert np.array_equal(ours, fastsal.SentenceEncoder(str(tmp_path / "saved"), device="cpu").encode(TEXTS))
    alone = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_checkpointing": True}])
def test_the_kernels_compute_again(folder, tmp_path, options, caplog):
    model, before = trained(folder, tmp_path, **options)
    caplog.clear()
    assert_native_and_right(model, tmp_path, before)
    assert "encode runs in sentence-transformers" not in caplog.text


def test_mixed_precision_is_said_once_with_what_to_undo(folder, tmp_path, caplog):
    model, before = trained(folder, tmp_path, bf16=True)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="fastsal"):
        first, second = model.encode(TEXTS), model.encode(TEXTS)
    (message,) = [r.getMessage() for r in caplog.records if "encode runs in sentence-transformers" in r.getMessage()]
    assert "extract_model_from_parallel(model, keep_fp32_wrapper=False)" in message
    assert np.array_equal(first, second)
    accelerate.utils.extract_model_from_parallel(model, keep_fp32_wrapper=False)
    assert_native_and_right(model, tmp_path, before)


def test_gradients_that_such_a_hook_asks_for_are_the_references(fast):
    """Also where no parameter wants one."""
    fast.requires_grad_(False)
    fast.enable_input_require_grads()
    assert fast(**random_batch()).last_hidden_state.requires_grad
    assert "gradients" in fast.fastsal_status().last_fallback
    with torch.inference_mode():
        assert not fast(**random_batch()).last_hidden_state.requires_grad
    assert fast.fastsal_status().last_fallback is None


def test_another_hook_is_still_run(fast, no_grad):
    before = fast(**random_batch()).last_hidden_state
    fast.embeddings.word_embeddings.register_forward_hook(lambda module, args, output: 2 * output)
    assert not torch.allclose(fast(**random_batch()).last_hidden_state, before)
    assert "forward hooks" in fast.fastsal_status().last_fallback


def test_a_forward_put_in_the_place_of_a_harmless_one(no_grad):
    fast = fastsal.accelerate(TINY["bert"]())
    dense = fast.encoder.layer[0].output.dense
    before = fast(**random_batch()).last_hidden_state
    dense.forward = dense.forward  # what is left where a wrapper was taken away
    assert torch.equal(fast(**random_batch()).last_hidden_state, before)
    assert fast.fastsal_status().last_fallback is None
    original = dense.forward
    dense.forward = lambda x: 2 * original(x)
    assert not torch.allclose(fast(**random_batch()).last_hidden_state, before)
    assert "forward method replaced" in fast.fastsal_status().last_fallback


def test_the_last_call_alone_says_whether_it_fell_back(folder):
    model = fastsal.SentenceEncoder(folder, device="cpu")
    for call in (model.encode, lambda texts: model[0].model.sentence_embeddings([[1, 2]])):
        with torch.autocast("cpu", torch.bfloat16):
            call(TEXTS)
        assert "autocast" in model[0].model.fastsal_status().last_fallback
        with torch.no_grad():
            call(TEXTS)
        assert model[0].model.fastsal_status().last_fallback is None
