"""Sizes of a VLA: from a million weights to the 3.2 billion that are published."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count


@dataclass(frozen=True)
class VisionSizes:
    """Of the encoder of pictures, a SigLIP; the defaults are those of So400m/14.

    Attributes:
        width: Of a token.
        mlp_dim: Width between the two layers of an MLP.
        depth: Blocks.
        num_heads: Of attention; divides `width`.
        patch_size: Side of the part of a picture that is a token, pixels.
        picture_size: Side to which pictures are brought, pixels.
    """

    width: Count = 1152
    mlp_dim: Count = 4304
    depth: Count = 27
    num_heads: Count = 16
    patch_size: Count = 14
    picture_size: Count = 224

    def __post_init__(self) -> None:
        """Refuse sizes that do not go together."""
        if self.width % self.num_heads or self.picture_size < self.patch_size:
            raise ConfigError(
                f"sizes.vision: needs num_heads that divides width and picture_size >= patch_size, not {self}"
            )

    @property
    def num_tokens(self) -> int:
        """Return the tokens of one picture."""
        return (self.picture_size // self.patch_size) ** 2


@dataclass(frozen=True)
class AttentionSizes:
    """Of the attention that both experts share; the defaults are those of Gemma-2B.

    Attributes:
        depth: Layers.
        num_heads: Of queries.
        num_key_heads: Of keys and values; divides `num_heads`.
        head_dim: Numbers of a head, even.
    """

    depth: Count = 18
    num_heads: Count = 8
    num_key_heads: Count = 1
    head_dim: Count = 256

    def __post_init__(self) -> None:
        """Refuse sizes that do not go together."""
        if self.num_heads % self.num_key_heads or self.head_dim % 2:
            raise ConfigError(
                f"sizes.attention: needs num_key_heads that divides num_heads and an even head_dim, not {self}"
            )


@dataclass(frozen=True)
class ExpertSizes:
    """Of one set of weights.

    Attributes:
        width: Of a token.
        mlp_dim: Width between the layers of an MLP.
    """

    width: Count
    mlp_dim: Count


@dataclass(frozen=True)
class Pi0Sizes:
    """Of the whole; the defaults are the published ones, 3.2 billion weights.

    Attributes:
        vision: Of the encoder of pictures; null: there are none.
        attention: Of both experts.
        backbone: Of the weights that read pictures and words.
        expert: Of the weights that read state and actions; its width is even.
        vocabulary: Words that are told apart.
        state_dim: Numbers of a robot's state; shorter ones are filled up with 0.
        action_dim: Numbers of an action; shorter ones are filled up.
    """

    vision: VisionSizes | None = field(default_factory=VisionSizes)
    attention: AttentionSizes = field(default_factory=AttentionSizes)
    backbone: ExpertSizes = field(default_factory=lambda: ExpertSizes(2048, 16384))
    expert: ExpertSizes = field(default_factory=lambda: ExpertSizes(1024, 4096))
    vocabulary: Count = 257_152
    state_dim: Count = 32
    action_dim: Count = 32

    def __post_init__(self) -> None:
        """Refuse a width that has no halves for sines and cosines."""
        if self.expert.width % 2:
            raise ConfigError(f"sizes.expert.width: must be even, not {self.expert.width}")
