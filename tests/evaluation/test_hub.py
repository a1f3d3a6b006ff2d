"""Data by name: Dataset objects, and folders laid out as the Hub's repositories, in place of a download."""

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from fastsal.measure.evaluation import DataError, load_task
from fastsal.measure.evaluation.pairs import NLI_LABELS


@pytest.fixture
def hub(monkeypatch):
    """A hub that holds what a test puts into it, by (path, split)."""
    shelves: dict[tuple[str, str], Dataset] = {}

    def load_dataset(path, *, split, revision=None):
        if (path, split) not in shelves:
            raise ConnectionError(f"no {path} {split} here")
        return shelves[path, split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return shelves


def labelled(labels, names, columns=("premise", "hypothesis")):
    kind = Value("string") if names is None else ClassLabel(names=names)
    numbers = [label if names is None or label == -1 else names.index(label) for label in labels]
    texts = {column: [f"{column} {i}" for i in range(len(labels))] for column in columns}
    features = Features({column: Value("string") for column in columns} | {"label": kind})
    return Dataset.from_dict({**texts, "label": numbers}, features=features)


def test_sts_by_name(hub):
    rows = {"sentence1": ["a", '"b', "c"], "sentence2": ["d", "e", "f"], "score": [0.0, 2.5, 5.0]}
    hub["mteb/sts13-sts", "test"] = Dataset.from_dict(rows)
    data = load_task("sts13")
    (subset,) = data.subsets
    assert (subset.first, subset.second, subset.gold.tolist()) == (["a", '"b', "c"], ["d", "e", "f"], [0, 2.5, 5])
    assert data.source == "mteb/sts13-sts"

    hub["mteb/sts13-sts", "test"] = Dataset.from_dict({**rows, "score": [0.0, 50.0, 1.0]})
    with pytest.raises(DataError, match=r"mteb/sts13-sts, row 1: the score must be a number from 0 to 5, got 50\.0"):
        load_task("sts13")
    hub["mteb/sts13-sts", "test"] = Dataset.from_dict({"text": ["a"], "score": [1.0]})
    with pytest.raises(DataError, match="mteb/sts13-sts: no column 'sentence1', only text, score"):
        load_task("sts13")


@pytest.mark.parametrize("names", [list(NLI_LABELS), list(reversed(NLI_LABELS))])
def test_class_numbers_are_read_by_their_names(hub, names):  # B70
    labels = ["neutral", "entailment", -1, "contradiction"]
    for split in ("train", "test"):
        hub["stanfordnlp/snli", split] = labelled(labels, names)
    data = load_task("snli")
    for pairs in (data.train, *data.tests):
        assert pairs.labels == ["neutral", "entailment", "contradiction"]
        assert pairs.first == ["premise 0", "premise 1", "premise 3"]
        assert pairs.num_rows == 4


def test_unknown_and_nameless_labels(hub):
    hub["stanfordnlp/snli", "test"] = labelled(["neutral"], ["neutral"])
    hub["stanfordnlp/snli", "train"] = labelled(["contradictory"], ["contradictory", "neutral"])
    with pytest.raises(DataError, match=r"stanfordnlp/snli train, row 0: the label must be one of .*'contradictory'"):
        load_task("snli")
    nameless = {"premise": ["a"], "hypothesis": ["b"], "label": [2]}
    hub["stanfordnlp/snli", "train"] = Dataset.from_dict(nameless)
    with pytest.raises(DataError, match=r"stanfordnlp/snli train, row 0: the label is the number 2, which .* no name"):
        load_task("snli")
    hub["stanfordnlp/snli", "train"] = labelled(["neutral", "-"], None)
    assert load_task("snli").train.labels == ["neutral"]


def test_multinli_and_sick_by_name(hub):
    names = ["entailment", "neutral", "contradiction"]
    for split in ("train", "validation_matched", "validation_mismatched"):
        hub["nyu-mll/multi_nli", split] = labelled(names, names)
    for split in ("train", "test"):
        hub["RobZamp/sick", split] = labelled(names, names, ("sentence_A", "sentence_B"))
    assert [test.name for test in load_task("multinli").tests] == ["matched", "mismatched"]
    assert load_task("sick-e").tests[0].second == ["sentence_B 0", "sentence_B 1", "sentence_B 2"]


def test_no_network_says_what_to_do(hub):
    with pytest.raises(DataError, match=r"cannot load the data set 'mteb/stsbenchmark-sts': no mteb.*a local folder"):
        load_task("stsb")


# --- whole repositories: their files, columns and features, read by datasets itself

RELATIONS = ["entailment", "neutral", "contradiction"]

#: Columns that the repositories have beside those that are read.
STSB_COLUMNS = ("split", "genre", "dataset", "year", "sid")
MULTINLI_COLUMNS = ("promptID", "pairID", "premise_binary_parse", "hypothesis_parse", "genre")
SICK_COLUMNS = ("id", "relatedness_score", "entailment_AB", "sentence_A_original", "sentence_B_dataset")


def scored(*others):
    return Dataset.from_dict(
        {
            **{name: ["x", "y", "z"] for name in others},
            "score": [5.0, 0.0, 2.4],
            "sentence1": ['say "a"', "b", "c\u2028c"],
            "sentence2": ["d", "e", "f"],
        }
    )


def related(columns, others=()):
    """Labels 1, -1, 2, 0."""
    kinds = {name: Value("string") for name in (*others, *columns)} | {"label": ClassLabel(names=RELATIONS)}
    texts = {name: [f"{name} {row}" for row in range(4)] for name in (*others, *columns)}
    return Dataset.from_dict({**texts, "label": [1, -1, 2, 0]}, features=Features(kinds))


def write_json(data, path):
    data.to_json(path, compression="gzip", force_ascii=False)


def write_parquet(data, path):
    data.to_parquet(path)


#: (repository, revision) -> how its files are written, and the table in each.
REPOSITORIES = {
    ("mteb/stsbenchmark-sts", None): (
        write_json,
        {f"{split}.jsonl.gz": scored(*STSB_COLUMNS) for split in ("train", "validation", "test")},
    ),
    ("mteb/sickr-sts", None): (write_json, {"test.jsonl.gz": scored()}),
    ("mteb/sts12-sts", None): (write_json, {f"{split}.jsonl.gz": scored() for split in ("train", "test")}),
    ("stanfordnlp/snli", None): (
        write_parquet,
        {
            f"plain_text/{split}-00000-of-00001.parquet": related(("premise", "hypothesis"))
            for split in ("train", "validation", "test")
        },
    ),
    ("nyu-mll/multi_nli", None): (
        write_parquet,
        {
            f"data/{split}-00000-of-00001.parquet": related(("premise", "hypothesis"), MULTINLI_COLUMNS)
            for split in ("train", "validation_matched", "validation_mismatched")
        },
    ),
    ("RobZamp/sick", "refs/convert/parquet"): (
        write_parquet,
        {
            f"default/{split}/0000.parquet": related(("sentence_A", "sentence_B"), SICK_COLUMNS)
            for split in ("train", "validation", "test")
        },
    ),
}

#: What a repository's README says where the names of its files do not.
CARDS = {
    "nyu-mll/multi_nli": """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: validation_matched
    path: data/validation_matched-*
  - split: validation_mismatched
    path: data/validation_mismatched-*
---
"""
}


@pytest.fixture
def repositories(monkeypatch, tmp_path):
    """`load_dataset` reads a folder in place of a repository, and does all else itself."""
    really_load = datasets.load_dataset

    def load_dataset(path, *, revision=None, **options):
        write, files = REPOSITORIES[path, revision]
        folder = tmp_path / path
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(data, str(folder / name))
        if path in CARDS:
            (folder / "README.md").write_text(CARDS[path])
        return really_load(str(folder), cache_dir=str(tmp_path / "cache"), **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


@pytest.mark.parametrize("task", ["stsb", "sick-r", "sts12"])
def test_sts_repositories(repositories, task):
    (subset,) = load_task(task).subsets
    assert subset.gold.tolist() == [5.0, 0.0, 2.4]
    assert subset.first == ['say "a"', "b", "c\u2028c"]
    assert subset.second == ["d", "e", "f"]


@pytest.mark.parametrize(
    ("task", "tests", "column"),
    [
        ("snli", ["test"], "hypothesis"),
        ("multinli", ["matched", "mismatched"], "hypothesis"),
        ("sick-e", ["test"], "sentence_B"),
    ],
)
def test_nli_repositories(repositories, task, tests, column):
    data = load_task(task)
    assert [test.name for test in data.tests] == tests
    for pairs in (data.train, *data.tests):
        assert pairs.labels == ["neutral", "contradiction", "entailment"]
        assert pairs.second == [f"{column} 0", f"{column} 2", f"{column} 3"]
        assert pairs.num_rows == 4
