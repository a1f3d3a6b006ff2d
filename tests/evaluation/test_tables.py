"""Strict reading: no quoting, every line accounted for, errors with file and line."""

import csv
import gzip

import numpy as np
import pytest

from fastsal.measure.evaluation import DataError, load_task
from fastsal.measure.evaluation.tables import read_lines, read_rows


def write_stsb(folder, lines, end="\n"):
    (folder / "stsb").mkdir(exist_ok=True)
    (folder / "stsb" / "sts-test.csv").write_text("".join(line + end for line in lines), newline="", encoding="utf-8")


def stsb_line(score="1.0", one="a", two="b", more=""):
    return f"genre\tfile\tyear\tid\t{score}\t{one}\t{two}{more}"


def test_quotes_are_ordinary_characters(tmp_path):  # B66
    lines = [
        stsb_line("1.0", "one", "two"),
        stsb_line("2.0", '"unbalanced', "four"),
        stsb_line("3.0", "five", "six", "\tlicence"),
        stsb_line("4.0", 'say "seven"', "eight", "\tlicence\tsource"),
        stsb_line("5.0", "nine", '"'),
    ]
    write_stsb(tmp_path, lines, end="\r\n")
    (subset,) = load_task("stsb", tmp_path).subsets
    assert subset.first == ["one", '"unbalanced', "five", 'say "seven"', "nine"]
    assert subset.second == ["two", "four", "six", "eight", '"']
    assert subset.gold.tolist() == [1, 2, 3, 4, 5]
    assert subset.num_rows == (tmp_path / "stsb" / "sts-test.csv").read_bytes().count(b"\n") == 5


def test_only_line_feeds_end_lines(tmp_path):
    write_stsb(tmp_path, [stsb_line("1", "a\x0bb\x85c\u2028d", "e\rf"), stsb_line("2")])
    (subset,) = load_task("stsb", tmp_path).subsets
    assert subset.first == ["a\x0bb\x85c\u2028d", "a"]
    assert subset.second == ["e\rf", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("genre\tfile\tyear\tid\t1.0\tonly one", "expected 7 or more tab-separated columns, got 6"),
        ("", "expected 7 or more tab-separated columns, got 1"),
        (stsb_line("high"), "the score must be a number from 0 to 5, got 'high'"),
        (stsb_line("nan"), "the score must be a number from 0 to 5, got 'nan'"),
        (stsb_line("5.5"), "the score must be a number from 0 to 5, got '5.5'"),
        (stsb_line("-1"), "the score must be a number from 0 to 5, got '-1'"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, line, message):
    write_stsb(tmp_path, [stsb_line("1"), line, stsb_line("2")])
    with pytest.raises(DataError, match=rf"sts-test\.csv, line 2: {message}"):
        load_task("stsb", tmp_path)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"good\nbad \xe4\n")
    with pytest.raises(DataError, match=r"latin\.txt, line 2: not valid UTF-8 at byte 5"):
        list(read_lines(tmp_path / "latin.txt"))
    whole = gzip.compress(b"one\ttwo\n" * 1000)
    for name, content in (
        ("cut.gz", whole[:-9]),
        ("plain.gz", b"one\ttwo\n"),
        ("broken.gz", whole[:20] + b"\xff" * 20),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}: not a whole gzip file"):
            list(read_lines(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        list(read_lines(tmp_path / "none.txt"))


def test_gzipped_and_plain_give_the_same(tmp_path):
    content = b'a\tb"\n"c\td\n'
    (tmp_path / "plain.tsv").write_bytes(content)
    (tmp_path / "packed.tsv.gz").write_bytes(gzip.compress(content))
    expected = [(1, ["a", 'b"']), (2, ['"c', "d"])]
    assert list(read_rows(tmp_path / "plain.tsv", 2)) == list(read_rows(tmp_path / "packed.tsv.gz", 2)) == expected
    with pytest.raises(DataError, match=r"line 1: expected 1 tab-separated columns, got 2"):
        list(read_rows(tmp_path / "plain.tsv", 1))


def test_fields_agree_with_the_csv_module(data_dir):
    path = data_dir / "stsb" / "sts-train.csv"
    with path.open(newline="", encoding="utf-8") as file:
        expected = [row[:7] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    assert [row for _, row in read_rows(path, 7, spare=True)] == expected
    assert len(expected) == 5749


def test_semeval_layout(tmp_path):
    year = tmp_path / "sts12-16" / "STS15-en-test"
    year.mkdir(parents=True)
    (year / "STS.input.small.txt").write_text('a\tb\n"c\td\ne\tf\n')
    (year / "STS.gs.small.txt").write_text("1\n\n2.5\n")
    (year / "STS.input.other.txt").write_text("a\tb\tsource\nc\td\tsource\n")
    (year / "STS.gs.other.txt").write_text("0\n5\n")
    (year / "00-readme.txt").write_text("not data")
    other, small = load_task("sts15", tmp_path).subsets
    assert (small.name, small.first, small.second, small.num_rows) == ("small", ["a", "e"], ["b", "f"], 3)
    assert small.gold.tolist() == [1, 2.5]
    assert (other.name, other.first, len(other)) == ("other", ["a", "c"], 2)

    (year / "STS.gs.small.txt").write_text("1\n\n")
    with pytest.raises(DataError, match=r"STS\.gs\.small\.txt: has 2 lines, but STS\.input\.small\.txt has 3"):
        load_task("sts15", tmp_path)
    (year / "STS.gs.small.txt").write_text("1\n\nx\n")
    with pytest.raises(DataError, match=r"STS\.gs\.small\.txt, line 3: the score must be"):
        load_task("sts15", tmp_path)
    (year / "STS.input.small.txt").unlink()
    with pytest.raises(DataError, match=r"no file STS\.input\.small\.txt"):
        load_task("sts15", tmp_path)


def write_sick(folder, rows, header="pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"):
    (folder / "sick").mkdir(exist_ok=True)
    for name in ("SICK_train.txt", "SICK_test_annotated.txt"):
        (folder / "sick" / name).write_text("\n".join([header, *rows]) + "\n")


def test_sick_columns_are_found_by_name(tmp_path):
    rows = ["1\ta\tb\t4.5\tNEUTRAL", '2\t"c\td\t1\tENTAILMENT', "3\te\tf\t2\tCONTRADICTION"]
    write_sick(tmp_path, rows)
    (subset,) = load_task("sick-r", tmp_path).subsets
    assert (subset.first, subset.second, subset.gold.tolist()) == (["a", '"c', "e"], ["b", "d", "f"], [4.5, 1, 2])
    assert subset.num_rows == 3
    data = load_task("sick-e", tmp_path)
    assert data.train.labels == data.tests[0].labels == ["neutral", "entailment", "contradiction"]

    header = "pair_ID\tsentence_B\tsentence_A\tentailment_judgment\trelatedness_score"
    write_sick(tmp_path, ["1\tb\ta\tNEUTRAL\t4.5", "2\td\tc\tNEUTRAL\t3"], header)
    (subset,) = load_task("sick-r", tmp_path).subsets
    assert (subset.first, subset.gold.tolist()) == (["a", "c"], [4.5, 3])

    write_sick(tmp_path, rows, "id\tone\ttwo\tscore\tlabel")
    with pytest.raises(DataError, match=r"line 1: the header has no column 'relatedness_score', only id, one, two"):
        load_task("sick-r", tmp_path)
    write_sick(tmp_path, [*rows, "4\ta\tb\t3"])
    with pytest.raises(DataError, match=r"line 5: expected 5 tab-separated columns, got 4"):
        load_task("sick-e", tmp_path)


def test_labels_by_name(tmp_path):  # B70
    (tmp_path / "snli").mkdir()
    rows = ["entailment\ta\tb", "Neutral\tc\td", "contradiction\te\tf", "-\tg\th", "-1\ti\tj"]
    (tmp_path / "snli" / "train.tsv").write_text("\n".join(rows) + "\n")
    with gzip.open(tmp_path / "snli" / "test.tsv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    data = load_task("snli", tmp_path)
    for pairs in (data.train, *data.tests):
        assert pairs.labels == ["entailment", "neutral", "contradiction"]
        assert (pairs.first, len(pairs), pairs.num_rows) == (["a", "c", "e"], 3, 5)

    for unknown in ("contradictory", "2", "0"):
        (tmp_path / "snli" / "train.tsv").write_text("\n".join([*rows, f"{unknown}\tk\tl"]) + "\n")
        with pytest.raises(DataError, match=rf"train\.tsv, line 6: the label must be one of .*got '{unknown}'"):
            load_task("snli", tmp_path)


def test_multinli_learns_from_snli_where_it_has_no_training_pairs(tmp_path):
    for folder in ("snli", "multinli"):
        (tmp_path / folder).mkdir()
    rows = "".join(f"{label}\ta\tb\n" for label in ("entailment", "neutral", "contradiction"))
    (tmp_path / "snli" / "train_sample.tsv").write_text(rows)
    for name in ("matched", "mismatched"):
        (tmp_path / "multinli" / f"dev_{name}_sample.tsv").write_text(rows)
    data = load_task("multinli", tmp_path)
    assert ([test.name for test in data.tests], data.train.name) == (["matched", "mismatched"], "snli train")
    (tmp_path / "multinli" / "train.tsv").write_text(rows)
    assert load_task("multinli", tmp_path).train.name == "multinli train"


def test_missing_data_and_unknown_tasks(tmp_path):
    with pytest.raises(DataError, match=r"stsb: no file sts-test\.csv \(or the same with \.gz\)"):
        load_task("stsb", tmp_path)
    with pytest.raises(DataError, match=r"STS13-en-test: no files STS\.gs\.<name>\.txt"):
        load_task("sts13", tmp_path)
    with pytest.raises(DataError, match="no folder with evaluation data"):
        load_task("stsb", tmp_path / "none")
    with pytest.raises(ValueError, match=r"task must be one of stsb, sick-r, .* got 'mnli'"):
        load_task("mnli", tmp_path)
    write_stsb(tmp_path, [stsb_line("1")])
    with pytest.raises(DataError, match="expected two scored pairs or more, got 1 in 1 rows"):
        load_task("stsb", tmp_path)


OFFICIAL_PAIRS = {
    "stsb": 1379,
    "sick-r": 4927,
    "sts12": 3108,
    "sts13": 1500,
    "sts14": 3750,
    "sts15": 3000,
    "sts16": 1186,
}


@pytest.mark.parametrize("task", OFFICIAL_PAIRS)
def test_official_numbers_of_pairs(data_dir, task):
    subsets = load_task(task, data_dir).subsets
    assert sum(map(len, subsets)) == OFFICIAL_PAIRS[task]
    assert all(np.isfinite(subset.gold).all() and subset.num_rows >= len(subset) for subset in subsets)
    if task == "sts15":
        assert {s.name: (s.num_rows, len(s)) for s in subsets}["answers-forums"] == (2000, 375)


def test_numbers_of_nli_pairs(data_dir):
    sizes = {task: [len(pairs) for pairs in load_task(task, data_dir).tests] for task in ("snli", "multinli", "sick-e")}
    assert sizes == {"snli": [9824], "multinli": [1000, 1000], "sick-e": [4927]}
    labels = load_task("sick-e", data_dir).tests[0].labels
    assert [labels.count(name) for name in ("neutral", "entailment", "contradiction")] == [2793, 1414, 720]
