"""Tasks in words as numbers: the lab's own, and a SentencePiece model of somebody's."""

import io
import zlib

import pytest

from rl_lab.components.vla.tokenizers import SentencePieceTokenizer, WordTokenizer
from rl_lab.components.vla.vla import VLA
from rl_lab.core import ConfigError
from tests.components.vla.small import BLIND


def test_words_are_told_apart_by_their_checksum_wherever_it_runs():
    found = WordTokenizer(256).encode("Put it, in the box!")
    words = ["put", "it", ",", "in", "the", "box", "!"]
    assert found == [0, *(2 + zlib.crc32(word.encode()) % 254 for word in words), 1]
    assert found[1] == 170  # for good
    assert WordTokenizer(256).encode("") == [0, 1]
    assert max(WordTokenizer(5).encode("one two three four five six seven")) <= 4


def test_a_sentencepiece_model_as_pi0_uses_it(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    lines = ["put the objects in the box", "insert the peg", "open the box"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=40,
        byte_fallback=False,
        hard_vocab_limit=False,
        minloglevel=2,
        user_defined_symbols=["\n"],
    )
    path = tmp_path / "words.model"
    path.write_bytes(model.getvalue())
    tokenizer = SentencePieceTokenizer(str(path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    found = tokenizer.encode(" open_the\nbox ")
    assert found == [theirs.bos_id(), *theirs.encode("open the box"), *theirs.encode("\n")]
    assert max(found) < tokenizer.vocabulary == theirs.vocab_size()
    (tmp_path / "other.model").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"^tokenizer.path: .* is no SentencePiece model$"):
        SentencePieceTokenizer(str(tmp_path / "other.model"))
    with pytest.raises(ConfigError, match=r"^tokenizer.path: there is no file"):
        SentencePieceTokenizer(str(tmp_path / "nowhere"))


def test_more_words_than_the_network_knows_are_one_line():
    with pytest.raises(ConfigError, match=r"^VLA: the tokenizer has 31 words, sizes.vocabulary is 30$"):
        VLA(BLIND, "x", WordTokenizer(31))
    with pytest.raises(ConfigError, match=r"^tokenizer.vocabulary: must be above 2, not 2$"):
        WordTokenizer(2)
