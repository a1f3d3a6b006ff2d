"""Sentences in, embeddings out: the files that the command line reads and writes.

Rows are never dropped, merged or split: row i of the output belongs to row i of the input.
"""

from fastsal.io.errors import FileFormatError
from fastsal.io.readers import INPUT_FORMATS, STDIN, SentenceReader
from fastsal.io.writers import OUTPUT_FORMATS, EmbeddingWriter, open_writer

__all__ = [
    "INPUT_FORMATS",
    "OUTPUT_FORMATS",
    "STDIN",
    "EmbeddingWriter",
    "FileFormatError",
    "SentenceReader",
    "open_writer",
]
