"""verify(): passes what is right, finds what is wrong and says where, changes nothing."""

import copy
from itertools import pairwise

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from tiny import TEXTS, albert_checkpoint, bert_checkpoint
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

import fastsal
from fastsal.measure.verify import VerificationReport

TOKEN_LISTS = [[2, *range(5, 5 + length), 3] for length in (1, 3, 2, 17, 5, 9, 30, 4, 6, 8, 13, 21, 1, 2, 3, 7, 25, 11)]

BERT_TINY = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    num_labels=3,
)
ALBERT_TINY = AlbertConfig(
    vocab_size=64,
    embedding_size=16,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
)


@pytest.fixture
def fast() -> BertModel:
    torch.manual_seed(0)
    return fastsal.accelerate(BertModel(BERT_TINY).eval())


def names(report: VerificationReport) -> list[str]:
    return [comparison.name for comparison in report.comparisons]


def encoder_in(model):
    return next(module for module in model.modules() if hasattr(module, "fastsal_status"))


def test_an_encoder_passes(fast):
    report = fastsal.verify(fast, TOKEN_LISTS)
    assert report.passed, str(report)
    assert report.fast_path
    assert report.path.startswith("cpu in float32")
    assert names(report) == ["last_hidden_state", "pooler_output", "sentence_embeddings"]
    assert report.num_sentences == len(TOKEN_LISTS)
    for comparison in report.comparisons:
        assert 0 < comparison.error <= comparison.worst_error < 1e-5
        assert 0 < comparison.mean_error <= comparison.worst_error
        assert 1 - 1e-6 < comparison.min_cosine <= 1
    assert str(report).startswith("passed: 18 sentences, computed by cpu in float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_dtypes_are_judged_by_what_they_can_do(dtype):
    """bfloat16 beside the reference in bfloat16, int8 by cosines; both are wrong if the weights are."""
    torch.manual_seed(0)
    fast = fastsal.accelerate(BertModel(BERT_TINY).eval(), dtype=dtype, backend="cpu")
    report = fastsal.verify(fast, TOKEN_LISTS)
    assert report.passed, str(report)
    assert report.path.startswith(f"cpu in {dtype}")
    assert all(comparison.error > 5e-6 for comparison in report.comparisons), "as exact as float32: not in this dtype"
    assert [comparison.one_vector for comparison in report.comparisons] == [False, True, True]
    wrong = copy.deepcopy(fast)
    with torch.no_grad():
        wrong.encoder.layer[1].output.dense.weight.mul_(-100)
    plan, _ = fast._fastsal._current
    fast._fastsal._current = plan, wrong._fastsal.encoder(wrong)
    assert not fastsal.verify(fast, TOKEN_LISTS).passed


def test_tensors_and_text_make_the_same_report(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert_checkpoint(tmp_path))
    fast = fastsal.accelerate(BertModel.from_pretrained(tmp_path).eval())
    texts = TEXTS[:12]
    lists = [tokenizer(text)["input_ids"] for text in texts]
    reports = [
        fastsal.verify(fast, lists),
        fastsal.verify(fast, [torch.tensor(ids) for ids in lists]),
        fastsal.verify(fast, texts, tokenizer=tokenizer),
    ]
    assert reports[0].passed
    assert reports[0].comparisons == reports[1].comparisons == reports[2].comparisons


def test_stale_weights_are_found(fast):
    fastsal.verify(fast, TOKEN_LISTS)  # the weights are packed now
    # a write through .data goes past the version counters, as accelerate() documents
    fast.encoder.layer[1].output.dense.weight.data[7] *= 1.01
    report = fastsal.verify(fast, TOKEN_LISTS)
    assert not report.passed
    assert [comparison.passed for comparison in report.comparisons] == [False, False, False]
    assert str(report).startswith("FAILED: ")


def test_the_worst_sentence_is_named(fast):
    fastsal.verify(fast, TOKEN_LISTS)
    # token 34 is in one sentence alone, that of 30 words
    prepared = fast._fastsal._current[1]
    hidden_states = prepared.hidden_states

    def wrong_for_token_34(batch, all_layers=False):
        states = hidden_states(batch, all_layers)
        states[batch.input_ids == 34] *= 1.001
        return states

    prepared.hidden_states = wrong_for_token_34
    report = fastsal.verify(fast, TOKEN_LISTS)
    tokens, pooler, embeddings = report.comparisons
    assert not tokens.passed
    assert tokens.worst == TOKEN_LISTS.index([2, *range(5, 35), 3])
    assert pooler.passed
    assert embeddings.passed
    assert report.worst_texts[0] == "[2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19..."
    assert f"worst is        sentences[{tokens.worst}]: [2, 5, 6, " in str(report)


def test_one_wrong_sentence_among_many_fails(fast):
    """The error over all sentences together must not hide it."""
    many = [[2, 5 + i % 50, 5 + i % 49, 3] for i in range(300)] + [[2, 60, 3]]
    fastsal.verify(fast, many[-1:])
    prepared = fast._fastsal._current[1]
    hidden_states = prepared.hidden_states

    def slightly_wrong_for_token_60(batch, all_layers=False):
        states = hidden_states(batch, all_layers)
        states[batch.input_ids == 60] *= 1 + 4e-6
        return states

    prepared.hidden_states = slightly_wrong_for_token_60
    tokens = fastsal.verify(fast, many).comparisons[0]
    assert tokens.worst == 300
    assert tokens.error <= 2 * tokens.reference_error + 4 * tokens.resolution
    assert not tokens.passed


def test_not_a_number_fails(fast):
    fastsal.verify(fast, TOKEN_LISTS)
    prepared = fast._fastsal._current[1]
    prepared.sentence_embeddings = lambda batch, pooling: torch.full((batch.num_sentences, 32), torch.nan)
    report = fastsal.verify(fast, TOKEN_LISTS)
    assert [comparison.passed for comparison in report.comparisons] == [True, True, False]
    assert report.comparisons[2].worst_error == float("inf")


def test_a_fallback_is_told():
    torch.manual_seed(0)
    model = fastsal.accelerate(BertModel(BERT_TINY).eval(), backend="reference")
    report = fastsal.verify(model, TOKEN_LISTS)
    assert report.passed
    assert not report.fast_path
    assert "backend='reference' was asked for" in str(report)

    hooked = fastsal.accelerate(BertModel(BERT_TINY).eval())
    hooked.encoder.layer[0].register_forward_hook(lambda module, args, output: None)
    report = fastsal.verify(hooked, TOKEN_LISTS)
    assert not report.fast_path
    assert "hook" in str(report)


def test_the_model_is_not_changed(fast):
    fast.encoder.layer[0].train()
    fast.pooler.dense.weight.grad = torch.ones_like(fast.pooler.dense.weight)
    state = {name: tensor.clone() for name, tensor in fast.state_dict().items()}
    modes = [module.training for module in fast.modules()]
    versions = [parameter._version for parameter in fast.parameters()]
    report = fastsal.verify(fast, TOKEN_LISTS)
    assert report.fast_path
    assert modes == [module.training for module in fast.modules()]
    assert versions == [parameter._version for parameter in fast.parameters()]
    assert all(torch.equal(tensor, state[name]) for name, tensor in fast.state_dict().items())
    assert all(parameter.requires_grad for parameter in fast.parameters())
    assert [n for n, p in fast.named_parameters() if p.grad is not None] == ["pooler.dense.weight"]
    assert type(fast) is fastsal.FastBertModel
    assert fast.dtype == torch.float32


def test_modes_come_back_after_an_error(fast):
    fast.train()
    with pytest.raises(IndexError):
        fastsal.verify(fast, [[2, 9999, 3]])
    assert fast.training


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (BertForSequenceClassification(BERT_TINY), ["logits"]),
        (BertForTokenClassification(BERT_TINY), ["logits"]),
        (AlbertForPreTraining(ALBERT_TINY), ["prediction_logits", "sop_logits"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_with_a_head(model, expected):
    report = fastsal.verify(fastsal.accelerate(copy.deepcopy(model)), TOKEN_LISTS)
    assert report.passed, str(report)
    assert report.fast_path
    assert names(report) == expected


@pytest.mark.parametrize("checkpoint", [albert_checkpoint, bert_checkpoint])
@pytest.mark.parametrize("behind", ["pooling", "cnn", "dense"])
def test_a_sentence_encoder(tmp_path, checkpoint, behind):
    modules = {
        "pooling": lambda: [Pooling(32, "mean"), Normalize()],
        "cnn": lambda: [CNN(32, 24, [1, 3, 5]), Pooling(72, "max")],
        "dense": lambda: [Pooling(32, "cls"), Dense(32, 16), Normalize()],
    }[behind]
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[Transformer(str(checkpoint(tmp_path))), *modules()], device="cpu")
    report = fastsal.verify(fastsal.accelerate(model), TEXTS)
    assert report.passed, str(report)
    assert report.fast_path
    assert names(report) == ["token_embeddings", "sentence_embedding"]


def test_a_wrong_sentence_encoder(tmp_path):
    modules = [Transformer(str(bert_checkpoint(tmp_path))), Pooling(32, "mean")]
    model = fastsal.accelerate(SentenceTransformer(modules=modules, device="cpu"))
    fastsal.verify(model, TEXTS)
    encoder_in(model).encoder.layer[0].intermediate.dense.weight.data[3] *= 1.01
    assert not fastsal.verify(model, TEXTS).passed


def test_a_cross_encoder(tmp_path):
    model = CrossEncoder(str(bert_checkpoint(tmp_path)), num_labels=1, device="cpu")
    pairs = [(a, b) for a, b in pairwise(TEXTS) if len(a) + len(b) < 60]
    report = fastsal.verify(fastsal.accelerate(model), pairs)
    assert report.passed, str(report)
    assert report.fast_path
    assert names(report) == ["scores"]


def test_bad_arguments(fast):
    with pytest.raises(ValueError, match="model must be accelerated, got a plain BertModel"):
        fastsal.verify(BertModel(BERT_TINY), TOKEN_LISTS)
    with pytest.raises(ValueError, match="sentences must not be empty"):
        fastsal.verify(fast, [])
    with pytest.raises(TypeError, match="sentences must be a list of sentences, got str"):
        fastsal.verify(fast, "a sentence")
    with pytest.raises(TypeError, match="must be lists of token ids for a FastBertModel without a tokenizer, got text"):
        fastsal.verify(fast, ["a sentence"])
