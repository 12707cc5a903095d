"""The first place where two runs differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Divergence:
    """An env step, the stream that differs there, and what is known of it."""

    step: int
    stream: str
    detail: str

    def __str__(self) -> str:
        return f"first difference at env step {self.step}, in {self.stream}: {self.detail}"
