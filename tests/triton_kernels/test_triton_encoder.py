"""The whole encoder on the Triton kernels against its plain PyTorch twin, in every way it can be computed."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_case import DEVICE, DTYPES, STAGES, tuning_with
from oracle import OracleEncoder
from random_encoder import random_batch, random_encoder
from tolerance import assert_as_exact_as_reference

from fastsal.backends import triton_encoder
from fastsal.backends.triton_encoder import TritonEncoder
from fastsal.engine.packing import PackedBatch, pack_token_lists
from fastsal.engine.pooling import POOLING_MODES, Convolution, PoolingSpec
from fastsal.engine.spec import EncoderSpec, EncoderWeights, LayerNorm, LayerWeights, Linear

SHORT = [1, 2, 15, 16, 17, 0, 31, 5]
LONG = [3, 70, 1, 130]

FUSED = tuning_with()
SPLIT = tuning_with(attention="split", attention_output="fused", down="fused")
CUBLAS = tuning_with(attention="split", **dict.fromkeys(STAGES[1:], "cublas"))


def on_device(weights: EncoderWeights, dtype: torch.dtype) -> EncoderWeights:
    """The weights, rounded to `dtype`: the model that reference and truth compute too."""

    def move(part):
        if part is None:
            return None
        if isinstance(part, torch.Tensor):
            return part.to(DEVICE, dtype)
        if isinstance(part, (Linear, LayerNorm)):
            return type(part)(move(part.weight), move(part.bias))
        if isinstance(part, tuple):
            return tuple(move(p) for p in part)
        return LayerWeights(**{name: move(value) for name, value in vars(part).items()})

    return EncoderWeights(**{name: move(value) for name, value in vars(weights).items()})


def encoder_and_twins(spec, weights, dtype=torch.float32, tuning=FUSED):
    weights = on_device(weights, dtype)
    name = str(dtype).removeprefix("torch.")
    return TritonEncoder(spec, weights, name, tuning), OracleEncoder(spec, weights, dtype), OracleEncoder(spec, weights)


def check_states(
    spec: EncoderSpec, weights: EncoderWeights, lengths: list[int], dtype=torch.float32, tuning=FUSED
) -> None:
    encoder, reference, truth = encoder_and_twins(spec, weights, dtype, tuning)
    batch = random_batch(lengths)
    states = encoder.hidden_states(batch, all_layers=True)
    expected = zip(states, reference.hidden_states(batch, True), truth.hidden_states(batch, True), strict=True)
    for out, ref, true in expected:
        assert_as_exact_as_reference(out, ref, true)
    assert torch.equal(encoder.hidden_states(batch), states[-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tuning", [FUSED, SPLIT, CUBLAS], ids=["fused", "split", "cublas"])
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("embedding_size", [None, 12], ids=["bert", "albert"])
def test_layers(dtype, tuning, lengths, embedding_size):
    schedule = (0, 1) if embedding_size is None else (0, 0)
    check_states(
        *random_encoder(2, 13, 40, embedding_size, schedule=schedule, activation="gelu_tanh"), lengths, dtype, tuning
    )


def test_embeddings_too_wide_to_be_mapped_in_one_kernel(monkeypatch):
    monkeypatch.setattr(triton_encoder, "MAX_MAPPED_WIDTH", 8)
    check_states(*random_encoder(embedding_size=12), SHORT)


@pytest.mark.parametrize("schedule", [(), (0, 0, 1, 1)])
def test_layer_schedules(schedule):
    check_states(*random_encoder(schedule=schedule), [4, 9])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("modes", [*[(m,) for m in POOLING_MODES], ("mean", "cls")])
def test_sentence_embeddings(dtype, modes):
    check_embeddings(dtype, [1, 2, 15, 0, 31], PoolingSpec(modes, normalize="max" not in modes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[5, 17, 33, 4], [3, 130, 2]])
def test_cnn(dtype, lengths):
    generator = torch.Generator().manual_seed(0)
    convolutions = tuple(
        Convolution(
            (torch.randn(20, 16, k, generator=generator) * (16 * k) ** -0.5).to(DEVICE, dtype),
            torch.randn(20, generator=generator).to(DEVICE, dtype),
        )
        for k in (1, 3, 5)
    )
    check_embeddings(dtype, lengths, PoolingSpec(("max", "mean"), convolutions, normalize=True))


def check_embeddings(dtype, lengths, pooling):
    encoder, reference, truth = encoder_and_twins(*random_encoder(), dtype)
    batch = random_batch(lengths)
    out = encoder.sentence_embeddings(batch, pooling)
    assert out.dtype == torch.float32
    true = truth.sentence_embeddings(batch, pooling)
    finite = true.isfinite()
    assert torch.equal(out[~finite], true[~finite].float())
    ref = reference.sentence_embeddings(batch, pooling)
    assert_as_exact_as_reference(out[finite], ref[finite].to(dtype), true[finite])


def test_word_vectors_in_place_of_ids():
    encoder, *_ = encoder_and_twins(*random_encoder(embedding_size=12))
    batch = random_batch([3, 17])
    vectors = encoder._word_table[batch.input_ids]
    by_vectors = PackedBatch(batch.cu_seqlens, batch.position_ids, batch.token_type_ids, inputs_embeds=vectors)
    torch.testing.assert_close(encoder.hidden_states(by_vectors), encoder.hidden_states(batch))


def test_repeated_calls_of_changing_lengths_by_graphs():
    """B99: from the second call of a size on a graph replays; what it returned before stays as it was."""
    encoder, *_ = encoder_and_twins(*random_encoder())
    plain, *_ = encoder_and_twins(*random_encoder())
    pooling = PoolingSpec(("mean",), normalize=True)
    earlier = []
    for seed, lengths in enumerate([[9, 4], [3, 3, 3, 5], [16], [2, 7], [1, 0, 12], [15]]):
        batch = random_batch(lengths, seed=seed)
        plain._graphs.clear()
        expected = plain.sentence_embeddings(batch, pooling), plain.hidden_states(batch)
        results = encoder.sentence_embeddings(batch, pooling), encoder.hidden_states(batch)
        earlier.append((results, expected))
    assert len([graph for graph in encoder._graphs.values() if graph is not None]) == 2
    for results, expected in earlier:
        for out, true in zip(results, expected, strict=True):
            torch.testing.assert_close(out, true)


@pytest.mark.parametrize("tuning", [FUSED, SPLIT, CUBLAS], ids=["fused", "split", "cublas"])
def test_what_memory_held_before_does_not_matter(tuning):
    """B79, B80: neither in a first pass nor in the spare rows of a graph."""
    encoder, *_ = encoder_and_twins(*random_encoder(embedding_size=12), tuning=tuning)
    batch = random_batch([5, 3, 9])
    results = []
    for _ in range(4):
        results += [encoder.sentence_embeddings(batch, PoolingSpec()), encoder.hidden_states(batch)]
        for workspace in (encoder._workspace, encoder._graph_workspace):
            for tensor in () if workspace is None else (workspace.x, workspace.y, workspace.context, workspace._wide):
                tensor.fill_(float("nan"))
    assert all(result.isfinite().all() for result in results)
    assert torch.equal(results[2], results[4])
    assert torch.equal(results[3], results[5])


def test_number_of_graphs_is_bounded(monkeypatch):
    monkeypatch.setattr(triton_encoder, "_MAX_GRAPHS", 3)
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    batch = random_batch([4])
    for skip in range(6):
        for _ in range(2):
            encoder.sentence_embeddings(batch, PoolingSpec(("mean",), skip_tokens=skip))
    assert len(encoder._graphs) == 3


def test_warm_up_makes_every_graph(monkeypatch):
    """After it no call of any size compiles or captures."""
    monkeypatch.setattr(triton_encoder, "GRAPH_TOKENS", (16, 32))
    monkeypatch.setattr(triton_encoder, "CHUNK_TOKENS", 64)
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=(0,)))
    pooling = PoolingSpec(normalize=True)
    encoder.warm_up(pooling)
    captures = []
    monkeypatch.setattr(encoder, "_capture", lambda *arguments: captures.append(arguments))
    known = set(encoder._graphs)
    for lengths in ([1], [5, 9], [16], [3, 20], [32], [2] * 16):
        assert encoder.sentence_embeddings(random_batch(lengths), pooling).isfinite().all()
    assert not captures
    assert set(encoder._graphs) == known


def test_sizes_of_graphs():
    sizes = triton_encoder.GRAPH_TOKENS
    assert sizes[0] == 16
    assert sizes[-1] == triton_encoder.CHUNK_TOKENS
    assert all(a < b for a, b in itertools.pairwise(sizes))
    assert all(b <= 1.25 * a for a, b in itertools.pairwise(sizes) if a >= 256)


def test_graphs_call_no_cublas():
    """torch frees cuBLAS's workspace with any graph of its stream."""
    encoder, *_ = encoder_and_twins(*random_encoder(), tuning=CUBLAS)
    batch = random_batch([5, 3])
    for _ in range(3):
        encoder.hidden_states(batch)
    assert not encoder._graphs


def test_what_cannot_be_captured_runs_without_a_graph(monkeypatch, caplog):
    attempts = []

    def refused(compute, device):
        attempts.append(device)
        raise RuntimeError("operation would make the legacy stream depend on a capturing stream")

    monkeypatch.setattr(triton_encoder, "captured", refused)
    encoder, *_ = encoder_and_twins(*random_encoder())
    batch = random_batch([5, 3])
    results = [encoder.hidden_states(batch) for _ in range(4)]
    assert len(attempts) == 1
    assert "batches of 16 tokens run without a CUDA graph: operation would" in caplog.text
    for result in results[1:]:
        assert torch.equal(result, results[0])


def test_memory_is_freed_after_its_last_use(monkeypatch):
    """What replaces it may be on another stream."""
    waits = []
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    monkeypatch.setattr(encoder._order, "finish", lambda: waits.append(encoder._workspace))
    monkeypatch.setattr(triton_encoder, "_LEAST_ROWS", 16)
    encoder.hidden_states(random_batch([17]))
    small = encoder._workspace
    encoder.hidden_states(random_batch([40]))
    assert waits == [None, small]
    encoder._graphs.clear()
    monkeypatch.setattr(triton_encoder, "_MAX_GRAPHS", 1)
    for skip in range(2):
        encoder.sentence_embeddings(random_batch([4]), PoolingSpec(skip_tokens=skip))
    assert len(waits) == 3


def test_an_encoder_goes_after_its_last_use(monkeypatch):
    waits = []
    monkeypatch.setattr(triton_encoder.StreamOrder, "wait", lambda self: waits.append(self))
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    assert not waits
    del encoder
    assert len(waits) == 1


def test_large_batches_are_computed_in_chunks(monkeypatch):
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=(0,)))
    batch = random_batch([5, 20, 3, 40, 1, 9, 9])
    states = encoder.hidden_states(batch, all_layers=True)
    embeddings = encoder.sentence_embeddings(batch, PoolingSpec(("max",)))
    monkeypatch.setattr(triton_encoder, "CHUNK_TOKENS", 25)
    torch.testing.assert_close(encoder.hidden_states(batch, all_layers=True), states)
    torch.testing.assert_close(encoder.sentence_embeddings(batch, PoolingSpec(("max",))), embeddings)


@pytest.mark.parametrize(
    ("ids", "types", "message"),
    [
        ([[1, 50]], None, r"input_ids must be in \[0, 50\), got 50"),
        ([[1, -1]], None, r"input_ids must be in \[0, 50\), got -1"),
        ([[2**31 + 5]], None, "got 2147483653"),
        ([[1, 2]], [[0, 2]], r"token_type_ids must be in \[0, 2\), got 2"),
        ([[1] * 521], None, r"position_ids must be in \[0, 520\), got 520"),
    ],
)
def test_ids_outside_a_table_are_found_before_a_kernel_reads_it(ids, types, message):
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    with pytest.raises(IndexError, match=message):
        encoder.hidden_states(pack_token_lists(ids, types))
    assert encoder.hidden_states(pack_token_lists([[1, 2]])).isfinite().all()


def test_sentence_too_short_for_a_convolution_is_named():
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    pooling = PoolingSpec(("max",), (Convolution(torch.ones(3, 16, 4, device=DEVICE), None),))
    with pytest.raises(ValueError, match="sentence 1 has 1 tokens, too few for a convolution of kernel size 4"):
        encoder.sentence_embeddings(random_batch([5, 1]), pooling)


def test_no_sentences():
    encoder, *_ = encoder_and_twins(*random_encoder())
    batch = pack_token_lists([])
    assert encoder.hidden_states(batch).shape == (0, 16)
    assert encoder.sentence_embeddings(batch, PoolingSpec()).shape == (0, 16)


def test_changed_convolution_weights_are_packed_again():
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    batch = random_batch([5])
    convolution = Convolution(torch.randn(4, 16, 3, device=DEVICE), None)
    pooling = PoolingSpec(("mean",), (convolution,))
    before = encoder.sentence_embeddings(batch, pooling)
    convolution.weight.mul_(2)
    torch.testing.assert_close(encoder.sentence_embeddings(batch, pooling), before * 2)


def test_convolutions_made_in_inference_mode_leave_no_dead_graphs():
    """Their weights count no versions: nothing that was made of them can be used again."""
    encoder, *_ = encoder_and_twins(*random_encoder(schedule=()))
    batch = random_batch([5])
    with torch.inference_mode():
        pooling = PoolingSpec(("mean",), (Convolution(torch.randn(4, 16, 3, device=DEVICE), None),))
        before = encoder.sentence_embeddings(batch, pooling)
        pooling.convolutions[0].weight.mul_(2)
        after = encoder.sentence_embeddings(batch, pooling)
    torch.testing.assert_close(after, before * 2)
    assert not encoder._graphs
    assert not encoder._convolutions


def test_calls_inside_and_outside_inference_mode():
    encoder, *_ = encoder_and_twins(*random_encoder(), tuning=CUBLAS)
    batch = random_batch([5, 3])
    with torch.inference_mode():
        inside = encoder.hidden_states(batch)
    assert not inside.is_inference()
    torch.testing.assert_close(encoder.hidden_states(batch), inside)
    torch.testing.assert_close(encoder.hidden_states(batch), inside)
