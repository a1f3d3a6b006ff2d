"""Readers and writers: rows are never dropped, merged or split; files appear whole or not at all."""

import csv
import io
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastsal.io import STDIN, FileFormatError, SentenceReader, open_writer
from fastsal.io.writers import atomic_file

#: Characters at which str.splitlines() and careless readers break lines.
LINE_BREAKERS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def read(path: Path, content: bytes | str, column: str = "text") -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(SentenceReader(path, column))


# --- .txt and standard input


def test_text_lines_end_at_newline_only(tmp_path):  # B64
    middle = f"a{'b'.join(LINE_BREAKERS)}c\rd"
    assert read(tmp_path / "in.txt", f"first\n{middle}\nlast\n") == ["first", middle, "last"]


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        (b"one\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"\n", [""]),
        (b"one\n\n\ntwo\n", ["one", "", "", "two"]),
        (b"one\r\r\n", ["one\r"]),
        (b"nul\0inside\n", ["nul\0inside"]),
    ],
)
def test_text(tmp_path, content, sentences):
    assert read(tmp_path / "in.txt", content) == sentences


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back(tmp_path, sentences):
    assert read(tmp_path / "in.txt", "".join(f"{s}\n" for s in sentences)) == sentences


def test_text_names_the_line_that_is_not_utf8(tmp_path):
    with pytest.raises(FileFormatError, match=r"in\.txt, line 2: not valid UTF-8 at byte 4 of the line"):
        read(tmp_path / "in.txt", b"fine\nbad\xff\nfine\n")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\ntwo\x0bthree\n")))
    assert list(SentenceReader(STDIN)) == ["one", "two\vthree"]


def test_progress_counts_bytes(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b"one\r\nzw\xc3\xb6lf\n")
    reader = SentenceReader(path)
    list(reader)
    assert reader.done == reader.total == path.stat().st_size


def test_reader_refuses_an_unknown_suffix():
    with pytest.raises(FileFormatError, match=r"in\.docx: the input must end in one of \.txt, \.jsonl, .* or be '-'"):
        SentenceReader(Path("in.docx"))


def test_reader_names_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        list(SentenceReader(tmp_path / "nothing.txt"))
    assert caught.value.filename == str(tmp_path / "nothing.txt")


# --- .jsonl


def test_json_lines(tmp_path):
    rows = ["plain", 'quote " and\nnewline', LINE_BREAKERS, "", "😀"]
    content = "".join(json.dumps({"id": i, "text": row}, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows))
    assert read(tmp_path / "in.jsonl", content) == rows
    assert read(tmp_path / "in.jsonl", '{"body": "x"}', column="body") == ["x"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"text": "x"', "not valid JSON"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('["x"]', "expected a JSON object, got list"),
        ('{"body": "x"}', "no field 'text', only 'body'"),
        ('{"text": null}', "'text' must be a string, got null"),
        ('{"text": 3}', "'text' must be a string, got int"),
        ('{"text": "\\ud83d"}', "'text' has half of a surrogate pair"),
    ],
)
def test_json_lines_name_the_bad_row(tmp_path, row, problem):
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path / "in.jsonl", f'{{"text": "fine"}}\n{row}\n{{"text": "fine"}}\n')
    assert "in.jsonl, line 2: " + problem in str(caught.value)


# --- .csv and .tsv


def test_csv(tmp_path):
    content = 'id,text\r\n1,plain\r\n2,"a, ""quoted"" one"\r\n3,"two\nlines"\r\n4,\r\n5,a\u2028b'
    assert read(tmp_path / "in.csv", content) == ["plain", 'a, "quoted" one', "two\nlines", "", "a\u2028b"]
    assert read(tmp_path / "in.csv", b"\xef\xbb\xbftext\none\n\n") == ["one", ""]


def test_tsv_quotes_are_ordinary_characters(tmp_path):  # B66
    content = 'score\ttext\r\n1\tone\r\n2\t"two\r\n3\tthree\tspare\r\n4\tsay "four"\r\n5\tfive'
    assert read(tmp_path / "in.tsv", content) == ["one", '"two', "three", 'say "four"', "five"]
    assert read(tmp_path / "in.tsv", "text\tid\na\rb\t1\n\t2\n") == ["a\rb", ""]
    assert read(tmp_path / "in.tsv", b"\xef\xbb\xbftext\none\n\n") == ["one", ""]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_sentences_of_any_length(tmp_path, suffix):
    """The csv module refuses fields of more than 131,072 characters, also in columns that nobody asked for."""
    long, limit = "the cat, " * 20_000, csv.field_size_limit()
    rows = [{"html": "<p>" * 50_000, "text": text} for text in (long, "short", long)]
    path = tmp_path / f"in{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif suffix == ".txt":
        path.write_text("".join(f"{row['text']}\n" for row in rows))
    else:
        mark, quote = ("\t", "") if suffix == ".tsv" else (",", '"')
        lines = [f"{row['html']}{mark}{quote}{row['text']}{quote}" for row in rows]
        path.write_text("\n".join([f"html{mark}text", *lines]))
    assert list(SentenceReader(path)) == [long, "short", long]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("in.csv", 'id,text\n1,fine\n2,"open\n3,fine\n', "line 3: not valid CSV from here on"),
        ("in.csv", 'id,text\n1,"x"y\n', "line 2: not valid CSV from here on"),
        ("in.csv", "id,text\n1,fine\n2,a,b\n", "line 3: 3 columns where the header has 2"),
        ("in.csv", 'id,text\n1,"two\nlines"\n2\n', "line 4: no column 'text', only 1 of 2 columns"),
        ("in.csv", "id,text\n1,fine\n\n", "line 3: no column 'text', only 0 of 2 columns"),
        ("in.csv", "id,body\n1,fine\n", "line 1: no column named 'text' in the header, which has 'id', 'body'"),
        ("in.csv", "text,text\n1,fine\n", "line 1: several columns named 'text'"),
        ("in.csv", "", "line 1: expected a header line"),
        ("in.csv", b"id,text\n1,fine\n2,\xff\n", "line 3: not valid UTF-8"),
        ("in.tsv", "text\tid\nfine\t1\n\n", "line 3: no column 'text', only 0 of 2 columns"),
        ("in.tsv", "\n", "line 1: expected a header line"),
        ("in.tsv", "id\ttext\n1\tfine\n2\n", "line 3: no column 'text', only 1 of 2 columns"),
    ],
)
def test_tables_name_the_bad_row(tmp_path, name, content, problem):
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path / name, content)
    assert f"{name}, {problem}" in str(caught.value)


# --- .parquet


def write_parquet(path: Path, column: pyarrow.Array) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"id": range(len(column)), "text": column}), path)
    return path


@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]
)
def test_parquet(tmp_path, kind):
    texts = ["one", "", LINE_BREAKERS, "one"] * 3000
    reader = SentenceReader(write_parquet(tmp_path / "in.parquet", pyarrow.array(texts).cast(kind)))
    assert list(reader) == texts
    assert reader.done == reader.total == len(texts)


def test_parquet_names_the_bad_row(tmp_path):
    path = write_parquet(tmp_path / "in.parquet", pyarrow.array(["a", "b", None, "d"]))
    with pytest.raises(FileFormatError, match=r"in\.parquet, row 3: 'text' must be a string, got null"):
        list(SentenceReader(path))
    with pytest.raises(FileFormatError, match=r"no column 'body', only 'id', 'text'"):
        list(SentenceReader(path, "body"))
    with pytest.raises(FileFormatError, match=r"column 'id' must hold strings, it holds int64"):
        list(SentenceReader(path, "id"))
    invalid = pyarrow.array([b"fine", b"\xff"]).view(pyarrow.string())
    with pytest.raises(FileFormatError, match=r"row 2: 'text' is not valid UTF-8"):
        list(SentenceReader(write_parquet(path, invalid)))


def test_a_file_that_is_not_parquet(tmp_path):
    with pytest.raises(FileFormatError, match=r"in\.parquet: not a readable Parquet file"):
        read(tmp_path / "in.parquet", "one\ntwo\n")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "in.parquet", pyarrow.array(["a"]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(FileFormatError, match=r"pip install 'fastsal\[parquet\]'"):
        list(SentenceReader(path))
    with (
        pytest.raises(FileFormatError, match=r"pip install 'fastsal\[parquet\]'"),
        open_writer(tmp_path / "out.parquet"),
    ):
        pass
    assert os.listdir(tmp_path) == ["in.parquet"]


# --- writers


def test_npy(tmp_path):
    chunks = [np.random.default_rng(i).normal(size=(n, 5)).astype(np.float32) for i, n in enumerate((1000, 0, 1, 11))]
    with open_writer(tmp_path / "out.npy") as writer:
        for chunk in chunks:
            writer.write(["x"] * len(chunk), chunk.copy(order="F"))
    result = np.load(tmp_path / "out.npy")
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, np.concatenate(chunks))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_parquet_output_has_text_and_embedding(tmp_path, dtype):
    rows = np.arange(12, dtype=dtype).reshape(4, 3)
    with open_writer(tmp_path / "out.parquet", "body") as writer:
        writer.write(["a", "b"], rows[:2])
        writer.write(["", "d\n"], rows[2:])
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["body", "embedding"]
    assert table["body"].to_pylist() == ["a", "b", "", "d\n"]
    assert table["embedding"].to_pylist() == rows.tolist()
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.from_numpy_dtype(dtype), 3)


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_no_rows(tmp_path, name):
    with open_writer(tmp_path / name) as writer:
        writer.write([], np.empty((0, 7), np.float32))
    if name == "out.npy":
        assert np.load(tmp_path / name).shape == (0, 7)
    else:
        assert pyarrow.parquet.read_table(tmp_path / name).num_rows == 0


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")

    def fail_in_the_middle() -> None:
        with open_writer(tmp_path / name) as writer:
            writer.write(["x"], np.zeros((1, 3), np.float32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_in_the_middle()
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, name):
    (tmp_path / name).write_bytes(b"old")
    script = f"""
        import resource
        from pathlib import Path
        import numpy as np
        from fastsal.io import open_writer

        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            with open_writer(Path({name!r})) as writer:
                for seed in range(40):
                    chunk = np.random.default_rng(seed).normal(size=(100, 64)).astype(np.float32)
                    writer.write(["x"] * 100, chunk)
        except OSError as error:
            print(error.filename, error.strerror)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{name} File too large\n", "")
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_writer_without_rows_does_not_know_its_width(tmp_path, name):
    with pytest.raises(ValueError, match="must be called at least once"), open_writer(tmp_path / name):
        pass
    assert os.listdir(tmp_path) == []


def test_the_output_must_be_a_file_in_a_folder_that_is_there(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(OSError, match=str(path)), atomic_file(path):
            pass
    assert os.listdir(tmp_path) == []


def test_permissions_are_those_of_a_plain_open(tmp_path):
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.touch()
    for mode in (plain.stat().st_mode, stat.S_IFREG | 0o604):
        with atomic_file(ours):
            pass
        assert ours.stat().st_mode == mode
        ours.chmod(0o604)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.npy").symlink_to(tmp_path / "elsewhere" / "real.npy")
    with atomic_file(tmp_path / "out.npy") as file:
        file.write(b"new")
    assert (tmp_path / "out.npy").is_symlink()
    assert (tmp_path / "elsewhere" / "real.npy").read_bytes() == b"new"
    assert os.listdir(tmp_path / "elsewhere") == ["real.npy"]


@pytest.mark.parametrize(
    ("name", "column", "problem"),
    [
        ("out.csv", "text", r"the output must end in one of \.npy, \.parquet"),
        ("out.parquet", "embedding", "must not be named 'embedding'"),
    ],
)
def test_writer_refuses(tmp_path, name, column, problem):
    with pytest.raises(FileFormatError, match=problem), open_writer(tmp_path / name, column):
        pass
