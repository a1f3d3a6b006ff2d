"""The one tolerance of the project, derived from the reference's own error instead of picked by hand."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(x: Tensor, truth: Tensor) -> float:
    """||x - truth|| / ||truth|| in float64; infinite where x is not finite."""
    difference = torch.linalg.vector_norm(x.double() - truth.double())
    error = (difference / torch.linalg.vector_norm(truth.double()).clamp(min=1e-300)).item()
    return error if error == error else float("inf")


def assert_as_exact_as_reference(out: Tensor, reference: Tensor, truth: Tensor) -> None:
    """`out` may be at most twice as far from the float64 `truth` as `reference` is, plus 4 ulp of its dtype."""
    assert out.shape == reference.shape == truth.shape, f"shapes {out.shape}, {reference.shape}, {truth.shape}"
    error, reference_error = relative_error(out, truth), relative_error(reference, truth)
    bound = 2 * reference_error + 4 * torch.finfo(reference.dtype).eps
    assert error <= bound, f"error {error:.3g} > {bound:.3g}, twice the reference's {reference_error:.3g} plus 4 ulp"
