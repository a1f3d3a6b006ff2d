"""A lower-casing WordPiece tokenizer, trained on given text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

#: The ids 0 to 4, in this order: those that an AlbertConfig has for padding, beginning and end.
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


#: Characters beyond these become [UNK].
_ALPHABET = 400


def train_wordpiece(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Learn `vocab_size` pieces from `texts`; equal texts give equal pieces.

    Args:
        vocab_size: of the result at most, special tokens included.
        max_length: the longest input in tokens, to which the tokenizer truncates.

    Returns:
        A tokenizer that `AutoTokenizer` loads again from its folder. What the pieces cannot spell becomes [UNK].
    """
    special = list(_SPECIAL.values())
    vocabulary = _learn(list(texts), vocab_size, special)
    tokenizer = _tokenizer(models.WordPiece(vocab=vocabulary, unk_token=_SPECIAL["unk_token"]))
    tokenizer.decoder = decoders.WordPiece()
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **_SPECIAL)


def _tokenizer(model: models.WordPiece) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _learn(texts: list[str], vocab_size: int, special: list[str]) -> dict[str, int]:
    """The trainer numbers the single characters, and chooses among equally frequent ones, in the order of a hash table
    with a random seed; merges of equal counts go by these numbers. So all characters are given to it, in order: the
    pieces that only continue a word as special tokens, which it numbers first."""
    tokenizer = _tokenizer(models.WordPiece(unk_token=_SPECIAL["unk_token"]))
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            counts.update(word)
            continuing.update(word[1:])
    alphabet = sorted(sorted(counts, key=lambda c: (-counts[c], c))[:_ALPHABET])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *(f"##{c}" for c in alphabet if c in continuing)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=False)
