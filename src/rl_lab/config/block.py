"""What the declared blocks of a config have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

Node = dict[str, Any]  # a block whose keys are constructor arguments


class Block(BaseModel):
    """A block whose keys are all known: a typo is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)
