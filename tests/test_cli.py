"""The command line, in the process where it can be and as a program where it matters."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import TEXTS, albert_checkpoint, bert_checkpoint, model_folder
from typer.testing import CliRunner, Result

import fastsal
from fastsal import cli
from fastsal.cli.encode import _chunks
from fastsal.data import sample_sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny sentence-transformers model with a prompt of its own."""
    checkpoint = bert_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    modules = [Pooling(32, "mean")]
    return model_folder(tmp_path_factory.mktemp("model"), checkpoint, *modules, prompts={"query": "the cat: "})


@pytest.fixture(scope="module")
def reference(folder) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def fastsal_command(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


def fastsal_program(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from fastsal.cli import app; app()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def alone(reference: SentenceTransformer, texts: list[str], **options: object) -> np.ndarray:
    return np.stack([reference.encode(text, **options) for text in texts])


def assert_same(embeddings: np.ndarray, expected: np.ndarray) -> None:
    assert embeddings.shape == expected.shape
    assert np.abs(embeddings - expected).max() < 1e-5
    assert np.isfinite(embeddings).all()


# --- encode


def test_encode_writes_row_for_line(tmp_path, folder, reference):  # B60, B64
    texts = [text for text in TEXTS if "\n" not in text] + ["a\u2028b\x85c\vd\fe", "last"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\r\n" for text in texts)[:-2], encoding="utf-8", newline="")
    result = fastsal_command("encode", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "-m", folder)
    assert result.exit_code == 0, result.output
    assert_same(np.load(tmp_path / "out.npy"), alone(reference, texts))
    summary = rf"out\.npy: {len(texts)} x 32 float32, \d+ sentences/s"
    assert re.search(summary, result.stderr.replace("\n", ""))
    assert result.stdout == ""


@pytest.mark.parametrize("chunk_sentences", [1, 3, 4])
def test_chunks_do_not_show(tmp_path, folder, reference, monkeypatch, chunk_sentences):
    monkeypatch.setattr(cli.encode, "CHUNK_SENTENCES", chunk_sentences)
    (tmp_path / "in.txt").write_text("cat\nthe dog\n\na man plays guitar\n")
    assert fastsal_command("encode", tmp_path / "in.txt", "-o", tmp_path / "o.npy", "-m", folder).exit_code == 0
    assert_same(np.load(tmp_path / "o.npy"), alone(reference, ["cat", "the dog", "", "a man plays guitar"]))


def test_chunks_are_bounded(monkeypatch):
    monkeypatch.setattr(cli.encode, "CHUNK_SENTENCES", 3)
    monkeypatch.setattr(cli.encode, "CHUNK_CHARACTERS", 10)
    assert list(_chunks(["a", "b", "c", "d"])) == [["a", "b", "c"], ["d"]]
    assert list(_chunks(["123456", "1234", "12345678901", "1"])) == [["123456", "1234"], ["12345678901"], ["1"]]
    assert list(_chunks([])) == []


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_encode_reads_every_format(tmp_path, folder, reference, suffix):
    texts = ["cat", 'a "dog', "the mat, old"]
    path = tmp_path / f"in{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    elif suffix == ".csv":
        path.write_text('id,body\n1,cat\n2,"a ""dog"\n3,"the mat, old"\n')
    elif suffix == ".tsv":
        path.write_text("".join(f"{i}\t{text}\n" for i, text in [("id", "body"), *enumerate(texts)]))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"body": texts}), path)
    out = tmp_path / "out.parquet"
    result = fastsal_command("encode", path, "-o", out, "-m", folder, "-c", "body")
    assert result.exit_code == 0, result.output
    table = pyarrow.parquet.read_table(out)
    assert table["body"].to_pylist() == texts
    assert_same(np.array(table["embedding"].to_pylist()), alone(reference, texts))


def test_encode_without_a_model_takes_the_one_in_fastsal(tmp_path):
    result = fastsal_command("encode", "-", "-o", tmp_path / "o.npy", stdin=b"A cat sat on the mat.")
    assert result.exit_code == 0, result.output
    expected = fastsal.SentenceEncoder().encode(["A cat sat on the mat."])
    assert np.load(tmp_path / "o.npy").tolist() == expected.tolist()


def test_encode_reads_standard_input(tmp_path, folder, reference):
    result = fastsal_command("encode", "-", "-o", tmp_path / "o.npy", "-m", folder, stdin=b"cat\nthe dog")
    assert result.exit_code == 0, result.output
    assert_same(np.load(tmp_path / "o.npy"), alone(reference, ["cat", "the dog"]))


def test_encode_options(tmp_path, folder, reference):
    (tmp_path / "in.txt").write_text("cat\nthe dog\n")
    common = ["encode", tmp_path / "in.txt", "-o", tmp_path / "o.npy", "-m", folder, "--normalize"]
    for options, expected in [
        (["--prompt", "a man "], {"prompt": "a man "}),
        (["--prompt-name", "query"], {"prompt_name": "query"}),
        (["--truncate-dim", "8"], {"truncate_dim": 8}),
        (["--backend", "reference"], {}),
        (["--backend", "cpu", "--dtype", "float32"], {}),
    ]:
        result = fastsal_command(*common, *options)
        assert result.exit_code == 0, result.output
        expected_rows = alone(reference, ["cat", "the dog"], normalize_embeddings=True, **expected)
        assert_same(np.load(tmp_path / "o.npy"), expected_rows)


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_an_empty_file_gives_no_rows_of_the_right_width(tmp_path, folder, name):
    (tmp_path / "in.txt").touch()
    result = fastsal_command("encode", tmp_path / "in.txt", "-o", tmp_path / name, "-m", folder)
    assert result.exit_code == 0, result.output
    if name == "out.npy":
        assert np.load(tmp_path / name).shape == (0, 32)
    else:
        assert str(pyarrow.parquet.read_table(tmp_path / name).schema.field("embedding").type).endswith("[32]")


def assert_refused(result: Result | subprocess.CompletedProcess, message: str) -> None:
    code = result.exit_code if isinstance(result, Result) else result.returncode
    assert code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.txt", b"fine\n\xff\n", "in.txt, line 2: not valid UTF-8"),
        ("in.jsonl", b'{"text": "fine"}\n{"text": null}\n', "in.jsonl, line 2: 'text' must be a string, got null"),
        ("in.csv", b"id,body\n1,fine\n", "no column named 'text' in the header, which has 'id', 'body'"),
        ("in.pdf", b"", "in.pdf: the input must end in one of .txt"),
        ("missing.txt", None, "missing.txt: No such file or directory"),
    ],
)
def test_encode_refuses_a_bad_input(tmp_path, folder, monkeypatch, name, content, message):
    monkeypatch.setattr(cli.encode, "CHUNK_SENTENCES", 1)  # the bad row comes when rows were written already
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (tmp_path / "out.npy").write_bytes(b"old")
    assert_refused(fastsal_command("encode", tmp_path / name, "-o", tmp_path / "out.npy", "-m", folder), message)
    assert (tmp_path / "out.npy").read_bytes() == b"old"
    assert {"out.npy"} <= set(os.listdir(tmp_path)) <= {"out.npy", name}


def test_encode_refuses_its_input_as_output(tmp_path, folder):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["cat"]}), tmp_path / "in.parquet")
    before = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "link.parquet").symlink_to(tmp_path / "in.parquet")
    for output in ("in.parquet", "link.parquet"):
        result = fastsal_command("encode", tmp_path / "in.parquet", "-o", tmp_path / output, "-m", folder)
        assert_refused(result, f"{output}: the output must not be the input")
    assert (tmp_path / "in.parquet").read_bytes() == before


def test_encode_refuses_a_bad_output(tmp_path, folder):
    (tmp_path / "in.txt").write_text("cat\n")
    for output, message in [("out.txt", "the output must end in one of .npy"), ("no/out.npy", "No such file")]:
        assert_refused(fastsal_command("encode", tmp_path / "in.txt", "-o", tmp_path / output, "-m", folder), message)
    assert os.listdir(tmp_path) == ["in.txt"]


def test_encode_refuses_a_model_that_is_none(tmp_path):
    (tmp_path / "in.txt").write_text("cat\n")
    (tmp_path / "model").mkdir()
    result = fastsal_command("encode", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "-m", tmp_path / "model")
    assert result.exit_code == 1
    assert f"error: cannot load the model '{tmp_path / 'model'}': " in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "model"]


def test_encode_refuses_what_cannot_run(tmp_path, folder):
    (tmp_path / "in.txt").write_text("cat\n")
    common = ["encode", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "-m", folder]
    assert_refused(fastsal_command(*common, "--backend", "triton"), "backend='triton' with dtype='float32' cannot run")
    assert_refused(fastsal_command(*common, "--dtype", "float8"), "dtype must be one of")
    assert_refused(fastsal_command(*common, "--prompt-name", "none"), "rows 1 to 1: ")
    assert os.listdir(tmp_path) == ["in.txt"]


def test_a_full_disk_ends_encode_with_one_line(tmp_path, folder):
    (tmp_path / "in.txt").write_text("cat\n" * 5000)
    (tmp_path / "out.npy").write_bytes(b"old")
    program = """
import resource, sys
from fastsal import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
cli.app()
"""
    arguments = ["encode", "in.txt", "-o", "out.npy", "-m", str(folder)]
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_refused(run, "out.npy: File too large")
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.npy"]
    assert (tmp_path / "out.npy").read_bytes() == b"old"


def test_the_warning_about_numbers_that_are_not_finite_passes_through(tmp_path):  # B86
    checkpoint = albert_checkpoint(tmp_path / "checkpoint")
    model = SentenceTransformer(str(checkpoint), device="cpu")
    with torch.no_grad():
        model[0].model.embeddings.LayerNorm.weight.fill_(torch.inf)
    model.save(str(tmp_path / "model"), create_model_card=False)
    (tmp_path / "in.txt").write_text("cat\n")
    run = fastsal_program("encode", tmp_path / "in.txt", "-o", tmp_path / "out.npy", "-m", tmp_path / "model")
    assert run.returncode == 0
    assert "RuntimeWarning" in run.stderr
    assert not np.isfinite(np.load(tmp_path / "out.npy")).all()


# --- verify and info


def test_verify(tmp_path, folder):
    result = fastsal_command("verify", "-m", folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("passed: 64 sentences, computed by cpu in float32")
    (tmp_path / "in.txt").write_text("cat\nthe dog\nold house\n" * 3)
    result = fastsal_command("verify", tmp_path / "in.txt", "-m", folder, "--limit", "7")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("passed: 7 sentences")


def test_verify_exits_with_1_when_it_fails(folder, monkeypatch):
    encode = fastsal.SentenceEncoder.encode
    monkeypatch.setattr(
        fastsal.SentenceEncoder, "encode", lambda *args, **kwargs: [1.1 * e for e in encode(*args, **kwargs)]
    )
    result = fastsal_command("verify", "-m", folder, "--limit", "3")
    assert result.exit_code == 1
    assert result.stdout.startswith("FAILED: 3 sentences")


def test_verify_refuses_a_file_without_sentences(tmp_path, folder):
    (tmp_path / "in.txt").touch()
    assert_refused(fastsal_command("verify", tmp_path / "in.txt", "-m", folder), "there are no sentences in it")


def test_info(folder):
    result = fastsal_command("info", "-m", folder)
    assert result.exit_code == 0, result.output
    shown = dict(re.split("  +", line, maxsplit=1) for line in result.stdout.splitlines() if line)
    assert shown["torch"] == torch.__version__
    assert shown["threads"] == str(torch.get_num_threads())
    for name, status in fastsal.backends().items():
        assert status.detail in shown[f"backend {name}"]
    assert shown["modules"] == "Transformer -> Pooling"
    assert shown["encoder 0.model"].startswith(
        "FastBertModel, 2 layers with 2 sets of weights, hidden 32, 4 heads of 8"
    )
    assert shown["encoder 0.model runs in"].startswith("cpu, float32: ")


def test_info_tells_why_the_reference_runs(folder):
    result = fastsal_command("info", "-m", folder, "--backend", "reference")
    assert "reference, float32: backend='reference' was asked for" in result.stdout


def test_help_does_not_import_torch():
    program = """
import sys
from fastsal.cli import app
app(standalone_mode=False)
print("heavy:", {"torch", "transformers", "sentence_transformers", "pyarrow", "scipy"} & set(sys.modules))
"""
    for arguments in (["--help"], ["encode", "--help"]):
        run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert "Usage" in run.stdout
        assert run.stdout.splitlines()[-1] == "heavy: set()"


def test_sample_sentences():
    sentences = sample_sentences()
    assert len(sentences) == len(set(sentences)) > 250
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    lengths = [len(sentence.split()) for sentence in sentences]
    assert min(lengths) == 1
    assert max(lengths) > 80
