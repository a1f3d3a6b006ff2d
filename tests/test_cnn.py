"""The CNN module: each sentence as if it were alone, which is sentence-transformers at batch size 1."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OracleEncoder
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import CNN, Pooling
from tiny import TEXTS, encoders_of, model_folder
from tolerance import assert_as_exact_as_reference
from transformers import AutoModel

import fastsal
from fastsal.engine.packing import pack_token_lists
from fastsal.engine.pooling import Convolution, PoolingSpec
from fastsal.modules.architectures import read_encoder

pytestmark = pytest.mark.usefixtures("one_thread", "no_grad")

WIDTH = 32
CHANNELS = 20

#: Kernel sizes and strides of one CNN, all of which give equal lengths.
SHAPES = [
    ([1, 3, 5], None),
    ([2], None),
    ([4], None),
    ([3], [2]),
    ([5], [3]),
    ([2, 4], None),
    ([1], None),
    ([9, 3], [2, 2]),
]


def cnn_folder(folder, checkpoint, kernel_sizes, stride_sizes=None, mode="max", seed=0, **pooling):
    torch.manual_seed(seed)
    cnn = CNN(WIDTH, CHANNELS, kernel_sizes, stride_sizes)
    return model_folder(folder, checkpoint, cnn, Pooling(cnn.get_embedding_dimension(), mode, **pooling))


@pytest.mark.parametrize(("kernel_sizes", "stride_sizes"), SHAPES, ids=str)
@pytest.mark.parametrize("mode", ["max", "mean", ("mean", "lasttoken", "cls", "weightedmean")], ids=str)
def test_each_sentence_is_as_if_alone(checkpoint, tmp_path, kernel_sizes, stride_sizes, mode):
    folder = cnn_folder(tmp_path / "model", checkpoint, kernel_sizes, stride_sizes, mode)
    reference, fast = encoders_of(folder)
    assert not isinstance(fast._computation(None), str)
    truth = SentenceTransformer(str(folder), device="cpu").double()
    alone = {"batch_size": 1, "convert_to_tensor": True}
    embeddings = fast.encode(TEXTS, convert_to_tensor=True)
    assert_as_exact_as_reference(embeddings, reference.encode(TEXTS, **alone), truth.encode(TEXTS, **alone))
    assert torch.equal(fast.encode(TEXTS[::-1], convert_to_tensor=True).flip(0), embeddings)
    assert torch.equal(fast.encode(TEXTS[3], convert_to_tensor=True), embeddings[3])


def test_the_reference_backend_keeps_the_references_batches(checkpoint, tmp_path):
    folder = cnn_folder(tmp_path / "model", checkpoint, [2, 4])
    reference = SentenceTransformer(str(folder), device="cpu")
    kept = fastsal.SentenceEncoder(str(folder), backend="reference", device="cpu")
    batched = reference.encode(TEXTS)
    np.testing.assert_array_equal(kept.encode(TEXTS), batched)
    assert np.abs(batched - reference.encode(TEXTS, batch_size=1)).max() > 1e-3  # padding leaks


@pytest.mark.parametrize("kernel_sizes", [[1, 2], [3, 4, 5]], ids=str)
def test_kernels_of_unequal_output_lengths(checkpoint, tmp_path, kernel_sizes):
    reference, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, kernel_sizes))
    with pytest.raises(RuntimeError):
        reference.encode(TEXTS)
    with pytest.raises(ValueError, match="length"):
        fast.encode(TEXTS)


def test_max_pooling_never_picks_padding(checkpoint, tmp_path):
    """B38: a pad is a zero, and every real value is negative."""
    torch.manual_seed(0)
    cnn = CNN(WIDTH, CHANNELS, [1, 3, 5])
    for convolution in cnn.convs:
        convolution.weight.mul_(0.01)
        convolution.bias.fill_(-2)
    folder = model_folder(tmp_path / "model", checkpoint, cnn, Pooling(3 * CHANNELS, "max"))
    reference, fast = encoders_of(folder)
    embeddings = fast.encode(TEXTS)
    assert (embeddings < -1).all()
    np.testing.assert_allclose(embeddings, reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)


def test_an_excluded_prompt(checkpoint, tmp_path):
    for kernel_sizes, stride_sizes in SHAPES:
        name = f"model{kernel_sizes}{stride_sizes}"
        folder = cnn_folder(tmp_path / name, checkpoint, kernel_sizes, stride_sizes, "mean", include_prompt=False)
        reference, fast = encoders_of(folder)
        texts = [text for text in TEXTS if len(text) > 20]
        expected = reference.encode(texts, prompt="the ", batch_size=1)
        np.testing.assert_allclose(fast.encode(texts, prompt="the "), expected, rtol=0, atol=1e-5)


def test_weights_that_change_are_noticed(checkpoint, tmp_path):
    reference, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [1, 3]))
    seen = [fast.encode(TEXTS)]
    for change in (
        lambda model: model[1].convs[0].weight.mul_(2),
        lambda model: model[1].convs[1].bias.add_(1),
        lambda model: model[1].load_state_dict({name: -w for name, w in model[1].state_dict().items()}),
        lambda model: setattr(
            model[1].convs[0], "weight", torch.nn.Parameter(model[1].convs[1].weight[..., :1].clone())
        ),
        lambda model: model[0].model.embeddings.word_embeddings.weight.mul_(1.5),
    ):
        change(reference)
        change(fast)
        seen.append(fast.encode(TEXTS))
        np.testing.assert_allclose(seen[-1], reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-4)
        assert not np.allclose(seen[-1], seen[-2], atol=1e-3)


@pytest.mark.parametrize("fused", [True, False])
def test_a_cnn_that_an_optimizer_trains_under_a_frozen_encoder(checkpoint, tmp_path, fused):
    """Fused optimizers, transformers' Trainer's default, leave no trace in the version counter."""
    _, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [1, 3]))
    fast[0].requires_grad_(False)
    fast[1].requires_grad_(True)
    optimizer = torch.optim.AdamW(fast[1].parameters(), lr=0.1, fused=fused)
    for _ in range(2):
        before = fast.encode(TEXTS)
        for parameter in fast[1].parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        plain = fastsal.restore(copy.deepcopy(fast))
        after = fast.encode(TEXTS)
        np.testing.assert_allclose(after, plain.encode(TEXTS, batch_size=1), rtol=0, atol=1e-4)
        assert not np.allclose(after, before, atol=1e-3)


def test_a_cnn_made_in_inference_mode(checkpoint, tmp_path):
    """Its tensors count no versions."""
    _, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [1, 3]))
    with torch.inference_mode():
        fast[1] = CNN(WIDTH, CHANNELS, [1, 3])
    before = fast.encode(TEXTS)
    assert np.array_equal(fast.encode(TEXTS), before)
    with torch.inference_mode():
        fast[1].convs[0].weight.mul_(3)
    assert not np.allclose(fast.encode(TEXTS), before, atol=1e-3)


def test_freed_convolutions_get_torchs_error(checkpoint, tmp_path):
    _, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [3]))
    fast[1].convs[0].weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage of size 0"):
        fast.encode(TEXTS)


def test_altered_convolutions_run_in_the_reference(checkpoint, tmp_path):
    reference, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [3]))
    for model in (reference, fast):
        model[1].convs[0].dilation = (2,)
        model[1].convs[0].padding = (2,)
    assert "convolutions" in fast._computation(None)
    np.testing.assert_allclose(
        fast.encode(TEXTS, batch_size=1), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5
    )


def test_dense_behind_the_cnn(checkpoint, tmp_path):
    cnn, dense = CNN(WIDTH, CHANNELS, [4]), Dense(CHANNELS, 7)
    reference, fast = encoders_of(model_folder(tmp_path / "model", checkpoint, cnn, Pooling(CHANNELS, "mean"), dense))
    assert not isinstance(fast._computation(None), str)
    np.testing.assert_allclose(fast.encode(TEXTS), reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)


class ScaledCNN(CNN):
    def forward(self, features):
        features = super().forward(features)
        features["token_embeddings"] = features["token_embeddings"] * 3
        return features


def test_a_subclass_of_the_cnn_runs_as_it_is(checkpoint, tmp_path):
    reference, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [1, 3]))
    plain = fast.encode(TEXTS)
    for model in (reference, fast):
        model[1].__class__ = ScaledCNN
    assert "ScaledCNN" in fast._computation(None)
    scaled = fast.encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(scaled, reference.encode(TEXTS, batch_size=1), rtol=0, atol=1e-5)
    np.testing.assert_allclose(scaled, 3 * plain, rtol=0, atol=1e-4)


def test_plain_sentence_transformers_loads_what_is_saved(checkpoint, tmp_path):
    reference, fast = encoders_of(cnn_folder(tmp_path / "model", checkpoint, [1, 3, 5], [2, 2, 2]))
    fast.save(str(tmp_path / "saved"))
    loaded, again = encoders_of(tmp_path / "saved")
    assert type(loaded) is SentenceTransformer
    np.testing.assert_array_equal(loaded.encode(TEXTS), reference.encode(TEXTS))
    np.testing.assert_array_equal(again.encode(TEXTS), fast.encode(TEXTS))


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return fastsal.accelerate(AutoModel.from_pretrained(checkpoint).eval(), strict=True)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_convolutions_against_the_twin(encoder, data):
    parity = data.draw(st.integers(0, 1))
    kernel_sizes = data.draw(st.lists(st.integers(0, 3).map(lambda n: 2 * n + 1 + parity), min_size=1, max_size=3))
    stride = data.draw(st.integers(1, 3))
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    # One number may cancel to nearly nothing, which no error relative to it survives; eight do not all.
    channels, with_bias = data.draw(st.integers(8, 40)), data.draw(st.booleans())
    convolutions = tuple(
        Convolution(torch.randn(channels, WIDTH, size) / 8, torch.randn(channels) if with_bias else None, stride)
        for size in kernel_sizes
    )
    modes = data.draw(st.lists(st.sampled_from(["max", "mean", "cls", "lasttoken"]), min_size=1, max_size=2).map(tuple))
    pooling = PoolingSpec(modes, convolutions, skip_tokens=data.draw(st.sampled_from([0, 0, 1])))
    token_lists = data.draw(st.lists(st.lists(st.integers(5, 40), min_size=4, max_size=48), min_size=1, max_size=4))

    batch = pack_token_lists(token_lists)
    actual = encoder.sentence_embeddings(token_lists, pooling)
    reading = read_encoder(encoder)
    reference, truth = (
        OracleEncoder(reading.spec, reading.weights, dtype).sentence_embeddings(batch, pooling)
        for dtype in (torch.float32, torch.float64)
    )
    nothing = truth == float("-inf")
    assert torch.equal(actual == float("-inf"), nothing)
    assert_as_exact_as_reference(*(x.masked_fill(nothing, 0) for x in (actual, reference, truth)))


def test_too_short_for_a_convolution(encoder):
    pooling = PoolingSpec(("max",), (Convolution(torch.randn(3, WIDTH, 2), None),))
    assert encoder.sentence_embeddings([[5, 6], [7, 8, 9]], pooling).shape == (2, 3)
    with pytest.raises(ValueError, match="convolution"):
        encoder.sentence_embeddings([[5, 6], [7]], pooling)
