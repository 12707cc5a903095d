"""The network of pi0 (Black et al., 2024): two experts with weights of their own and one attention.

Pictures and words are the prefix, which the backbone reads; state and noisy actions are the suffix, of the action
expert. The prefix sees itself, the state sees prefix and itself, an action sees everything. As no token of the prefix
sees the suffix, its keys and values are computed once, however often the suffix is asked. Module names are those of
published checkpoints (openpi's PyTorch files, LeRobot's without `model.`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.precision import in_float32
from rl_lab.components.vla.gemma import Gemma, rotation_at
from rl_lab.components.vla.sizes import Pi0Sizes
from rl_lab.components.vla.vision import VisionTower
from rl_lab.core.shards import Block

PERIODS = (4e-3, 4.0)  # of the sines that tell a level, shortest and longest


class Prefix(NamedTuple):
    """What was seen and said, ready to be read by the action expert."""

    keys: list[Tensor]  # of each layer, [B, heads, P, head_dim]
    values: list[Tensor]
    is_valid: Tensor  # [B, P]


class Projector(nn.Module):
    """From a picture's tokens to the backbone's."""

    def __init__(self, vision_width: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(vision_width, width)


class PaliGemmaModel(nn.Module):
    """Encoder of pictures, projector and language model."""

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        if sizes.vision is not None:
            self.vision_tower = VisionTower(sizes.vision)
            self.multi_modal_projector = Projector(sizes.vision.width, sizes.backbone.width)
        self.language_model = Gemma(sizes.backbone, sizes.attention, sizes.vocabulary)


class PaliGemma(nn.Module):
    """The backbone, under the name that checkpoints have for it."""

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.model = PaliGemmaModel(sizes)


class ActionExpert(nn.Module):
    """The action expert, under the name that checkpoints have for it."""

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.model = Gemma(sizes.expert, sizes.attention)


class PaliGemmaWithExpert(nn.Module):
    """Both experts."""

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.paligemma, self.gemma_expert = PaliGemma(sizes), ActionExpert(sizes)


class Pi0(nn.Module):
    """Velocities of noisy actions, given pictures, words and a state.

    Args:
        sizes: Of everything.
    """

    def __init__(self, sizes: Pi0Sizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.expert.width
        self.paligemma_with_expert = PaliGemmaWithExpert(sizes)
        self.state_proj = nn.Linear(sizes.state_dim, width)
        self.action_in_proj = nn.Linear(sizes.action_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)
        self.action_out_proj = nn.Linear(width, sizes.action_dim)

    @property
    def backbone(self) -> PaliGemmaModel:
        """Return what reads pictures and words."""
        return self.paligemma_with_expert.paligemma.model

    @property
    def expert(self) -> Gemma:
        """Return what reads state and actions."""
        return self.paligemma_with_expert.gemma_expert.model

    def embed_prefix(self, pictures: Sequence[Tensor], words: Tensor) -> Tensor:
        """Return tokens [B, P, width] of pictures, each [B, 3, S, S] in [-1, 1], and words [B, W]."""
        embedded = self.backbone.language_model.embed_tokens(words) * math.sqrt(self.sizes.backbone.width)
        if not pictures:
            return embedded
        seen = self.backbone.vision_tower.vision_model(torch.cat(list(pictures)))  # one batch of all cameras
        tokens = self.backbone.multi_modal_projector.linear(seen).chunk(len(pictures))
        return torch.cat([*tokens, embedded.to(tokens[0].dtype)], 1)

    def read_prefix(self, tokens: Tensor, is_valid: Tensor) -> Prefix:
        """Return keys and values of all layers; tokens that are not valid [B, P] are seen by no other.

        The last layer's output would be read by nobody, and is not computed.
        """
        layers = self.backbone.language_model.each_layer()
        rotation = rotation_at(is_valid.cumsum(1) - 1, self.sizes.attention.head_dim)
        itself = torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)  # a row of no keys would give NaN
        allowed = (is_valid[:, None, None, :] & is_valid[:, None, :, None]) | itself
        keys, values = [], []
        for layer in layers[:-1]:
            query, key, value = layer.begin(tokens, rotation)
            tokens = layer.finish(tokens, attend(query, key, value, allowed))
            keys.append(key)
            values.append(value)
        last_key, last_value = layers[-1].remember(tokens, rotation)
        return Prefix([*keys, last_key], [*values, last_value], is_valid)

    def embed_suffix(self, state: Tensor, noisy: Tensor, level: Tensor) -> Tensor:
        """Return tokens [B, 1 + L, width] of states [B, state_dim] and noisy actions [B, L, action_dim]."""
        actions = self.action_in_proj(noisy)
        time = level_waves(level, self.sizes.expert.width).to(actions.dtype)[:, None].expand_as(actions)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(torch.cat([actions, time], -1))))
        return torch.cat([self.state_proj(state)[:, None].to(mixed.dtype), mixed], 1)

    def velocity(self, prefix: Prefix, state: Tensor, noisy: Tensor, level: Tensor) -> Tensor:
        """Return [B, L, action_dim] for noisy actions at levels [B]: 1 is noise, 0 are actions."""
        tokens = self.embed_suffix(state, noisy, level)
        allowed = suffix_mask(prefix.is_valid, noisy.shape[1])[:, None]
        positions = prefix.is_valid.sum(1, keepdim=True) + torch.arange(tokens.shape[1], device=tokens.device)
        rotation = rotation_at(positions, self.sizes.attention.head_dim)
        for layer, keys, values in zip(self.expert.each_layer(), prefix.keys, prefix.values, strict=True):
            query, key, value = layer.begin(tokens, rotation)
            read = attend(query, torch.cat([keys, key], 2), torch.cat([values, value], 2), allowed)
            tokens = layer.finish(tokens, read)
        return in_float32(self.action_out_proj, self.expert.norm(tokens[:, 1:]))


def blocks(model: Pi0) -> Iterator[Block]:
    """Yield the layers, with the methods by which attention between experts calls them."""
    if model.sizes.vision is not None:
        yield from (Block(layer) for layer in model.backbone.vision_tower.vision_model.encoder.layers)
    for expert in (model.backbone.language_model, model.expert):
        yield from (Block(layer, ("begin", "remember", "finish")) for layer in expert.each_layer())


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Return what queries [B, heads, Q, D] read; `allowed` [B, 1, Q, K] says which keys each may see."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, enable_gqa=True)


def suffix_mask(is_valid: Tensor, num_actions: int) -> Tensor:
    """Return what state and actions see, [B, 1 + L, P + 1 + L]: the valid part of the prefix [B, P] and themselves.

    Of the suffix, the state sees only the state, and an action everything.
    """
    own = torch.ones(1 + num_actions, 1 + num_actions, dtype=torch.bool, device=is_valid.device)
    own[0, 1:] = False
    size = len(is_valid)
    return torch.cat([is_valid[:, None].expand(-1, 1 + num_actions, -1), own.expand(size, -1, -1)], 2)


def level_waves(level: Tensor, dim: int) -> Tensor:
    """Return sines and cosines [B, dim] of levels [B] in [0, 1], in periods from 0.004 to 4."""
    shares = torch.linspace(0.0, 1.0, dim // 2, dtype=torch.float64, device=level.device)
    periods = PERIODS[0] * (PERIODS[1] / PERIODS[0]) ** shares
    angles = level.double()[:, None] * (2.0 * math.pi / periods)
    return torch.cat([angles.sin(), angles.cos()], -1).float()
