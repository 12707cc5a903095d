"""An update of critics together with the networks below them, whose batch may be taken in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.components.accumulation import joined, parts_of
from rl_lab.components.action_values import ActionValues
from rl_lab.components.learner import Learner
from rl_lab.components.perception import Perception, Transitions, weighted_mean
from rl_lab.core import Batch, tree_map


class Judged(NamedTuple):
    """Rows, and what critics say of them [members, R, ...], with gradient, and should say."""

    rows: Transitions
    outputs: Tensor
    targets: Tensor


class CriticUpdate(NamedTuple):
    """What an update of critics found."""

    rows: Transitions  # without gradient, for those who read the features too
    metrics: dict[str, Tensor]
    errors: Tensor  # [R], that priorities are made of


def update_critics(
    critic: ActionValues,
    learner: Learner,
    perception: Perception,
    judge: Callable[[Batch], Judged],
    batch: Batch,
    num_parts: int,
) -> CriticUpdate:
    """Take one step down the loss of a batch, a mean over its rows, in parts; statistics are those of the whole."""
    perception.follow(batch)
    count = None if num_parts == 1 else perception.count(batch, learner.ranks)
    found: list[Judged] = []
    losses: list[Tensor] = []

    def loss(part: Batch) -> Tensor:
        judged = judge(part)
        own = critic.losses(judged.outputs, judged.targets)  # [members, R]
        found.append(Judged(_detached(judged.rows), judged.outputs.detach(), judged.targets))
        losses.append(own.detach())
        return weighted_mean(own, judged.rows.weights, learner.ranks, count).sum()

    total, norm = learner.descend_over(loss, parts_of(batch, num_parts))
    values = [critic.values(each.outputs) for each in found]
    if critic.is_distributional:
        errors = [each.mean(0) for each in losses]
    else:
        errors = [(value - each.targets).abs().mean(0) for value, each in zip(values, found, strict=True)]
    metrics = {"critic_loss": total, "critic_grad_norm": norm, "q": joined(values, -1).mean()}
    return CriticUpdate(_joined_rows([each.rows for each in found]), metrics, joined(errors))


def _detached(rows: Transitions) -> Transitions:
    return rows._replace(features=rows.features.detach())


def _joined_rows(parts: Sequence[Transitions]) -> Transitions:
    """Return the rows of parts, those of sequences [R] part by part: their order is that of no one."""
    if len(parts) == 1:
        return parts[0]
    return Transitions(*(tree_map(lambda *each: torch.cat(each), *leaves) for leaves in zip(*parts, strict=True)))
