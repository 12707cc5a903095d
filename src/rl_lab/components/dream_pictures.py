"""What a VAE and its memory expect, for people: forecasts beside the truth, and dreams as films or curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.components.mdn_rnn import MDNRNN, MemoryState
from rl_lab.components.prediction import AROUND, CURVE_HEIGHT, CURVE_WIDTH, EXPECTED, NUM_NUMBERS, NUM_SHOWN, Forecast
from rl_lab.components.vae import VAE, Belief
from rl_lab.components.world_encoder import by_name
from rl_lab.components.world_images import to_unit
from rl_lab.core import Actions, Batch, Picture, tree_map
from rl_lab.ops.mixtures import mixture_sample
from rl_lab.ops.raster import above_each_other, curves, framed, side_by_side


class Model(NamedTuple):
    """What forecasts are made of."""

    vae: VAE
    memory: MDNRNN
    read: Callable[[Actions], Tensor]  # actions as the memory reads them


class _Expected(NamedTuple):
    """What was expected of T rows of B sequences; rewards and ends only where they were not seen."""

    latents: Tensor  # [T, B, Z]
    rewards: Tensor  # [K, B]
    ends: Tensor  # [K, B]


@torch.no_grad()
def forecast(model: Model, batch: Batch, *, context: int, horizon: int) -> Forecast:
    """See `context` rows of sequences [B, T, ...] (fewer in short ones), then dream on with the recorded actions."""
    length = batch["rewards"].shape[1]
    num_seen = min(context, length - 1)
    keys = ("observations", "actions", "rewards", "is_first", "is_terminal")
    rows = tree_map(lambda leaf: leaf[:, : num_seen + horizon].transpose(0, 1), {key: batch[key] for key in keys})
    expected = _expected(model, rows, num_seen)
    ahead = tree_map(lambda leaf: leaf[num_seen:], rows)
    return Forecast(
        num_seen=num_seen,
        is_known=(~ahead["is_first"]).cumprod(0).bool(),
        errors=model.vae.decoder.errors(expected.latents[num_seen:], ahead["observations"]),
        reward_errors=(expected.rewards - ahead["rewards"]).square(),
        goes_on=(1.0 - expected.ends.sigmoid(), (~ahead["is_terminal"]).float()),
        shown=_shown(model.vae, *_first(expected.latents, rows["observations"])),
    )


def _expected(model: Model, rows: Mapping[str, Any], num_seen: int) -> _Expected:
    """Follow what was seen, row by row, and then what is expected."""
    actions, is_first = model.read(rows["actions"]), rows["is_first"]
    seen: Belief = model.vae(tree_map(lambda leaf: leaf[:num_seen], rows["observations"]))
    latents, rewards, ends = list(seen.mean.unbind()), [], []
    memory = model.memory.initial(is_first.shape[1], is_first.device)
    for step in range(1, len(is_first)):
        memory = MemoryState(*(leaf * ~is_first[step - 1].unsqueeze(-1) for leaf in memory))
        memory = model.memory.advance(memory, latents[step - 1], actions[step])
        if step >= num_seen:
            outlook = model.memory.outlook(memory.hidden)
            latents.append(mixture_sample(outlook.latents))
            rewards.append(outlook.rewards)
            ends.append(outlook.ends)
    return _Expected(torch.stack(latents), torch.stack(rewards), torch.stack(ends))


def _first(*trees: Any) -> tuple[Any, ...]:
    return tree_map(lambda leaf: leaf[:, :NUM_SHOWN], trees)


def _shown(vae: VAE, latents: Tensor, obs: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return expected and true images in 0..1 and vectors of numbers."""
    expected, true = _drawable(vae, vae.decoder.predict(latents)), _drawable(vae, obs)
    return {key: (expected[key], true[key]) for key in expected}


def _drawable(vae: VAE, obs: Any) -> dict[str, Tensor]:
    """Return what can be drawn of observations [T, B, ...]."""
    parts, leaves = by_name(vae.decoder.space, obs), vae.decoder.leaves
    images = {key: to_unit(parts[key]) for key in leaves.images}
    return images | {key: parts[key].flatten(2).float() for key in leaves.numbers}


def dream_pictures(vae: VAE, latents: Tensor) -> dict[str, Picture]:
    """Return a film of each image, and curves of each vector, that latents [T, B, Z] stand for; dreams side by side."""
    pictures = {}
    for key, part in _drawable(vae, vae.decoder.predict(latents[:, :NUM_SHOWN])).items():
        draw = _film if part.ndim == 5 else _plot
        pictures[f"dream_{key}"] = Picture(side_by_side([draw(dream) for dream in part.unbind(1)]))
    return pictures


def _film(images: Tensor) -> Tensor:
    """Return frames [T, H, W, 3] of images [T, C, H, W] in 0..1; of a stack of pictures the last one."""
    channels = 3 if images.shape[1] % 3 == 0 else 1
    pixels = (images[:, -channels:] * 255.0).round().to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).movedim(1, -1)


def _plot(numbers: Tensor) -> Tensor:
    """Return curves [H, W, 3] of the first numbers of vectors [T, D], one above the other."""
    size = {"height": CURVE_HEIGHT, "width": CURVE_WIDTH, "mark": 0}
    return above_each_other(
        [framed(curves(line[None], [EXPECTED], **size), AROUND) for line in numbers.T[:NUM_NUMBERS].unbind()]
    )
