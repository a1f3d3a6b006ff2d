"""accelerate() and restore(): heads, sentence-transformers objects, dtypes and backends, saving and loading."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from models_zoo import TINY, albert_config, bert_config, random_batch, randomize, tiny_albert, tiny_bert
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import albert_checkpoint, bert_checkpoint, model_folder
from tolerance import assert_as_exact_as_reference
from torch import nn
from transformers import AlbertModel, BertModel, DistilBertConfig, DistilBertModel

import fastsal
from fastsal.modules.encoders import FAST_CLASSES, fast_encoders

ALBERT_HEADS = ["PreTraining", "MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering"]
BERT_HEADS = [*ALBERT_HEADS, "NextSentencePrediction"]
HEADS = [f"AlbertFor{head}" for head in ALBERT_HEADS] + [f"BertFor{head}" for head in BERT_HEADS]
#: Fields of an output that are tensors with one value per token: compared where the mask is set.
PER_TOKEN = ("start_logits", "end_logits", "prediction_logits")


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def make_head(name, **options):
    num_labels = 2 if name.endswith("QuestionAnswering") else 3
    config = (albert_config if name.startswith("Albert") else bert_config)(num_labels=num_labels, **options)
    return randomize(getattr(transformers, name)(config))


def assert_ran_native(model):
    encoders = fast_encoders(model)
    assert encoders
    for encoder in encoders.values():
        status = encoder.fastsal_status()
        assert status.backend == "cpu"
        assert status.last_fallback is None


# ------------------------------------------------------------------------------------------------------------ heads


@pytest.mark.parametrize("name", HEADS)
def test_every_head_gives_hugging_faces_numbers(name):
    model, batch = make_head(name), random_batch()
    exact = copy.deepcopy(model).double()
    fast = copy.deepcopy(model)
    assert fastsal.accelerate(fast) is fast
    assert type(fast) is type(model)
    ours, reference, truth = fast(**batch), model(**batch), exact(**batch)
    assert_ran_native(fast)
    assert type(ours) is type(reference)
    assert list(ours.keys()) == list(reference.keys())
    mask = batch["attention_mask"].bool()
    for key in reference:
        per_token = reference[key].shape[:2] == mask.shape and (key in PER_TOKEN or key == "logits")
        rows = mask if per_token else slice(None)
        assert_as_exact_as_reference(ours[key][rows], reference[key][rows], truth[key][rows])


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("where", ["argument", "config"])
def test_heads_pass_on_hidden_states(name, where):
    """B21: transformers captures them by hooks on layers that do not run here."""
    model, batch, options = make_head(name), random_batch(), {"output_hidden_states": True}
    if where == "config":
        model.config.output_hidden_states, options = True, {}
    fast = fastsal.accelerate(copy.deepcopy(model))
    ours, reference = fast(**batch, **options), model(**batch, **options)
    assert_ran_native(fast)
    mask = batch["attention_mask"].bool()
    num_layers = model.config.num_hidden_layers
    assert len(ours.hidden_states) == len(reference.hidden_states) == num_layers + 1
    for state, reference_state in zip(ours.hidden_states, reference.hidden_states, strict=True):
        torch.testing.assert_close(state[mask], reference_state[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["AlbertForSequenceClassification", "BertForTokenClassification"])
def test_heads_with_attentions_labels_and_tuples(name):
    model, batch = make_head(name, attn_implementation="eager"), random_batch()
    fast = fastsal.accelerate(copy.deepcopy(model))
    ours, reference = (m(**batch, output_attentions=True, output_hidden_states=True) for m in (fast, model))
    assert len(ours.attentions) == len(reference.attentions) == model.config.num_hidden_layers
    assert all(map(torch.equal, ours.attentions, reference.attentions))
    assert all(map(torch.equal, ours.hidden_states, reference.hidden_states))
    assert torch.equal(ours.logits, reference.logits)
    shape = (4,) if "Sequence" in name else (4, 9)
    labels = torch.ones(shape, dtype=torch.int64)
    if "Token" in name:
        labels[~batch["attention_mask"].bool()] = -100
    ours, reference = (m(**batch, labels=labels, return_dict=False) for m in (fast, model))
    assert_ran_native(fast)
    assert isinstance(ours, tuple)
    torch.testing.assert_close(ours[0], reference[0], rtol=1e-5, atol=1e-6)


def test_training_a_head_gives_the_references_gradients():
    """B33: through the whole model, and the next call sees the new weights."""
    model, batch = make_head("AlbertForSequenceClassification"), random_batch()
    fast = fastsal.accelerate(copy.deepcopy(model))
    labels = torch.tensor([0, 1, 2, 0])
    before = fast(**batch).logits
    for encoder in (model.train(), fast.train()):
        optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        torch.manual_seed(0)  # of the head's dropout
        with torch.enable_grad():
            encoder(**batch, labels=labels).loss.backward()
        optimizer.step()
        encoder.eval()
    for ours, reference in zip(fast.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, reference)
    after = fast(**batch).logits
    assert_ran_native(fast)
    torch.testing.assert_close(after, model(**batch).logits, rtol=1e-4, atol=1e-5)
    assert (after - before).abs().max() > 1e-3


def test_several_encoders_in_one_model():
    model = nn.ModuleDict({"query": tiny_bert(), "answer": nn.Sequential(tiny_albert())})
    fastsal.accelerate(model)
    assert list(fast_encoders(model)) == ["query", "answer.0"]
    fastsal.restore(model)
    assert not fast_encoders(model)


# --------------------------------------------------------------------------------------------- sentence-transformers


@pytest.mark.parametrize("make_checkpoint", [albert_checkpoint, bert_checkpoint])
def test_sentence_transformer_objects(tmp_path, make_checkpoint):
    folder = model_folder(tmp_path / "model", make_checkpoint(tmp_path / "checkpoint"), Pooling(32, "mean"))
    model, plain = SentenceTransformer(str(folder), device="cpu"), SentenceTransformer(str(folder), device="cpu")
    texts = ["the cat sat on the mat", "a dog", "old green house"]
    assert fastsal.accelerate(model) is model
    assert type(model) is fastsal.SentenceEncoder
    torch.testing.assert_close(
        torch.tensor(model.encode(texts)), torch.tensor(plain.encode(texts, batch_size=1)), rtol=1e-4, atol=1e-5
    )
    assert_ran_native(model)
    fastsal.restore(model)
    assert type(model) is SentenceTransformer
    assert (model.encode(texts) == plain.encode(texts)).all()


def test_subclasses_of_sentence_transformer_keep_their_class(tmp_path):
    class Mine(SentenceTransformer):
        pass

    folder = model_folder(tmp_path / "model", bert_checkpoint(tmp_path / "checkpoint"), Pooling(32, "mean"))
    model = fastsal.accelerate(Mine(str(folder), device="cpu"))
    assert type(model) is Mine
    model.encode(["the cat"])
    assert_ran_native(model)


@pytest.mark.parametrize("make_checkpoint", [albert_checkpoint, bert_checkpoint])
def test_cross_encoders(tmp_path, make_checkpoint):
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    model = CrossEncoder(str(checkpoint), num_labels=1, device="cpu")
    randomize(model)
    pairs = [("the cat sat", "a dog"), ("old man", "the old green house and the red car"), ("a", "the")]
    reference = model.predict(pairs)
    fastsal.accelerate(model)
    ours = model.predict(pairs)
    assert_ran_native(model)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(reference), rtol=1e-4, atol=1e-5)
    assert model.rank("the cat", ["a dog", "the cat sat"])[0]["corpus_id"] in (0, 1)


# --------------------------------------------------------------------------------------------- dtypes and backends


def test_statuses(model):
    fast = fastsal.accelerate(model)
    assert (fast.fastsal_status().backend, fast.fastsal_status().dtype) == ("cpu", "float32")
    fastsal.accelerate(fast, backend="reference", strict=True)
    status = fast.fastsal_status()
    assert (status.backend, status.dtype, status.strict) == ("reference", "float32", True)
    assert "asked for" in status.detail
    fast(**random_batch())  # the reference was asked for: nothing to be strict about
    fastsal.accelerate(fast, dtype=torch.float32, backend="cpu")
    assert fast.fastsal_status().backend == "cpu"


def test_a_dtype_that_cannot_run_is_an_error_with_the_reason(model):
    for settings in (
        {"dtype": "float16"},
        {"dtype": torch.float16},
        {"dtype": "float16", "backend": "cpu"},
        {"dtype": "float16", "backend": "reference"},
        {"backend": "triton"},
    ):
        with pytest.raises(fastsal.BackendError, match="cannot run"):
            fastsal.accelerate(model, **settings)
        assert type(model) in FAST_CLASSES


def test_an_explicit_backend_for_a_model_in_another_dtype(model):
    with pytest.raises(fastsal.BackendError, match="float64"):
        fastsal.accelerate(model.double(), backend="cpu")
    assert type(model) in FAST_CLASSES
    fast = fastsal.accelerate(model, dtype="float32", backend="cpu")
    assert fast(**random_batch()).last_hidden_state.dtype == torch.float64
    assert_ran_native(fast)


def test_an_explicit_backend_that_can_run_no_longer_raises_at_the_call(model):
    fast = fastsal.accelerate(model, backend="cpu")
    fast(**random_batch())
    fast.double()
    with pytest.raises(fastsal.BackendError, match="float64"):
        fast(**random_batch())
    fast.float()
    fast(**random_batch())
    assert_ran_native(fast)


def test_unknown_names(model):
    with pytest.raises(ValueError, match="dtype must be one of"):
        fastsal.accelerate(model, dtype="float8")
    with pytest.raises(ValueError, match="backend must be"):
        fastsal.accelerate(model, backend="gpu")
    assert type(model) in FAST_CLASSES


def test_models_without_such_an_encoder_are_named():
    other = DistilBertModel(DistilBertConfig(vocab_size=10, dim=8, n_layers=1, n_heads=1, hidden_dim=8))
    for model, name in ((other, "DistilBertModel"), (nn.Linear(2, 2), "Linear"), (nn.Sequential(other), "DistilBert")):
        with pytest.raises(ValueError, match=name):
            fastsal.accelerate(model)
    for nothing in (None, "bert-base-uncased", torch.ones(1)):
        with pytest.raises(ValueError, match="torch module"):
            fastsal.accelerate(nothing)


def test_subclasses_of_the_encoders_are_left_alone():
    class MyBert(BertModel):
        def forward(self, *args, **kwargs):
            return 7

    with pytest.raises(ValueError, match="MyBert"):
        fastsal.accelerate(MyBert(bert_config()))


def test_models_that_are_not_covered_say_why_or_raise(model):
    projection = nn.Linear(32, 32, bias=False)
    layer = model.encoder.layer[0] if isinstance(model, BertModel) else _albert_layer(model)
    attention = layer.attention.self if isinstance(model, BertModel) else layer.attention
    attention.query = projection
    reference = model(**random_batch()).last_hidden_state
    with pytest.raises(fastsal.NotCoveredError, match=r"query\.bias"):
        fastsal.accelerate(model, strict=True)
    with pytest.raises(fastsal.BackendError, match=r"query\.bias"):
        fastsal.accelerate(model, backend="cpu")
    with pytest.raises(fastsal.BackendError, match=r"query\.bias"):
        fastsal.accelerate(model, dtype="bfloat16")
    assert type(model) in FAST_CLASSES
    fast = fastsal.accelerate(model, dtype="float32")  # which the reference computes in, too
    assert "query.bias" in fast.fastsal_status().detail
    assert torch.equal(fast(**random_batch()).last_hidden_state, reference)
    attention.query = nn.Linear(32, 32)
    fast(**random_batch())
    assert_ran_native(fast)


def _albert_layer(model):
    return model.encoder.albert_layer_groups[0].albert_layers[0]


def test_all_or_nothing():
    """An error for one encoder leaves the others as they were."""
    model = nn.ModuleList([tiny_bert(), tiny_bert().double()])
    with pytest.raises(fastsal.BackendError, match="float64"):
        fastsal.accelerate(model, backend="cpu")
    assert [type(m) for m in model] == [BertModel, BertModel]


# --------------------------------------------------------------------------------------------------------- restore


def test_restore_leaves_nothing_behind(model):
    before = dict(model.__dict__)
    reference = model(**random_batch()).last_hidden_state
    fast = fastsal.accelerate(model)
    fast(**random_batch())
    assert fastsal.restore(fast) is model
    assert type(model) in FAST_CLASSES
    assert model.__dict__.keys() == before.keys()
    assert torch.equal(model(**random_batch()).last_hidden_state, reference)
    assert len(model(**random_batch(), output_hidden_states=True).hidden_states) > 2
    assert fastsal.restore(model) is model  # nothing to undo is fine
    assert torch.equal(
        fastsal.accelerate(model)(**random_batch()).last_hidden_state,
        fastsal.accelerate(copy.deepcopy(model))(**random_batch()).last_hidden_state,
    )


def test_restore_after_the_recorder_hooks_came(model):
    fast = fastsal.accelerate(model)
    fast(**random_batch(), output_hidden_states=[0])
    fastsal.restore(fast)
    states = model(**random_batch(), output_hidden_states=True).hidden_states
    assert len(states) == model.config.num_hidden_layers + 1


# ------------------------------------------------------------------------------------------------ saving and loading


def test_state_dict_is_hugging_faces(model):
    """B31: the same keys, no copies per layer, no shared storage."""
    keys = list(model.state_dict())
    fast = fastsal.accelerate(copy.deepcopy(model))
    fast(**random_batch())
    state = fast.state_dict()
    assert list(state) == keys
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(keys)
    model.load_state_dict(state)
    if isinstance(model, AlbertModel):
        assert len(tiny_albert(num_hidden_layers=12).state_dict()) == len(keys) == 25


def test_saved_files_are_plain_hugging_face(tmp_path, model):
    """B31: the config says AlbertModel, the weights reload to the bit, also by safetensors itself."""
    model.save_pretrained(tmp_path / "plain")
    fast = fastsal.accelerate(copy.deepcopy(model), strict=True)
    fast(**random_batch())
    fast.save_pretrained(tmp_path / "fast")
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("plain", "fast")]
    assert configs[0] == configs[1]
    assert configs[1]["architectures"] == [type(model).__name__]
    assert isinstance(fast, tuple(FAST_CLASSES.values()))
    loaded = type(model).from_pretrained(tmp_path / "fast").eval()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    save_file(fast.state_dict(), tmp_path / "raw.safetensors")
    assert load_file(tmp_path / "raw.safetensors").keys() == model.state_dict().keys()
    fast(**random_batch())
    assert_ran_native(fast)


def test_saving_a_head_around_an_accelerated_encoder(tmp_path):
    model = fastsal.accelerate(make_head("BertForSequenceClassification"))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = random_batch()
    torch.testing.assert_close(model(**batch).logits, loaded(**batch).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast_class", [fastsal.FastAlbertModel, fastsal.FastBertModel])
def test_from_pretrained(tmp_path, fast_class):
    reference_class = next(plain for plain, fast in FAST_CLASSES.items() if fast is fast_class)
    model = TINY[reference_class.config_class.model_type]()
    model.save_pretrained(tmp_path)
    fast = fast_class.from_pretrained(tmp_path)
    batch = random_batch()
    torch.testing.assert_close(fast(**batch).pooler_output, model(**batch).pooler_output, rtol=1e-4, atol=1e-5)
    assert_ran_native(fast)
    fast.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["architectures"] == [reference_class.__name__]
    without_pooler = fast_class.from_pretrained(tmp_path, add_pooling_layer=False)
    assert without_pooler(**batch).pooler_output is None
    assert isinstance(fastsal.restore(fast), reference_class)
    assert type(fast) is reference_class


def test_checkpoints_of_other_shapes_load_as_hugging_face_loads_them(tmp_path):
    """B30: a prefix, an MLM head's keys, a position_ids buffer."""
    for kind, fast_class, plain in (
        ("AlbertForMaskedLM", fastsal.FastAlbertModel, AlbertModel),
        ("BertForMaskedLM", fastsal.FastBertModel, BertModel),
    ):
        head = make_head(kind)
        prefix = head.base_model_prefix
        state = {**head.state_dict(), f"{prefix}.embeddings.position_ids": torch.arange(40)[None]}
        folder = tmp_path / kind
        head.save_pretrained(folder, state_dict={name: tensor.clone() for name, tensor in state.items()})
        ours, reference = (cls.from_pretrained(folder, add_pooling_layer=False).eval() for cls in (fast_class, plain))
        for name, tensor in reference.state_dict().items():
            assert torch.equal(ours.state_dict()[name], tensor)
            assert torch.equal(head.base_model.state_dict()[name], tensor)
        batch = random_batch()
        torch.testing.assert_close(
            ours(**batch).last_hidden_state[0], reference(**batch).last_hidden_state[0], rtol=1e-4, atol=1e-5
        )
        assert_ran_native(ours)


def test_old_names_of_layer_norm_weights(tmp_path):
    """B30: LayerNorm.gamma and LayerNorm.beta."""
    model = tiny_bert(add_pooling_layer=False)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    model.config.save_pretrained(tmp_path)
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    fast = fastsal.FastBertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    reference = BertModel.from_pretrained(tmp_path, add_pooling_layer=False)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(fast.state_dict()[name], tensor)


def test_a_pooler_that_the_checkpoint_lacks(tmp_path):
    """B32: it is random, as in Hugging Face, and takes no part in hidden states or embeddings."""
    model = tiny_albert(add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    first, second = (fastsal.FastAlbertModel.from_pretrained(tmp_path) for _ in range(2))
    batch = random_batch()
    assert torch.equal(first(**batch).last_hidden_state, second(**batch).last_hidden_state)
    assert torch.equal(first.sentence_embeddings([[1, 2]]), second.sentence_embeddings([[1, 2]]))
