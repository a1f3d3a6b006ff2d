"""Training recipes, on tiny encoders and a few rows: what they write, that they resume, what they refuse."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from corpus import make_texts, read_texts
from encoders import make_encoder
from experiment import Experiment, Source, Texts
from labelling import label_texts
from objectives import EmbeddingDistillationLoss
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from settings import SettingsError, from_mapping, read_settings
from tiny import TEXTS, albert_checkpoint, bert_checkpoint, model_folder
from torch.nn import functional as F
from train import export, train
from trainer import LengthGroupedBatchSampler, SeededBatchSampler, Trainer
from training_data import NLI_CLASSES, make_dataset
from wordpiece import train_wordpiece

import fastsal
from fastsal.data import sample_sentences
from fastsal.measure.evaluation import DataError, NliHead

RECIPES = Path(__file__).parents[1] / "recipes"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path) -> Path:
    """A folder with 30 NLI pairs, 24 scored pairs and some sentences."""
    folder = tmp_path / "data"
    sentences = [sentence.replace("\t", " ") for sentence in sample_sentences() if len(sentence.split()) > 3]
    labels = ("entailment", "neutral", "contradiction")
    nli = [f"{labels[i % 3]}\t{sentences[i // 3]}\t{sentences[40 + i]}" for i in range(30)]
    sts = [f"g\tf\ty\t{i}\t{i % 6}\t{sentences[i]}\t{sentences[i + 30]}" for i in range(24)]
    for name, lines in (("snli/train.tsv", nli), ("stsb/sts-train.csv", sts), ("text.txt", sentences[:60])):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def checkpoint(tmp_path, architecture) -> Path:
    make = {"albert": albert_checkpoint, "bert": bert_checkpoint}[architecture]
    return make(tmp_path / "checkpoint")


def experiment(checkpoint: Path, *objectives: dict, encoder: dict | None = None, **stage: object) -> Experiment:
    options = {"name": "stage", "batch_size": 4, "learning_rate": 1e-3, "save_steps": 50, **stage}
    content = {
        "encoder": {"checkpoint": str(checkpoint), "max_seq_length": 32, **(encoder or {})},
        "stages": [{**options, "objectives": list(objectives)}],
    }
    return from_mapping(Experiment, content, "test")


NLI = {"kind": "nli", "data": ["snli"]}
STS = {"kind": "sts", "data": ["stsb"]}
TRIPLET = {"kind": "triplet", "data": ["snli"]}


def distillation(teacher: Path) -> dict:
    return {"kind": "distillation", "teacher": str(teacher), "similarity_weight": 1.0,
            "texts": {"sources": [{"file": "text.txt"}], "made": 20}}  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("architecture", "pooling"), [("bert", "cls"), ("albert", "mean"), ("albert", "max"), ("bert", "cnn")]
)
def test_nli_makes_a_plain_folder_with_its_head(tmp_path, data, checkpoint, pooling):
    result = train(experiment(checkpoint, NLI, encoder={"pooling": pooling}), tmp_path / "run", data, "cpu")
    plain, fast = SentenceTransformer(str(result), device="cpu"), fastsal.SentenceEncoder(str(result), device="cpu")
    alone = np.stack([plain.encode(text) for text in TEXTS])
    assert np.abs(fast.encode(TEXTS) - alone).max() < 1e-4 * np.abs(alone).max()
    head = NliHead.load(result)
    assert head is not None
    assert head.labels == NLI_CLASSES
    assert set(head.predict(alone, alone)) <= set(NLI_CLASSES)
    begin = weights(tmp_path / "run" / "0-begin" / "model")
    assert any(not torch.equal(begin[name], value) for name, value in weights(result).items())


def test_every_objective_lowers_its_loss(tmp_path, data):
    checkpoint = albert_checkpoint(tmp_path / "checkpoint", hidden_dropout_prob=0.0)
    teacher = model_folder(tmp_path / "teacher", bert_checkpoint(tmp_path / "b", 1), Pooling(32, "mean"))
    for objective in (NLI, STS, TRIPLET, distillation(teacher)):
        run = tmp_path / objective["kind"]
        train(experiment(checkpoint, objective, max_steps=40, save_steps=10, learning_rate=5e-3), run, data, "cpu")
        (state,) = run.glob("1-stage/checkpoints/*/trainer_state.json")
        losses = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
        assert min(losses[-2:]) < losses[0], (objective["kind"], losses)


def test_stages_follow_each_other_and_only_the_last_leaves_a_head(tmp_path, data, checkpoint):
    single = experiment(checkpoint, NLI)
    second = experiment(checkpoint, STS).stages[0]
    both = Experiment(single.encoder, (single.stages[0], second))
    result = train(both, tmp_path / "run", data, "cpu")
    assert NliHead.load(tmp_path / "run" / "1-stage" / "model") is not None
    assert NliHead.load(result) is None
    assert (tmp_path / "run" / "2-stage" / "model").is_dir()


def test_a_frozen_encoder_stays_and_its_head_learns(tmp_path, data, checkpoint):
    result = train(experiment(checkpoint, NLI, freeze=True, max_steps=3), tmp_path / "a", data, "cpu")
    begin = weights(tmp_path / "a" / "0-begin" / "model")
    assert all(torch.equal(begin[name], value) for name, value in weights(result).items())
    other = train(experiment(checkpoint, NLI, freeze=True, max_steps=6), tmp_path / "b", data, "cpu")
    assert not torch.equal(NliHead.load(result).weight, NliHead.load(other).weight)


def test_a_run_is_not_continued_with_other_settings(tmp_path, data, checkpoint):
    train(experiment(checkpoint, NLI, max_steps=1), tmp_path / "run", data, "cpu")
    train(experiment(checkpoint, NLI, max_steps=1), tmp_path / "run", data, "cpu")
    with pytest.raises(ValueError, match="was begun with other settings"):
        train(experiment(checkpoint, NLI, max_steps=2), tmp_path / "run", data, "cpu")


def test_equal_seeds_give_equal_weights(tmp_path, data, checkpoint):
    results = [train(experiment(checkpoint, NLI), tmp_path / name, data, "cpu") for name in ("a", "b")]
    first, second = map(weights, results)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(NliHead.load(results[0]).weight, NliHead.load(results[1]).weight)


@pytest.mark.parametrize("grouped", [False, True])
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path, data, checkpoint, monkeypatch, grouped):
    """Stopped in the second epoch: the order of the data, dropout and the classifier's weights all go on."""
    settings = experiment(checkpoint, NLI, STS, epochs=2.0, save_steps=18, group_by_length=grouped)
    whole = train(settings, tmp_path / "whole", data, "cpu")

    save = Trainer._save_checkpoint

    def save_and_stop(self, *arguments):
        save(self, *arguments)
        if self.state.global_step == 18:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", data, "cpu")
    monkeypatch.undo()
    assert not (tmp_path / "stopped" / "model").exists()
    resumed = train(settings, tmp_path / "stopped", data, "cpu")
    expected, got = weights(whole), weights(resumed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert torch.equal(NliHead.load(whole).weight, NliHead.load(resumed).weight)


@pytest.mark.parametrize("whole_checkpoints", [0, 1])
@pytest.mark.parametrize("left", ["nothing", "half a state"])
def test_a_run_stopped_while_it_writes_a_checkpoint_goes_on_from_the_one_before(
    tmp_path, data, monkeypatch, whole_checkpoints, left
):
    settings = experiment(bert_checkpoint(tmp_path / "checkpoint"), NLI, epochs=2.0, save_steps=6)
    whole = train(settings, tmp_path / "whole", data, "cpu")
    save, last_step = Trainer._save_optimizer_and_scheduler, 6 * (whole_checkpoints + 1)

    def stop_while_saving(self, folder):
        if self.state.global_step == last_step:
            if left == "half a state":
                Path(folder, "trainer_state.json").write_text('{"epoch": 1')
            raise KeyboardInterrupt
        save(self, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", stop_while_saving)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", data, "cpu")
    monkeypatch.undo()
    checkpoints = tmp_path / "stopped" / "1-stage" / "checkpoints"
    assert len(list(checkpoints.iterdir())) == whole_checkpoints + 1
    expected, got = weights(whole), weights(train(settings, tmp_path / "stopped", data, "cpu"))
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_texts_are_labelled_anew_when_they_have_changed(tmp_path, monkeypatch):
    teacher = model_folder(tmp_path / "teacher", bert_checkpoint(tmp_path / "b", 1), Pooling(32, "mean"))
    first = label_texts(["a cat", "the dog"], str(teacher), tmp_path / "labels")
    second = label_texts(["a cat", "the red car"], str(teacher), tmp_path / "labels")
    assert second["text"][:] == ["a cat", "the red car"]
    assert second["label"][0] == first["label"][0]
    assert second["label"][1] != first["label"][1]
    assert [path.name for path in tmp_path.glob("labels*")] == ["labels"]
    monkeypatch.setattr("labelling.SentenceEncoder", None)  # equal texts need no teacher
    again = label_texts(["a cat", "the red car"], str(teacher), tmp_path / "labels")
    assert again["label"][:] == second["label"][:]


def test_an_interrupted_write_leaves_no_settings_behind(tmp_path, data, monkeypatch):
    settings = experiment(bert_checkpoint(tmp_path / "checkpoint"), NLI, max_steps=1)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        train(settings, tmp_path / "run", data, "cpu")
    monkeypatch.undo()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_fresh_albert_starts_from_its_teacher(tmp_path, data):
    teacher = model_folder(tmp_path / "teacher", bert_checkpoint(tmp_path / "b", 1), Pooling(32, "mean"))
    config = {"model_type": "albert", "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 64, "hidden_act": "gelu",
              "max_position_embeddings": 40}  # fmt: skip
    encoder = {"config": config, "teacher": str(teacher), "normalize": True,
               "vocabulary": {"size": 300, "texts": {"sources": [{"file": "text.txt"}]}}}  # fmt: skip
    settings = from_mapping(Experiment, {"encoder": encoder}, "test")
    model = make_encoder(settings.encoder, data, 0, "cpu")
    albert, bert = model[0].model, SentenceTransformer(str(teacher), device="cpu")
    assert len(model.tokenizer) <= 300
    assert model.tokenizer("Some words.")["input_ids"][0] == model.tokenizer.cls_token_id == albert.config.bos_token_id
    assert model.tokenizer("語")["input_ids"][1:-1] == [model.tokenizer.unk_token_id]
    layer = albert.encoder.albert_layer_groups[0].albert_layers[0]
    assert torch.equal(layer.ffn.weight, bert[0].model.encoder.layer[-1].intermediate.dense.weight)
    # a letter, which both vocabularies have: the table and the mapping give what the teacher says about it
    ids = torch.tensor([[model.tokenizer.convert_tokens_to_ids("e")]])
    said = torch.from_numpy(bert.encode("e", normalize_embeddings=True))
    table, mapping = albert.embeddings.word_embeddings, albert.encoder.embedding_hidden_mapping_in
    assert F.cosine_similarity(mapping(table(ids))[0, 0], said, dim=0) > 0.9
    settings.encoder.config["intermediate_size"] = 48
    with pytest.raises(ValueError, match="intermediate_size must be the teacher's 64, got 48"):
        make_encoder(settings.encoder, data, 0, "cpu")


def test_a_vocabulary_depends_on_its_texts_alone():
    """The library numbers characters and breaks ties in the order of a hash table with a random seed."""
    texts = [*TEXTS, *(f"{a}{b}{c}" for a in "xyz" for b in "0123é" for c in "pqrs")]  # many ties
    first, *others = [train_wordpiece(texts, 90, 32).backend_tokenizer.to_str() for _ in range(6)]
    assert all(other == first for other in others)
    tokenizer = train_wordpiece(texts, 90, 32)
    assert len(tokenizer) == 90
    assert {token.content for token in tokenizer.added_tokens_decoder.values()} == {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}


def test_export_halves_the_file_and_loads_in_float32(tmp_path, data, checkpoint):
    result = train(experiment(checkpoint, NLI), tmp_path / "run", data, "cpu")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "README.md").write_text("card")
    export(result, tmp_path / "half")
    assert (tmp_path / "half" / "README.md").read_text() == "card"
    assert {value.dtype for value in weights(tmp_path / "half").values()} == {torch.float16}
    for cls in (SentenceTransformer, fastsal.SentenceEncoder):
        model = cls(str(tmp_path / "half"), device="cpu")
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        cosine = F.cosine_similarity(
            torch.from_numpy(model.encode(TEXTS)),
            torch.from_numpy(SentenceTransformer(str(result), device="cpu").encode(TEXTS)),
        )
        assert cosine.min() > 0.9999
    assert NliHead.load(tmp_path / "half") is not None


@pytest.mark.parametrize("file", sorted(RECIPES.glob("configs/*.yaml")), ids=lambda file: file.stem)
def test_every_configuration_is_valid(file):
    if file.stem == "paper-table":
        from paper_table import Scales

        assert list(read_settings(file, Scales).full.families.values()) == [
            "bert-base-uncased",
            "albert/albert-base-v2",
        ]
    else:
        assert read_settings(file, Experiment).stages


GOOD = yaml.safe_load((RECIPES / "configs" / "nli-stsb.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": []}, "unknown key 'stage'; there are encoder, stages, seed"),
        ({"encoder": {"checkpont": "x"}}, "encoder: unknown key 'checkpont'"),
        ({"encoder": {}}, "encoder: give either checkpoint or config"),
        ({"encoder": {"checkpoint": "x", "pooling": "sum"}}, "encoder: pooling must be one of cls, mean"),
        ({"encoder": {"config": {"model_type": "gpt"}}}, "config: model_type must be bert or albert"),
        ({"stages": [{"objectives": []}]}, r"stages\[0\]: the key 'name' is missing"),
        ({"stages": [{"name": "a", "objectives": [{"kind": "mlm"}]}]}, r"objectives\[0\]: kind must be one of nli"),
        ({"stages": [{"name": "a", "objectives": [{"kind": "sts", "data": ["snli"]}]}]}, "data of sts must be of"),
        ({"stages": [{"name": "a", "objectives": [NLI], "learning_rate": "1e-5"}]}, "learning_rate: expected float"),
        ({"stages": [{"name": "a", "objectives": [NLI], "batch_size": True}]}, "batch_size: expected int, got True"),
        ({"stages": {}}, "stages: expected a list"),
        ({"stages": [{"name": "a", "objectives": [STS], "freeze": True}]}, "freeze: only nli has weights"),
        ({"seed": None}, "seed: expected int, got None"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named(tmp_path, change, message):
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **change}))
    with pytest.raises(SettingsError, match=rf"bad\.yaml: (.*: )?{message}"):
        read_settings(file, Experiment)


def test_the_command_reports_errors_in_a_line(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("encoder: [")
    command = [sys.executable, str(RECIPES / "train.py"), str(file), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {file}: not valid YAML")


def test_data_sets(data):
    stage = experiment(Path("x"), NLI, STS, TRIPLET, {**NLI, "limit": 7}).stages[0]
    nli, sts, triplets, few = (make_dataset(objective, data, 0) for objective in stage.objectives)
    assert nli.column_names == ["sentence1", "sentence2", "label"]
    assert [NLI_CLASSES[label] for label in nli["label"][:3]] == ["entailment", "neutral", "contradiction"]
    assert len(few) == 7
    assert sts["score"][:6] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert len(triplets) == 10  # a premise has one entailment and one contradiction here
    assert triplets[0] == {
        "anchor": nli[0]["sentence1"],
        "positive": nli[0]["sentence2"],
        "negative": nli[2]["sentence2"],
    }
    with pytest.raises(DataError, match=r"no file .*train\.tsv"):
        make_dataset(stage.objectives[0], data / "nothing", 0)


def test_texts(tmp_path):
    (tmp_path / "a.txt").write_text("Title -- One is here. Two is there! Mr. x is 3.\nOne is HERE\nToo short\n")
    (tmp_path / "t.tsv").write_text("0\tTwo, is there\tNew one here\n")
    sources = (Source("a.txt"), Source("*.tsv", (1, 2)))
    assert read_texts(Texts(sources), tmp_path) == ["One is here.", "Two is there!", "Mr. x is 3.", "New one here"]
    excluded = Texts(sources, exclude=(Source("t.tsv", (1,)),), limit=2)
    assert read_texts(excluded, tmp_path) == ["One is here.", "Mr. x is 3."]
    with pytest.raises(DataError, match=r"no file b\.txt"):
        read_texts(Texts((Source("b.txt"),)), tmp_path)
    sentences = sample_sentences()
    made = make_texts(sentences, 500, 0)
    assert made == make_texts(sentences, 500, 0) != make_texts(sentences, 500, 1)
    assert made[:50] == make_texts(sentences, 60, 0)[:50]
    assert len(set(made)) == len(made) > 400
    assert not set(made) & set(sentences)


def test_batches_depend_on_seed_and_epoch_alone():
    from datasets import Dataset

    texts = ["x" * (7 * index % 50 + 1) for index in range(1000)]
    dataset = Dataset.from_dict({"text": texts, "label": list(range(1000))})
    for cls in (SeededBatchSampler, LengthGroupedBatchSampler):
        samplers = [cls(dataset, batch_size=8, drop_last=False, seed=3) for _ in range(2)]
        for sampler in samplers:
            sampler.set_epoch(2)
        first, second = map(list, samplers)
        assert first == second
        assert sorted(chain.from_iterable(first)) == list(range(1000))
        assert len(first) == len(samplers[0])
        samplers[0].set_epoch(3)
        assert list(samplers[0]) != first
    spread = [max(len(texts[i]) for i in batch) - min(len(texts[i]) for i in batch) for batch in first]
    assert np.mean(spread) < 5


def test_distillation_loss():
    class Student(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features["x"]}

    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    exact = EmbeddingDistillationLoss(Student(), 1.0)
    assert exact([{"x": 3 * x}], x.half()).item() == pytest.approx(0, abs=1e-5)
    rotated = x @ torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q
    directions = EmbeddingDistillationLoss(Student())([{"x": rotated}], x).item()
    assert directions == pytest.approx(1 - F.cosine_similarity(rotated, x).mean().item(), rel=1e-5)
    # a rotation keeps all similarities
    assert exact([{"x": rotated}], x).item() == pytest.approx(directions, rel=1e-5)
