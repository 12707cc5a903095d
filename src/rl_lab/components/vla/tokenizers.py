"""From a task in words to the numbers that a language model reads."""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from pathlib import Path

from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count

BEGIN, END = 0, 1  # numbers of WordTokenizer that are no words
NUM_SPECIAL = 2


class Tokenizer(ABC):
    """Numbers for words; the same text always gives the same ones."""

    vocabulary: int

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return numbers below `vocabulary`, with a beginning and an end."""


class WordTokenizer(Tokenizer):
    """Words by their checksum: nothing to download, nothing to keep. Two words may share a number.

    Args:
        vocabulary: Numbers that there are.
    """

    def __init__(self, vocabulary: Count = 256) -> None:
        if vocabulary <= NUM_SPECIAL:
            raise ConfigError(f"tokenizer.vocabulary: must be above {NUM_SPECIAL}, not {vocabulary}")
        self.vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """Return one number for each word, in lower case, and for each mark between words."""
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        numbers = [NUM_SPECIAL + zlib.crc32(word.encode()) % (self.vocabulary - NUM_SPECIAL) for word in words]
        return [BEGIN, *numbers, END]


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model of the user's, such as PaliGemma's; needs `pip install "rl-lab[vla]"`.

    Args:
        path: Of the `.model` file.
    """

    def __init__(self, path: str) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise ConfigError('tokenizer: SentencePieceTokenizer needs pip install "rl-lab[vla]"') from error
        if not Path(path).is_file():
            raise ConfigError(f"tokenizer.path: there is no file {path}")
        try:
            self._model = SentencePieceProcessor(model_file=path)
        except RuntimeError as error:
            raise ConfigError(f"tokenizer.path: {path} is no SentencePiece model") from error
        self.vocabulary = self._model.vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the numbers that pi0 was trained with: a beginning, the text on one line, and a newline."""
        line = text.strip().replace("_", " ").replace("\n", " ")
        return [*self._model.encode(line, add_bos=True), *self._model.encode("\n")]
