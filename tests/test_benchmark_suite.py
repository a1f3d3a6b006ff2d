"""The benchmarks' own parts: work, engines' checks, reports. The suite itself is run by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import report
import test_throughput as throughput
from engines import Engine, make_fastsal, make_reference, make_sentence_transformers
from int8_accuracy import ALBERT_MIN_COSINE, albert_base, int8_cosines
from peers import PEERS, missing_packages
from rounds import MAX_ROUNDS, MIN_ROUNDS, measure
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from subjects import SHARES, SUBJECTS, Subject, number_of_texts
from test_cpu_roofline import lengths_of
from tiny import bert_checkpoint, model_folder

from fastsal.measure.accuracy import WrongResultError
from fastsal.measure.length_mixes import MIXES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def subject(tmp_path_factory) -> Subject:
    checkpoint = bert_checkpoint(tmp_path_factory.mktemp("checkpoint"), max_position_embeddings=600)
    folder = model_folder(tmp_path_factory.mktemp("model"), checkpoint, Pooling(32, "mean"), Normalize())
    return Subject("albert-base", folder, real_weights=False)


@pytest.fixture
def bench(subject, tmp_path) -> throughput._Bench:
    return throughput._Bench(subject, tmp_path, full=False)


def test_sizes_are_known_for_every_mix():
    assert set(SHARES) == set(MIXES)
    for name in SUBJECTS:
        assert all(number_of_texts(name, mix, full=False) >= 16 for mix in MIXES)
        assert number_of_texts(name, "sts", full=True) == 4 * SUBJECTS[name]


def test_batches_hold_every_token_once(subject):
    work = subject.workload("mixed", 42)
    seen = {}
    for rows, ids, mask in work.batches:
        for row, tokens, kept in zip(rows, ids, mask, strict=True):
            seen[int(row)] = tokens[kept.bool()].tolist()
    assert len(work.batches) >= 4
    assert [seen[row] for row in range(42)] == work.token_lists
    assert work.num_tokens == sum(map(len, work.token_lists))


def test_engines_agree(subject, bench):
    work, truth = bench.work("sts")
    for engine in (
        make_reference(subject, "float32"),
        make_sentence_transformers(subject, "float32"),
        make_fastsal(subject, "float32"),
    ):
        embeddings = engine.run(work)
        assert embeddings.dtype == np.float32
        assert np.abs(embeddings[work.checked_rows()] - truth).max() < 1e-5


@pytest.mark.parametrize(
    ("dtype", "ours", "factor"),
    [("float32", True, 1.001), ("float32", False, -1), ("int8", True, -1), ("int8", False, -1)],
)
def test_a_wrong_engine_fails(subject, bench, monkeypatch, dtype, ours, factor):
    """Through the benchmark itself, up to where it would report."""
    good = make_fastsal(subject, "float32")

    class FakeBenchmark:
        stats = None
        extra_info: dict = {}  # noqa: RUF012

        def pedantic(self, run, args, **options):
            return run(*args)

    def measure(run):
        engine = Engine("engine", dtype, "tokens", run, ours=ours)
        monkeypatch.setattr(bench, "engine", lambda name: (engine, 0.0))
        throughput.test_throughput(FakeBenchmark(), bench, subject, "sts", "fastsal-float32", [])

    measure(good.run)
    assert FakeBenchmark.extra_info["min_cosine"] > 0.999999
    with pytest.raises(WrongResultError, match="engine: "):
        measure(lambda work: good.run(work) * factor)
    if ours or dtype == "float32":  # the rivals' int8 has so loose a limit that this model's sentences are alike to it
        with pytest.raises(WrongResultError, match="engine: "):
            measure(lambda work: good.run(work)[::-1])


def test_albert_base_in_int8():
    """At its real shape, whose one layer rounds twelve times; tokens and lengths as of STS sentences."""
    cosines = int8_cosines(albert_base(seed=0), lengths_of("STS")[:64])
    assert len(cosines) == 64
    assert ALBERT_MIN_COSINE <= cosines.min() < 1


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0001, MAX_ROUNDS), (0.2, 7), (5.0, MIN_ROUNDS)])
def test_rounds_fill_the_time(monkeypatch, seconds, rounds):
    asked = []
    monkeypatch.setattr("time.perf_counter", iter([10.0, 10.0 + seconds]).__next__)

    class FakeBenchmark:
        def pedantic(self, run, args, **options):
            asked.append(options)
            return run(*args)

    assert measure(FakeBenchmark(), lambda x: x + 1, 4) == 5
    assert asked == [{"rounds": rounds}]


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(PEERS, "ov-int8", ("int8", ("json", "no_such_package")))
    assert missing_packages("ov-int8") == ["no_such_package"]


# --- reports


def row(engine, **values):
    return {
        "model": "minilm",
        "mix": "sts",
        "engine": engine,
        "starts from": "tokens",
        "sentences": 100,
        "tokens": 1500,
        "error": 1e-7,
        "min_cosine": 1.0,
        "sentences_per_s": 50.0,
        "tokens_per_s": 750.0,
        "threads": 2,
        **values,
    }


END_TO_END = {
    "model": "minilm",
    "engine": "fastsal-encode-float32",
    "corpus": 1000,
    "total_s": 2.0,
    "tokenise_s": 0.1,
    "compute_s": 1.8,
    "rest_share": 0.1,
    "overhead": 0.05,
    "threads": 2,
}


BASELINE = {"model": "minilm", "engine": "sentence-transformers", "corpus": 10, "total_s": 0.05, "threads": 2}

RUN = {
    "command": "pytest benchmarks/ --benchmark-only",
    "fastsal": "0.1.0",
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "processor": "a processor",
    "threads": "2",
    "backend cpu": "available: avx512 (instruction sets that run here: avx2)",
}


def test_tables():
    rows = [row("hf-float32"), row("fastsal-int8", sentences_per_s=200.0, sts_spearman=82.034), END_TO_END, BASELINE]
    text = report.markdown_tables(rows)
    assert "**minilm, sts** (100 texts, 1500 tokens)" in text
    assert "| fastsal-int8 | tokens | 200 | 4.00 | 750 | 1.0e-07 | 1.000000 | 82.03 |" in text
    assert "| fastsal-encode-float32 | 1000 | 2.0000 | 500 | 0.1000 | 1.8000 | 10.0 % | 5.0 % |" in text
    assert "| sentence-transformers | 10 | 0.0500 | 200 |  |  |  |  |" in text
    widths = {line.count("|") for line in text.split("\n\n")[1].split("\n")}
    assert len(widths) == 1


def test_saved_results_become_tables_plots_and_pages(tmp_path, monkeypatch, capsys):
    rows = [
        row(name, mix=mix, tokens=tokens) for name in ("hf-float32", "x") for mix, tokens in (("sts", 9), ("p", 99))
    ]
    saved = {
        "machine_info": {"fastsal": RUN},
        "datetime": "2026-11-30T12:00:00",
        "benchmarks": [{"extra_info": row} for row in [*rows, END_TO_END, BASELINE, {}]],
    }
    (tmp_path / "results.json").write_text(json.dumps(saved))
    scores = {
        "tasks": [{"task": "stsb", "headline": {"Spearman": [82.0, 81.5]}, "runs": [{"name": "a"}, {"name": "b"}]}]
    }
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    places = [f"<!-- measured: {name} -->\nold\n<!-- end -->" for name in ("throughput", "accuracy")]
    (tmp_path / "page.md").write_text("\n\n".join(["# Page", *places]) + "\nlast\n")
    arguments = ["results.json", "--scores", "scores.json", "--into", "page.md"]
    monkeypatch.setattr("sys.argv", ["report.py", *(a if a[0] == "-" else str(tmp_path / a) for a in arguments)])
    report.main()
    page = (tmp_path / "page.md").read_text()
    assert (
        "2026-11-30, `pytest benchmarks/ --benchmark-only`, in one run on a processor, 2 threads, kernels for avx512;"
        in page
    )
    assert "![throughput against length](plots/throughput_length.svg)" in page
    assert "| stsb | Spearman | 82.00 | 81.50 (-0.500) |" in page
    assert "old" not in page
    assert page.endswith("<!-- end -->\nlast\n")
    assert "**text in, vectors out**" in capsys.readouterr().out
    plots = {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    assert sorted(plots) == ["cost_corpus.svg", "throughput_accuracy.svg", "throughput_length.svg"]
    assert "sentence-transformers" in plots["cost_corpus.svg"]
    report.main()
    assert plots == {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    with pytest.raises(ValueError, match="expected one place marked <!-- measured: int8 -->, found 0"):
        report.fill(tmp_path / "page.md", "int8", "")


def test_documentation_links_lead_somewhere_and_has_places_for_measurements():
    for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
    marks = {page.name: re.findall(r"<!-- measured: (\w+) -->", page.read_text()) for page in DOCS.glob("*.md")}
    assert marks["exactness.md"] == ["accuracy", "int8"]
    assert marks["benchmarks.md"] == ["throughput"]
