"""A reward classifier as in HIL-SERL (Luo et al., 2024): whether, or how far, a task is done, seen from one frame.

It learns from frames of successes and failures, each class as often as any other. What is held out tells how often it
is right and how far its chances can be believed. As a policy it acts at random, which is how failures are collected; an
environment whose rewards are its word is `human.classified_reward.ClassifiedReward`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_lab.components.accumulation import Accumulating, PartedUpdate, joined, parts_of
from rl_lab.components.classifier import Classifier
from rl_lab.components.learner import Learner
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.observation import action_mask
from rl_lab.components.reliability_picture import reliability_picture
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    Picture,
    WorkflowContext,
    hook,
    tree_map,
)
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval
from rl_lab.ops.augmentation import random_shift
from rl_lab.ops.calibration import reliability

PICTURE_DIMS = 4  # [B, C, H, W]


class RewardClassifier(Accumulating):
    """Learns labels of frames; components: classifier; buffers: LabelledFrames.

    Args:
        threshold: Chance of the last class from which on a frame counts as a success, for what is reported.
        num_bins: Of the reliability table.
        image_shift: Pixels by which pictures are moved at random while learning; 0: none.
        report_rows: Frames that are looked at together when what is held out is judged.
        max_grad_norm: Longest gradient; null leaves it free.
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
    """

    def __init__(
        self,
        *,
        threshold: UnitInterval = 0.75,
        num_bins: Count = 10,
        image_shift: Natural = 0,
        report_rows: Count = 256,
        max_grad_norm: Positive | None = None,
        accumulation: Count = 1,
    ) -> None:
        super().__init__()
        self.threshold, self.num_bins, self.image_shift = threshold, num_bins, image_shift
        self.report_rows, self.max_grad_norm, self.accumulation = report_rows, max_grad_norm, accumulation

    def initialize(self, context: WorkflowContext) -> None:
        """Make the classifier for what the environment shows, and its optimiser `classifier`."""
        made = context.components["classifier"]
        if not isinstance(made, Classifier):
            raise ConfigError("components.classifier: needs a rl_lab.components.classifier.Classifier")
        made.bind(context.spec.observation)
        self.classifier = made.to(context.device)
        self._actions, self._device = ModelActions(context.spec, "RewardClassifier"), context.device
        parameters = list(self.classifier.parameters())
        self.learner = Learner(context, "classifier", parameters, max_grad_norm=self.max_grad_norm)
        self._update = PartedUpdate(context, self._learn)

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Act at random: a classifier has no policy."""
        drawn = self._actions.random(len(is_first), self._device, action_mask(obs))
        return self._actions.to_environment(drawn), {}, carry

    @hook
    def update_classifier(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the cross-entropy of one batch of frames."""
        metrics: Metrics = self._update({key: batch[key] for key in ("observations", "labels")})
        return metrics

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        self.classifier.measure(batch["observations"])
        self.classifier.train()
        count = len(batch["labels"])
        found: list[Tensor] = []

        def loss(part: Batch) -> Tensor:
            seen, labels = part["observations"], part["labels"]
            logits = self.classifier(tree_map(self._moved, seen) if self.image_shift else seen)
            found.append(logits.detach())
            mean = F.cross_entropy(logits, labels)
            return mean if self.accumulation == 1 else mean * (len(labels) / count)

        total, norm = self.learner.descend_over(loss, parts_of(batch, self.accumulation))
        right = (joined(found).argmax(-1) == batch["labels"]).float().mean()
        return {"loss": total, "accuracy": right, "grad_norm": norm}

    def _moved(self, x: Tensor) -> Tensor:
        return random_shift(x, self.image_shift) if x.ndim == PICTURE_DIMS else x

    @hook(group="eval", is_update=False)
    @torch.no_grad()
    def evaluate_classifier(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Report on what is held out: how often it is right, and what its chances of success are worth."""
        self.classifier.train(False)
        labels, last = batch["labels"], self.classifier.num_classes - 1
        chances = torch.cat([self.classifier.chances(part) for part in self._parts(batch["observations"], len(labels))])
        counts = torch.bincount(labels, minlength=last + 1)
        weights = (1.0 / counts.float())[labels]  # as in training all classes count alike
        right = (chances.argmax(-1) == labels).float()
        called, is_success = chances[:, last] >= self.threshold, labels == last
        recalls = {f"recall_{name}": right[labels == name].mean() for name in range(last + 1)}
        table = reliability(chances[:, last], is_success.float(), weights, self.num_bins)
        return {
            "accuracy": right.mean(),
            **recalls,
            "false_successes": called[~is_success].float().mean(),
            "missed_successes": (~called[is_success]).float().mean(),
            "loss": -(chances.gather(1, labels[:, None]).squeeze(1).clamp_min(1e-12).log() * weights).sum()
            / weights.sum(),
            "calibration_error": table.error,
            **self._bins(*table),
            "reliability": reliability_picture(table),
        }

    def _parts(self, obs: Observation, count: int) -> list[Observation]:
        """Return observations in pieces that are looked at together."""
        starts = range(0, count, self.report_rows)
        return [tree_map(lambda x, first=first: x[first : first + self.report_rows], obs) for first in starts]

    def _bins(self, said: Tensor, came: Tensor, share: Tensor) -> dict[str, Tensor | Picture]:
        """Return the rows of the table by the upper end of their bin."""
        columns = {"said": said, "came": came, "share": share}
        ends = [f"{(index + 1) / self.num_bins:.2f}" for index in range(self.num_bins)]
        return {f"reliability_{end}_{name}": x[i] for i, end in enumerate(ends) for name, x in columns.items()}
