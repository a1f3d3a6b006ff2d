"""What counts as wrong."""

import numpy as np
import pytest

from fastsal.measure.accuracy import Accuracy, WrongResultError

TRUTH = np.array([[1.0, 0.0], [0.0, 2.0]])


def test_error_and_cosine_by_hand():
    found = Accuracy.of(np.array([[1.0, 1.0], [0.0, 2.0]]), TRUTH)
    assert found.error == pytest.approx(1 / np.sqrt(5))
    assert found.min_cosine == pytest.approx(1 / np.sqrt(2))
    with pytest.raises(WrongResultError, match=r"expected embeddings \(2, 2\), got \(1, 2\)"):
        Accuracy.of(TRUTH[:1], TRUTH)


@pytest.mark.parametrize(("dtype", "ulp"), [("float32", 2.0**-23), ("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_twice_the_references_error_and_a_few_ulp(dtype, ulp):
    reference = Accuracy(10 * ulp, 1.0)
    Accuracy(24 * ulp, 1.0).check("engine", dtype, reference)
    for error in (24.1 * ulp, np.nan, np.inf):
        with pytest.raises(WrongResultError, match=f"engine: error .* above the limit of .* in {dtype}"):
            Accuracy(error, 1.0).check("engine", dtype, reference)


def test_int8_by_its_cosine():
    Accuracy(0.1, 0.9901).check("engine", "int8", Accuracy(0, 1))
    for cosine in (0.98, np.nan):
        with pytest.raises(WrongResultError, match=r"engine: cosine .* below 0\.99"):
            Accuracy(0.0, cosine).check("engine", "int8", Accuracy(0, 1))
