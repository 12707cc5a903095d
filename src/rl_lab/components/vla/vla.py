"""A VLA as a denoiser of action chunks: one network among others for `FlowMatching`.

`prepare` reads pictures and words once per chunk, `forward` asks the action expert for the velocity of noisy actions.
Levels, signs, the distribution of levels and ten steps of Euler are `FlowMatching`'s, which has them of pi0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.action_generators import ObservingDenoiser
from rl_lab.components.chunk_policy import Seen
from rl_lab.components.vla.checkpoint import load_pi0
from rl_lab.components.vla.pi0 import Pi0, Prefix, blocks
from rl_lab.components.vla.sizes import Pi0Sizes
from rl_lab.components.vla.tokenizers import Tokenizer, WordTokenizer
from rl_lab.components.vla.tuning import Tuning, tune, unread
from rl_lab.components.vla.vision import fitted
from rl_lab.core import ConfigError
from rl_lab.core.shards import Block

KEY = "components.generator.network"


class Prepared(NamedTuple):
    """What a chunk is drawn from."""

    prefix: Prefix
    state: Tensor  # [B, state_dim]


class VLA(ObservingDenoiser):
    """Pictures, the robot's numbers and a task in words to velocities of noisy actions.

    Args:
        sizes: Of the network.
        prompt: The task in words.
        tokenizer: Of the prompt; null: words by their checksum.
        checkpoint: A published pi0, as a safetensors file or its directory; null: random weights.
        tuning: Which weights learn.
    """

    words: Tensor

    def __init__(
        self,
        sizes: Pi0Sizes,
        prompt: str,
        tokenizer: Tokenizer | None = None,
        checkpoint: str | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__()
        tokenizer = tokenizer or WordTokenizer(min(sizes.vocabulary, 4096))
        if tokenizer.vocabulary > sizes.vocabulary:
            known = f"the tokenizer has {tokenizer.vocabulary} words, sizes.vocabulary is {sizes.vocabulary}"
            raise ConfigError(f"VLA: {known}")
        self.sizes, self._checkpoint, self._tuning = sizes, checkpoint, tuning or Tuning()
        self.register_buffer("words", torch.tensor([tokenizer.encode(prompt)]), persistent=False)

    def bind_observations(self, vector_dim: int, pictures: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse pictures without an encoder of them, an encoder without pictures, and too many numbers."""
        if vector_dim > self.sizes.state_dim:
            raise ConfigError(f"{KEY}.sizes.state_dim: {self.sizes.state_dim} are fewer than the {vector_dim} observed")
        if pictures and self.sizes.vision is None:
            raise ConfigError(f"{KEY}.sizes.vision: the picture {next(iter(pictures))!r} of the environment needs one")
        if not pictures and self.sizes.vision is not None:
            raise ConfigError(f"{KEY}.sizes.vision: the environment shows no pictures (set null)")
        for name, shape in pictures.items():
            if shape[0] not in (1, 3):
                raise ConfigError(f"{KEY}: the picture {name!r} has {shape[0]} channels, not 1 or 3")

    def bind(self, action_dim: int, length: int, feature_dim: int, history: int) -> None:
        """Make the network, or read it; raises ConfigError for more than one observation or too many actions."""
        if history != 1:
            raise ConfigError(f"algorithm.observation_horizon: a VLA reads one observation, not {history}")
        if action_dim > self.sizes.action_dim:
            raise ConfigError(
                f"{KEY}.sizes.action_dim: {self.sizes.action_dim} are fewer than the {action_dim} there are"
            )
        self.padding = self.sizes.action_dim - action_dim
        self.model = Pi0(self.sizes) if self._checkpoint is None else load_pi0(self._checkpoint, self.sizes)
        tune(self.model, self._tuning)

    def unread(self) -> Iterable[nn.Parameter]:
        """Return what the backbone has after the keys and values of its last layer."""
        return unread(self.model)

    def shardable(self) -> Iterable[Block]:
        """Return the layers of both experts and of the encoder of pictures."""
        return blocks(self.model)

    def prepare(self, condition: Seen) -> Prepared:
        """Read pictures [B, 1, C, H, W] by name and words; what the action expert sees of them is kept."""
        vectors, pictures = condition
        state = F.pad(vectors[:, -1], (0, self.sizes.state_dim - vectors.shape[-1]))
        size = 0 if self.sizes.vision is None else self.sizes.vision.picture_size
        words = self.words.expand(len(vectors), -1)
        with self._precision():
            tokens = self.model.embed_prefix([fitted(seen[:, -1], size) for seen in pictures.values()], words)
            is_valid = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
            return Prepared(self.model.read_prefix(self._working(tokens), is_valid), state)

    def forward(self, noisy: Tensor, level: Tensor, prepared: Prepared) -> Tensor:
        """Return velocities of noisy actions; those that are narrower than the network's are filled up with 0."""
        wide = F.pad(noisy, (0, self.sizes.action_dim - noisy.shape[-1]))
        with self._precision():
            found = self.model.velocity(prepared.prefix, prepared.state, wide, level.expand(len(noisy)))
        return found[..., : noisy.shape[-1]]

    def _precision(self) -> AbstractContextManager[object]:
        """Return what makes products low where the frozen weights are: theirs have nothing else to multiply with."""
        if self._tuning.frozen_dtype == "float32":
            return nullcontext()
        return torch.autocast(self.words.device.type, dtype=torch.bfloat16, cache_enabled=False)

    def _working(self, tokens: Tensor) -> Tensor:
        return tokens.to(torch.bfloat16) if self._tuning.frozen_dtype == "bfloat16" else tokens
