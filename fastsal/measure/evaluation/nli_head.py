"""The softmax classifier that a model was trained with on NLI, kept in the model's folder.

Layout of ``<model>/nli_head/``:

- ``classifier.safetensors``: ``weight`` (3, 3 D) and ``bias`` (3,), those of sentence-transformers' `SoftmaxLoss`,
  which reads u, v and |u - v| side by side, u and v being the embeddings of premise and hypothesis;
- ``config.json``: ``{"labels": ["contradiction", "entailment", "neutral"]}``, the name of each row of the weight.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss
from torch import Tensor
from transformers.utils import cached_file

from fastsal.measure.evaluation.pairs import NLI_LABELS, DataError

FOLDER, _WEIGHTS, _CONFIG = "nli_head", "classifier.safetensors", "config.json"


@dataclass(frozen=True)
class NliHead:
    """A softmax classifier of premise and hypothesis: ``softmax(weight @ [u, v, |u - v|] + bias)``.

    Attributes:
        weight: (3, 3 D) float32.
        bias: (3,) float32.
        labels: the name of each row, "entailment", "neutral" and "contradiction" in any order.

    Raises:
        ValueError: shapes or labels that do not fit.
    """

    weight: Tensor
    bias: Tensor
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if sorted(self.labels) != sorted(NLI_LABELS):
            raise ValueError(f"labels must be {', '.join(NLI_LABELS)} in any order, got {', '.join(self.labels)}")
        rows = len(self.labels)
        if self.weight.dim() != 2 or self.weight.shape[0] != rows or self.weight.shape[1] % 3:
            raise ValueError(f"weight must be ({rows}, 3 D), got {tuple(self.weight.shape)}")
        if self.bias.shape != (rows,):
            raise ValueError(f"bias must be ({rows},), got {tuple(self.bias.shape)}")

    @classmethod
    def from_softmax_loss(cls, loss: SoftmaxLoss, labels: Sequence[str]) -> NliHead:
        """The classifier of a trained loss.

        Args:
            loss: sentence-transformers' `SoftmaxLoss`.
            labels: the name of each of the loss's label numbers, in their order.

        Raises:
            ValueError: the loss reads something else than u, v and |u - v|, or `labels` does not fit.
        """
        read = (
            loss.concatenation_sent_rep,
            loss.concatenation_sent_difference,
            loss.concatenation_sent_multiplication,
        )
        if read != (True, True, False):
            raise ValueError("loss must read u, v and |u - v|, the defaults of SoftmaxLoss")
        weight, bias = (p.detach().float().cpu().contiguous() for p in (loss.classifier.weight, loss.classifier.bias))
        return cls(weight, bias, tuple(labels))

    def save(self, model_folder: str | os.PathLike[str]) -> None:
        """Write the head beside a saved model.

        Args:
            model_folder: of the model; `nli_head/` is made in it.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = Path(model_folder, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"weight": self.weight.contiguous(), "bias": self.bias.contiguous()}, folder / _WEIGHTS)
        (folder / _CONFIG).write_text(json.dumps({"labels": list(self.labels)}, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model: str | os.PathLike[str]) -> NliHead | None:
        """The head of a model, or None if it has none.

        Args:
            model: folder or Hugging Face Hub id.

        Raises:
            DataError: there is one, but it cannot be used.
        """
        paths = [_find(str(model), name) for name in (_CONFIG, _WEIGHTS)]
        if paths == [None, None]:
            return None
        config_path, weights_path = paths
        if config_path is None or weights_path is None:
            missing = _CONFIG if config_path is None else _WEIGHTS
            raise DataError(f"{model}: the folder {FOLDER} has no file {missing}")
        try:
            labels = json.loads(Path(config_path).read_text(encoding="utf-8"))["labels"]
            tensors = load_file(weights_path)
            return cls(tensors["weight"].float(), tensors["bias"].float(), tuple(labels))
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise DataError(f"{model}: the NLI head in {FOLDER} cannot be used: {error!r}") from error

    def predict(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The most likely label of each pair.

        Args:
            first, second: (pairs, D) float32 embeddings of the premises and of the hypotheses.

        Returns:
            (pairs,) names of `labels`.

        Raises:
            ValueError: the embeddings are not as wide as the head was trained for.
        """
        width = self.weight.shape[1] // 3
        if first.shape[1] != width:
            raise ValueError(
                f"the NLI head was trained on embeddings of {width} numbers, the model's have {first.shape[1]}"
            )
        u, v = torch.from_numpy(first), torch.from_numpy(second)
        logits = torch.nn.functional.linear(torch.cat([u, v, (u - v).abs()], dim=1), self.weight, self.bias)
        return np.array(self.labels)[logits.argmax(dim=1).numpy()]


def _find(model: str, name: str) -> str | None:
    if Path(model).is_dir():
        path = Path(model, FOLDER, name)
        return str(path) if path.is_file() else None
    try:
        return cached_file(
            model,
            name,
            subfolder=FOLDER,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:
        return None
