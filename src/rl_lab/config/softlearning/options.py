"""What the translations of Softlearning's classes share: what comes of a `config` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_lab.config.foreign import Options, as_block
from rl_lab.core.errors import ConfigError, unknown_name

OBSERVATION = "${_dims.observation}"


@dataclass
class Part:
    """A node of the lab, and values at other places of the config by dotted path."""

    node: dict[str, Any]
    elsewhere: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Surroundings:
    """What a translation must know of the config that the node stands in."""

    features: str = OBSERVATION  # what policy and critics read, as an interpolation
    buffer: str = "replay"  # where collected steps go
    batch_size: int = 256


Translator = Callable[[Options, Surroundings], Part]


def translate_node(path: str, node: Any, classes: Mapping[str, Translator], around: Surroundings) -> Part:
    """Return what `{class_name: ..., config: {...}}` is in the lab."""
    block = as_block(path, node)
    name = str(block.get("class_name"))
    if name not in classes:
        raise ConfigError(unknown_name(f"{path}.class_name", name, classes))
    options = Options(f"{path}.config", block.get("config"))
    part = classes[name](options, around)
    options.finish()
    return part
