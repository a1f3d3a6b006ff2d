"""A teacher's embeddings of many texts, computed once by fastsal and kept in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, load_from_disk

from fastsal import SentenceEncoder

#: What the teacher computes in: its cosine to float32 is 0.9997 in the mean, and the student never comes that close.
_DTYPE = "int8"


def label_texts(texts: Sequence[str], teacher: str, folder: Path) -> Dataset:
    """The texts with a teacher's embeddings.

    Args:
        teacher: folder or Hub id.
        folder: where the result is kept; if it exists and holds these texts, it is read, not computed.

    Returns:
        Columns `text` and `label`, (D,) float16.
    """
    if folder.is_dir():
        labelled = load_from_disk(str(folder))
        if labelled.select_columns("text")[:]["text"] == list(texts):
            return labelled
    encoder = SentenceEncoder(teacher, dtype=_DTYPE)
    embeddings = encoder.encode(list(texts), show_progress_bar=True).astype(np.float16)
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    Dataset.from_dict({"text": list(texts), "label": embeddings}).save_to_disk(str(unfinished))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(unfinished, folder)
    return load_from_disk(str(folder))
