"""Losses that sentence-transformers does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional as F


class EmbeddingDistillationLoss(nn.Module):
    """Regress the student's embeddings on a teacher's: their directions, and all cosines within a batch.

    The first term is the mean of 1 - cosine(student, teacher); the second, times `similarity_weight`, the mean squared
    difference of the batch's two cosine matrices, since what embeddings are used for is their similarities.

    Inputs: one column of texts; labels (B, D), the teacher's embeddings of them, D the student's width.
    """

    def __init__(self, model: SentenceTransformer, similarity_weight: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.similarity_weight = similarity_weight

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        (features,) = sentence_features
        student = F.normalize(self.model(features)["sentence_embedding"].float(), dim=-1)
        with torch.autocast(student.device.type, enabled=False):
            teacher = F.normalize(labels.float(), dim=-1)
            loss = (1 - (student * teacher).sum(dim=-1)).mean()
            if self.similarity_weight:
                difference = student @ student.T - teacher @ teacher.T
                loss = loss + self.similarity_weight * difference.square().mean()
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        return {"similarity_weight": self.similarity_weight}
