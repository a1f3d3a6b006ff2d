"""A lower-casing WordPiece tokenizer, trained on given text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

#: The ids 0 to 4, in this order: those that an AlbertConfig has for padding, beginning and end.
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def train_wordpiece(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Learn `vocab_size` pieces from `texts`.

    Args:
        vocab_size: of the result at most, special tokens included.
        max_length: the longest input in tokens, to which the tokenizer truncates.

    Returns:
        A tokenizer that `AutoTokenizer` loads again from its folder. What the pieces cannot spell becomes [UNK].
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=_SPECIAL["unk_token"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = list(_SPECIAL.values())
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=special, limit_alphabet=400, min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **_SPECIAL)
