"""sentence-transformers' trainer, made to resume exactly: the order of the data and the losses' own weights too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch import Tensor, nn

_LOSS_FILE = "losses.safetensors"

#: Batches whose rows are sorted by length together. More save more padding and leave less chance to the order.
_BATCHES_PER_GROUP = 50


class SeededBatchSampler(DefaultBatchSampler):
    """Batches in an order that seed and epoch alone decide, so that a resumed run sees what it would have seen."""

    def __init__(self, dataset: Dataset, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._num_rows = len(dataset)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        batches = self._batches(torch.randperm(self._num_rows, generator=generator).tolist())
        for index in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[index]

    def __len__(self) -> int:
        return -(-self._num_rows // self.batch_size)

    def _batches(self, order: list[int]) -> list[list[int]]:
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]


class LengthGroupedBatchSampler(SeededBatchSampler):
    """The same with rows of similar length, in characters, in a batch."""

    def __init__(self, dataset: Dataset, **options: Any) -> None:
        super().__init__(dataset, **options)
        plain = dataset.with_format(None)
        columns = [name for name, feature in plain.features.items() if getattr(feature, "dtype", None) == "string"]
        self._lengths = [sum(map(len, row)) for row in zip(*(plain[name] for name in columns), strict=True)]

    def _batches(self, order: list[int]) -> list[list[int]]:
        size = _BATCHES_PER_GROUP * self.batch_size
        groups = (
            sorted(order[start : start + size], key=self._lengths.__getitem__) for start in range(0, len(order), size)
        )
        return [batch for group in groups for batch in super(LengthGroupedBatchSampler, self)._batches(group)]


class Trainer(SentenceTransformerTrainer):
    """Checkpoints hold the weights of the losses, such as the NLI classifier's, beside the model's."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if weights := own_weights(self.loss):
            save_file(weights, Path(output_dir or str(self.args.output_dir), _LOSS_FILE))

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:
        super()._load_from_checkpoint(checkpoint_path)
        if weights := own_weights(self.loss):
            with torch.no_grad():
                for name, value in load_file(Path(checkpoint_path, _LOSS_FILE)).items():
                    weights[name].copy_(value)


def own_weights(losses: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The weights of each loss that are not the model's, under the loss's name; they share memory with the loss."""
    return {
        f"{loss}.{name}": parameter.data
        for loss, module in losses.items()
        for name, parameter in module.named_parameters()
        if not name.startswith("model.")
    }
