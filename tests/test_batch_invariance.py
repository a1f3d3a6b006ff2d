"""A sentence has the same bits alone, in any batch and order, on any number of threads, through every public way in."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from models_zoo import tiny_albert, tiny_bert
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import TEXTS, bert_checkpoint, model_folder

import fastsal

pytestmark = pytest.mark.quiet

DTYPES = ["float32", "bfloat16", "int8"]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random_sentences(count: int, longest: int, vocab_size: int) -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(1, vocab_size) for _ in range(generator.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [tiny_albert, tiny_bert])
def test_forward_and_sentence_embeddings(make, dtype, threads):
    model = fastsal.accelerate(make(), dtype=dtype, backend="cpu", strict=True)
    longest = model.config.max_position_embeddings
    sentences = random_sentences(40, longest, model.config.vocab_size)
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([ids])) for ids in sentences]
        alone = [output.last_hidden_state[0] for output in outputs]
        pooled = torch.cat([output.pooler_output for output in outputs])
        embedded = torch.cat([model.sentence_embeddings([ids]) for ids in sentences])
        for order in (range(len(sentences)), reversed(range(len(sentences))), [7, 3, 30, 3]):
            order = list(order)
            ids = torch.zeros(len(order), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, index in enumerate(order):
                ids[row, : len(sentences[index])] = torch.tensor(sentences[index])
                mask[row, : len(sentences[index])] = 1
            together = model(input_ids=ids, attention_mask=mask)
            for row, index in enumerate(order):
                assert torch.equal(together.last_hidden_state[row, : len(sentences[index])], alone[index])
            assert torch.equal(together.pooler_output, pooled[order])
            assert torch.equal(model.sentence_embeddings([sentences[i] for i in order]), embedded[order])


BEHIND = {"Normalize": [Normalize()], "Dense": [Dense(32, 24)], "Dense, Normalize": [Dense(32, 48), Normalize()]}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("dtype", DTYPES)
def test_encode(tmp_path, dtype, behind, threads):
    folder = model_folder(tmp_path / "model", bert_checkpoint(tmp_path / "bert"), Pooling(32, "mean"), *BEHIND[behind])
    model = fastsal.SentenceEncoder(str(folder), dtype=dtype, backend="cpu", device="cpu")
    alone = np.stack([model.encode(text) for text in TEXTS])
    assert np.array_equal(model.encode(TEXTS), alone)
    assert np.array_equal(model.encode(TEXTS[::-1]), alone[::-1])
    many = [TEXTS[i % len(TEXTS)] for i in range(700)]  # several windows
    assert np.array_equal(model.encode(many), alone[[i % len(TEXTS) for i in range(700)]])
    options = {"truncate_dim": 20, "normalize_embeddings": True}
    shorter = np.stack([model.encode(text, **options) for text in TEXTS])
    assert np.array_equal(model.encode(TEXTS, **options), shorter)
