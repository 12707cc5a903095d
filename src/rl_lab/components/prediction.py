"""How well a world model predicts: replayed sequences are seen for a few rows and then only imagined, open loop.

A `Forecast` is what is reported of, as numbers and as pictures. `forecast` makes one of a WorldModel; another family of
models makes its own and shares the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.components.dynamics import Latent
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.planners import Rollout
from rl_lab.components.world_encoder import by_name
from rl_lab.components.world_images import to_unit
from rl_lab.components.world_model import BATCH_KEYS, LATENT, WorldModel
from rl_lab.core import Batch, ConfigError, Mean, Phase, Picture, tree_map
from rl_lab.ops.raster import Colour, above_each_other, curves, framed, side_by_side

CONTEXT, HORIZON = 5, 15  # rows
NUM_SHOWN, NUM_NUMBERS = 4, 4  # sequences of a picture; numbers of a vector
NUM_PLANNED, NUM_RANDOM = 8, 64  # states that are planned from; random sequences that a plan is compared with
NUM_BINS = 10  # of the chance to go on
CURVE_HEIGHT, CURVE_WIDTH = 48, 160  # pixels
TRUE, EXPECTED = (40, 90, 180), (255, 120, 0)  # colours of curves
SEEN, UNSEEN, AROUND = (0, 200, 0), (220, 0, 0), (225, 225, 225)  # colours of frames: of pictures, of curves


class Forecast(NamedTuple):
    """What a model says of rows that it has seen, the first `num_seen`, and of the K after them; all time-major."""

    num_seen: int
    is_known: Tensor  # [K, B] whether the row belongs to the episode that the forecast is about
    errors: dict[str, Tensor]  # [K, B] of the observation's parts, in the units that they are learned in
    reward_errors: Tensor  # [K, B] squared
    goes_on: tuple[Tensor, Tensor] | None  # [K, B] expected and true; None: the model has no opinion
    shown: dict[str, tuple[Tensor, Tensor]]  # parts, expected and true, [num_seen + K, B', ...] in their own units


def evaluate_predictions(
    model: Any, batch: Batch, phase: Phase, make: Callable[..., Forecast] | None = None
) -> dict[str, Mean | Picture]:
    """Return errors and pictures of what a model predicts of sequences [B, T, ...].

    The phase may say how many rows are seen, `prediction_context`, and how many then imagined, `prediction_horizon`.
    `make` is the `forecast` of another family than WorldModel.
    """
    context, horizon = _count(phase, "prediction_context", CONTEXT), _count(phase, "prediction_horizon", HORIZON)
    found = (make or forecast)(model, batch, context=context, horizon=horizon)
    return {**errors_of(found), **pictures_of(found)}


@torch.no_grad()
def planning_gain(worth: Rollout, planned: Tensor, actions: ModelActions) -> dict[str, Mean]:
    """Return how much more a model promises for plans [H, N, A] than for random actions, and how often it does.

    `worth` is what plans were judged by. A model that tells actions apart promises more; one that does not, nothing.
    """
    steps, num_envs, _ = planned.shape
    drawn = actions.random(steps * num_envs * NUM_RANDOM, planned.device).view(steps, num_envs, NUM_RANDOM, -1)
    worths = worth(torch.cat([planned.unsqueeze(2), drawn], 2))  # [N, 1 + random]
    ahead = worths[:, :1] - worths[:, 1:]
    return {"planning_gain": _mean(ahead), "planning_wins": _mean((ahead > 0.0).float())}


def _mean(values: Tensor) -> Mean:
    return Mean(values.sum(), float(values.numel()))


def _count(phase: Phase, key: str, default: int) -> int:
    value = phase.get(key, default)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} of phase {phase.name!r} must be a whole number >= 1, not {value!r}")
    return value


@torch.no_grad()
def forecast(model: WorldModel, batch: Batch, *, context: int, horizon: int) -> Forecast:
    """See `context` rows (fewer in short sequences), then imagine up to `horizon` more with the recorded actions."""
    length = batch["rewards"].shape[1]
    num_seen = min(context, length - 1)
    rows = tree_map(lambda leaf: leaf[:, : num_seen + horizon], {key: batch[key] for key in BATCH_KEYS if key in batch})
    features = _imagined(model, rows, num_seen)
    rows = tree_map(lambda leaf: leaf.transpose(0, 1), rows)
    unseen, ahead = features[num_seen:], tree_map(lambda leaf: leaf[num_seen:], rows)
    goes_on = None
    if model.cont_head is not None:
        goes_on = model.cont(unseen) / model.cont_target, (~ahead["is_terminal"]).float()
    return Forecast(
        num_seen=num_seen,
        is_known=(~ahead["is_first"]).cumprod(0).bool(),
        errors=model.decoder.errors(unseen, ahead["observations"]),
        reward_errors=(model.reward(unseen) - ahead["rewards"]).square(),
        goes_on=goes_on,
        shown=_shown(model, features[:, :NUM_SHOWN], tree_map(lambda leaf: leaf[:, :NUM_SHOWN], rows["observations"])),
    )


def _imagined(model: WorldModel, rows: Batch, num_seen: int) -> Tensor:
    """Return the features [T, B, F] of states that know only the observations of the first rows [B, T, ...].

    Step by step, for the few there are: what updates compile for all steps at once would be compiled anew.
    """
    is_first, actions, visited = rows["is_first"], model.actions(rows["actions"]), []
    latent = model.initial(len(is_first), is_first.device)
    if LATENT in rows:
        latent = Latent(**{key: leaf[:, 0] for key, leaf in rows[LATENT].items()})
    for step, action in enumerate(actions.unbind(1)):
        if step < num_seen:
            obs = tree_map(lambda leaf, step=step: leaf[:, step], rows["observations"])
            latent = model.observe_step(latent, action, obs, is_first[:, step])
        else:
            latent = model.rssm.imagine_step(latent, action)
        visited.append(model.rssm.features(latent))
    return torch.stack(visited)


def _shown(model: WorldModel, features: Tensor, obs: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what can be drawn: images in 0..1 and vectors of numbers."""
    space, leaves = model.decoder.space, model.decoder.leaves
    expected, true = by_name(space, model.decoder.predict(features)), by_name(space, obs)
    images = {key: (expected[key], to_unit(true[key])) for key in leaves.images}
    flat = {key: [leaf.reshape(*leaf.shape[:2], -1) for leaf in (expected[key], true[key])] for key in leaves.numbers}
    return images | {key: (guess, seen.float()) for key, (guess, seen) in flat.items()}


def errors_of(found: Forecast) -> dict[str, Mean]:
    """Return the errors after one step, half of them and all, and how far the chance of going on is from the truth."""
    steps = len(found.is_known)
    weights, metrics = found.is_known.float(), {}
    errors = {"reward_error": found.reward_errors, "prediction_error": torch.stack(list(found.errors.values())).mean(0)}
    if len(found.errors) > 1:
        errors |= {f"prediction_error_{key}": error for key, error in found.errors.items()}
    for name, error in errors.items():
        for step in sorted({1, (steps + 1) // 2, steps}):
            weight = weights[step - 1]
            metrics[f"{name}_{step}"] = Mean((error[step - 1] * weight).sum(), weight.sum())
    if found.goes_on is not None:
        expected, true = found.goes_on
        metrics["continue_bias"] = Mean(((expected - true) * weights).sum(), weights.sum())
        metrics["continue_brier"] = Mean(((expected - true).square() * weights).sum(), weights.sum())
        metrics["continue_calibration"] = Mean(_miscalibration(expected, true, weights), weights.sum())
    return metrics


def _miscalibration(expected: Tensor, true: Tensor, weights: Tensor) -> Tensor:
    """Return how far chances are from frequencies, summed over rows: apart in ten bins, over and under alike."""
    bins = (expected * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    is_inside = bins == torch.arange(NUM_BINS, device=bins.device).view(-1, 1, 1)  # [bins, K, B]
    return (is_inside * (expected - true) * weights).sum((1, 2)).abs().sum()


def pictures_of(found: Forecast) -> dict[str, Picture]:
    """Return a film for each image (truth, prediction, error), and curves for each vector; sequences side by side."""
    pictures = {}
    for key, (expected, true) in found.shown.items():
        seen = found.is_known.new_ones(found.num_seen, true.shape[1])
        is_known = torch.cat([seen, found.is_known[:, : true.shape[1]]])
        draw = _film if true.ndim == 5 else _plot
        columns = [
            draw(expected[:, column], true[:, column], is_known[:, column], found.num_seen)
            for column in range(true.shape[1])
        ]
        pictures[f"open_loop_{key}"] = Picture(side_by_side(columns))
    return pictures


def _film(expected: Tensor, true: Tensor, is_known: Tensor, num_seen: int) -> Tensor:
    """Return frames [T, H, W, 3] of images [T, C, H, W]; what is not known is black."""
    known = is_known.view(-1, 1, 1, 1)
    rows = (true, expected * known, (0.5 + 0.5 * (expected - true)) * known)
    pixels = above_each_other([_rgb(row) for row in rows])
    return torch.cat([framed(pixels[:num_seen], SEEN), framed(pixels[num_seen:], UNSEEN)])


def _rgb(images: Tensor) -> Tensor:
    """Return pixels [T, H, W, 3] of images [T, C, H, W] in 0..1; of a stack of pictures the last one."""
    channels = 3 if images.shape[1] % 3 == 0 else 1
    pixels = (images[:, -channels:] * 255.0).round().clamp(0.0, 255.0).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1).movedim(1, -1)


def _plot(expected: Tensor, true: Tensor, is_known: Tensor, num_seen: int) -> Tensor:
    """Return curves [H, W, 3] of the first numbers of vectors [T, D], one above the other."""
    lines = torch.stack([true, expected])[..., :NUM_NUMBERS].masked_fill(~is_known.view(1, -1, 1), torch.nan)
    colours: list[Colour] = [TRUE, EXPECTED]
    size = {"height": CURVE_HEIGHT, "width": CURVE_WIDTH}
    panels = [framed(curves(line, colours, **size, mark=num_seen - 1), AROUND) for line in lines.unbind(-1)]
    return above_each_other(panels)
