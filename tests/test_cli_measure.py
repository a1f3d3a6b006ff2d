"""`fastsal eval` and `fastsal bench`, on a tiny model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import bert_checkpoint, model_folder
from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel
from typer.testing import CliRunner, Result

import fastsal
from fastsal import cli
from fastsal.backends import BackendError, BackendStatus
from fastsal.data import sample_sentences
from fastsal.measure import benchmark, evaluation
from fastsal.measure.evaluation import NliHead
from fastsal.measure.evaluation.pairs import NLI_LABELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    checkpoint = bert_checkpoint(tmp_path_factory.mktemp("checkpoint"), max_position_embeddings=600)
    return model_folder(tmp_path_factory.mktemp("model"), checkpoint, Pooling(32, "mean"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """STSb, one STS year with two sets, and SNLI, each of a few dozen rows."""
    folder = tmp_path_factory.mktemp("data")
    texts, rng = sample_sentences(), np.random.default_rng(0)
    pairs = [f"{one}\t{other}" for one, other in zip(texts[:60], texts[60:120], strict=True)]
    (folder / "stsb").mkdir()
    rows = [f"g\tf\ty\ti\t{score:.2f}\t{pair}" for score, pair in zip(rng.uniform(0, 5, 60), pairs, strict=True)]
    (folder / "stsb" / "sts-test.csv").write_text("\n".join(rows) + "\n")
    year = folder / "sts12-16" / "STS13-en-test"
    year.mkdir(parents=True)
    for name, part in (("one", pairs[:20]), ("two", pairs[20:])):
        (year / f"STS.input.{name}.txt").write_text("\n".join(part) + "\n")
        scores = [f"{score:.2f}" for score in rng.uniform(0, 5, len(part))]
        (year / f"STS.gs.{name}.txt").write_text("\n".join(["", *scores[1:]]) + "\n")
    (folder / "snli").mkdir()
    labels = [*NLI_LABELS, "-"]
    for name in ("train", "test"):
        lines = [f"{labels[i % 4]}\t{pair}" for i, pair in enumerate(pairs)]
        (folder / "snli" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def run(*arguments: object, env: dict | None = None) -> Result:
    return CliRunner().invoke(
        cli.app, [str(argument) for argument in arguments], env={"FASTSAL_DATA": None, **(env or {})}
    )


# --- eval


def test_eval_prints_reference_against_fastsal(tmp_path, folder, data):
    output = tmp_path / "scores.json"
    result = run(
        "eval", folder, "--task", "stsb,sts13,snli", "--data", data, "--dtype", "float32,int8", "--json", output
    )
    assert result.exit_code == 0, result.output
    for text in ("difference", "sentences/s", "Spearman, all", "Spearman, mean over subsets", "fastsal int8"):
        assert text in result.stdout
    caption = " ".join(result.stdout.split())
    assert "60 rows read, 58 pairs, 2 without a score left out" in caption
    assert "60 rows read, 45 pairs, 15 without a label left out; classifier trained on 45 pairs" in caption
    stsb, sts13, snli = json.loads(output.read_text())["tasks"]
    assert [run["name"] for run in stsb["runs"]] == ["sentence-transformers", "fastsal float32", "fastsal int8"]
    assert stsb["headline"]["Spearman"][1] == pytest.approx(stsb["headline"]["Spearman"][0], abs=0.01)
    assert sts13["runs"][0]["scores"]["num_pairs"] == {"one": 19, "two": 39}
    assert list(snli["headline"]) == ["accuracy, frozen embeddings, test"]
    assert all(run["sentences_per_second"] > 0 for run in stsb["runs"])


def test_eval_uses_the_models_own_head_and_the_data_variable(tmp_path, data):
    folder = model_folder(tmp_path / "model", bert_checkpoint(tmp_path / "checkpoint"), Pooling(32, "mean"))
    torch.manual_seed(0)
    NliHead(torch.randn(3, 96), torch.zeros(3), NLI_LABELS).save(folder)
    result = run("eval", folder, "--task", "snli", env={"FASTSAL_DATA": str(data)})
    assert result.exit_code == 0, result.output
    assert "accuracy, own head, test" in result.stdout


def test_eval_shows_a_difference(tmp_path, folder, data, monkeypatch):
    encode = fastsal.SentenceEncoder.encode

    def reversed_rows(self, inputs, *args, **kwargs):
        return encode(self, inputs, *args, **kwargs)[::-1].copy()

    monkeypatch.setattr(fastsal.SentenceEncoder, "encode", reversed_rows)
    assert run("eval", folder, "--data", data, "--json", tmp_path / "s.json").exit_code == 0
    (task,) = json.loads((tmp_path / "s.json").read_text())["tasks"]
    reference, fast = task["headline"]["Spearman"]
    assert abs(reference - fast) > 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "mnli"], "error: unknown task 'mnli': expected stsb, sick-r"),
        (["--task", "sick-r"], "no file SICK_test_annotated.txt"),
        (["--precision", "int4"], "precision must be one of"),
        (["--dtype", "float8"], "dtype must be one of"),
        (["--backend", "triton"], "backend='triton' with dtype='float32' cannot run"),
        (["--data", "nowhere"], "error: nowhere: no folder with evaluation data"),
    ],
)
def test_eval_says_what_is_wrong(folder, data, options, message):
    options = options if "--data" in options else [*options, "--data", data]
    result = run("eval", folder, *options)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not result.stdout


def test_eval_checks_the_output_before_a_model_is_loaded(tmp_path, data):
    result = run("eval", tmp_path / "none", "--data", data, "--json", tmp_path / "nodir" / "x.json")
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'nodir' / 'x.json'}: No such file or directory\n"


@pytest.mark.parametrize(("error", "code"), [(ValueError("not finite"), 1), (KeyboardInterrupt(), 130)])
def test_eval_keeps_what_was_scored_before_an_error(tmp_path, folder, data, monkeypatch, error, code):
    compare = evaluation.compare

    def compare_or_fail(encoders, dataset, **options):
        if dataset.task == "snli":
            raise error
        return compare(encoders, dataset, **options)

    monkeypatch.setattr(evaluation, "compare", compare_or_fail)
    output = tmp_path / "scores.json"
    result = run("eval", folder, "--task", "stsb,snli,sts13", "--data", data, "--json", output)
    assert result.exit_code == code
    assert "stsb" in result.stdout
    assert "sts13" not in result.stdout
    assert [task["task"] for task in json.loads(output.read_text())["tasks"]] == ["stsb"]


def test_eval_prints_its_table_when_the_file_cannot_be_written(tmp_path, folder, data, monkeypatch):
    write = cli.evaluate.write_json

    def write_elsewhere(path, content):
        write(tmp_path / "gone" / path.name, content)  # the folder vanished meanwhile

    monkeypatch.setattr(cli.evaluate, "write_json", write_elsewhere)
    result = run("eval", folder, "--data", data, "--json", tmp_path / "scores.json")
    assert result.exit_code == 1
    assert "Spearman" in result.stdout
    assert "scores.json: No such file or directory" in result.stderr


def test_eval_without_a_model(tmp_path, data):
    result = run("eval", tmp_path / "none", "--data", data)
    assert result.exit_code == 1
    assert "cannot load the model" in result.stderr


# --- bench


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(benchmark, "NUM_PASSES", 1)
    monkeypatch.setattr(benchmark, "NUM_LATENCIES", 2)


@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_bench_measures_all_that_can_run(tmp_path, folder, short, suffix):
    plot, output = tmp_path / f"plot{suffix}", tmp_path / "bench.json"
    result = run("bench", folder, "--plot", plot, "--json", output, "--seconds", "0.01")
    assert result.exit_code == 0, result.output
    report = json.loads(output.read_text())
    names = [engine["name"] for engine in report["engines"]]
    assert names == ["sentence-transformers", *(f"fastsal cpu {dtype}" for dtype in ("float32", "bfloat16", "int8"))]
    assert "fastsal cpu float16" in report["skipped"]
    for engine in report["engines"]:
        assert set(engine["sentences_per_second"]) == {"queries", "sts", "passages", "mixed"}
        assert engine["name"] in result.stdout
        assert 0 < engine["error"] < 0.2
    errors = {engine["name"]: engine["error"] for engine in report["engines"]}
    assert errors["fastsal cpu float32"] < errors["fastsal cpu bfloat16"]
    content = plot.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<!DOCTYPE html>")
    if suffix == ".html":
        assert b"<svg" in content
        assert b"fastsal cpu int8" in content


class GpuModel:
    """Stands in for a model that may be on a GPU; remembers where it is and what it computes in."""

    def __init__(self, model, dtype="float32", backend=None, device="cpu"):
        if dtype == "int8" and backend == "triton":
            raise BackendError("not in int8")
        self.device, self.dtype = device, dtype

    def to(self, dtype):
        self.dtype = str(dtype).removeprefix("torch.")
        return self


def test_bench_compares_with_the_reference_on_the_engines_device(monkeypatch):
    available = {name: BackendStatus(name, True, "") for name in ("cpu", "triton")}
    monkeypatch.setattr(benchmark, "backends", lambda: available)
    for name in ("SentenceTransformer", "SentenceEncoder"):
        monkeypatch.setattr(benchmark, name, GpuModel)
    engines, skipped = benchmark._engines("model")
    assert skipped == {"fastsal triton int8": "not in int8"}
    for dtype in ("float32", "bfloat16", "float16"):
        engine = engines[f"fastsal triton {dtype}"]
        baseline = engines[engine.baseline]
        assert (baseline.device, baseline.dtype) == ("cuda", dtype)
        assert (baseline.encoder.device, baseline.encoder.dtype) == ("cuda", dtype)
        assert engine.reference is baseline.encoder
        assert engines[f"fastsal cpu {dtype}"].baseline == "sentence-transformers"


def test_bench_table_shows_the_ratio_to_the_baseline():
    rates = {
        "sentence-transformers": 10.0,
        "sentence-transformers cuda float16": 1000.0,
        "fastsal triton float16": 3000.0,
    }
    baselines = ("sentence-transformers", *["sentence-transformers cuda float16"] * 2)
    engines = tuple(
        benchmark.EngineResult(name, baseline, {"sts": rate}, 1.0, 0.0, 1.0, None)
        for (name, rate), baseline in zip(rates.items(), baselines, strict=True)
    )
    machine = {"processor": "p", "threads": "2"}
    table = benchmark.make_bench_table(benchmark.BenchReport("m", "today", machine, engines, {}, {"sts": 15.0}))
    assert list(table.columns[1].cells) == ["10 (1.0x)", "1000 (1.0x)", "3000 (3.0x)"]


def test_bench_prints_no_figures_for_wrong_results(folder, short, monkeypatch):
    encode = fastsal.SentenceEncoder.encode
    monkeypatch.setattr(fastsal.SentenceEncoder, "encode", lambda self, *a, **k: encode(self, *a, **k) * 1.001)
    result = run("bench", folder, "--seconds", "0.01")
    assert result.exit_code == 1
    assert "fastsal cpu float32: error 1.0e-03, above the limit" in " ".join(result.stderr.split())
    assert not result.stdout


def test_bench_refuses_other_plots_before_it_measures(tmp_path, folder):
    result = run("bench", folder, "--plot", tmp_path / "plot.gif")
    assert result.exit_code == 1
    assert "a plot must end in one of .png, .html" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("option", "name"), [("--plot", "plot.png"), ("--json", "bench.json")])
def test_bench_checks_its_outputs_before_it_measures(tmp_path, option, name):
    result = run("bench", tmp_path / "none", option, tmp_path / "nodir" / name)
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'nodir' / name}: No such file or directory\n"


def test_bench_prints_its_table_when_the_file_cannot_be_written(tmp_path, folder, short, monkeypatch):
    write = cli.bench.write_json
    monkeypatch.setattr(cli.bench, "write_json", lambda path, content: write(tmp_path / "gone" / path.name, content))
    result = run("bench", folder, "--json", tmp_path / "bench.json", "--seconds", "0.01")
    assert result.exit_code == 1
    assert "fastsal cpu float32" in result.stdout
    assert "bench.json: No such file or directory" in result.stderr


@pytest.mark.parametrize("command", [["verify", "-m"], ["bench"]])
def test_models_without_bert_or_albert_are_refused_in_a_line(tmp_path, command):
    config = DistilBertConfig(vocab_size=110, dim=32, n_layers=1, n_heads=2, hidden_dim=8)
    DistilBertModel(config).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(bert_checkpoint(tmp_path / "words")).save_pretrained(tmp_path / "model")
    result = run(*command, tmp_path / "model")
    assert result.exit_code == 1
    assert not result.stdout
    message = f"error: the model '{tmp_path / 'model'}' holds neither BERT nor ALBERT"
    assert result.stderr.splitlines()[-1].startswith(message)


def test_reference_and_fast_model_are_the_same_model(folder, data, tmp_path):
    """The reference of eval is plain sentence-transformers, not ours."""
    assert type(cli.common.load_reference(str(folder))) is SentenceTransformer
