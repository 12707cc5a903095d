"""Behaviour cloning: supervised learning of what to do, the baseline of imitation (Pomerleau, 1989).

The actions are those of demonstrations or, beside a teacher (`training.teacher`), what the teacher would have done in
the states that were seen: collected by the teacher that is plain cloning, by the student DAgger (Ross et al., 2011).
Numbers are learned by their error or by the likelihood of a Gaussian, choices by their likelihood. A policy that
predicts chunks of actions does them one after another, or the mean of all chunks so far (ACT, Zhao et al., 2023).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from rl_lab.components.accumulation import Accumulating, PartedUpdate, joined, parts_of
from rl_lab.components.action_chunks import RecedingHorizon, differs, read_chunks, reject_long_horizons
from rl_lab.components.array_mlp import fast_forward
from rl_lab.components.clone_policy import ClonePolicy, NumberKind
from rl_lab.components.decisions import Decisions
from rl_lab.components.learner import Learner, trained
from rl_lab.components.mlp import MLP
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.perception import CARRY, Perception, counted, reject_ensemble, weighted_mean
from rl_lab.components.temporal_ensemble import TemporalEnsemble
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Carry,
    ConfigError,
    Extras,
    Metrics,
    Observation,
    Phase,
    WorkflowContext,
    hook,
    unknown_name,
)
from rl_lab.core.ranges import Count, Natural, Positive
from rl_lab.ops.world_distributions import Joint, MultiOneHot, WorldDistribution

CHUNK_END = "is_pad"  # of batches of chunks: where the episode was over


class _Found(NamedTuple):
    """What an update found: the most likely actions [B, length, A], those to be learned, and what each weighs [R]."""

    actions: Tensor
    targets: Tensor
    weights: Tensor | None


class BehaviorCloning(Accumulating):
    """Imitation for any actions; components: actor, encoder?, memory?.

    Args:
        numbers: How continuous actions are learned: gaussian (likelihood), squared or absolute (error of one action).
        observation_horizon: Observations that an action depends on; with more than 1 the buffer's `history`.
        prediction_horizon: Actions of a chunk, from the newest observation on; the buffer's `chunk_length`.
        action_horizon: Actions of a chunk that are done before the next one is predicted.
        ensemble_decay: Predict a chunk at every step and do the mean of all predictions for it, a younger one weighing
            less by this rate per step (ACT: 0.01; below 0: more); null: chunks are done one after another.
        normalize_observations: Normalise vectors by running statistics of the batches.
        image_shift: Pixels by which images are moved at random (DrQ: 4); 0: none.
        max_grad_norm: Longest gradient; null leaves it free.
        accumulation: Parts of a batch whose gradients are added up one after another, which takes less memory.
    """

    imitates = reduces_over_ranks = True

    def __init__(
        self,
        *,
        numbers: NumberKind = "gaussian",
        observation_horizon: Count = 1,
        prediction_horizon: Count = 1,
        action_horizon: Count = 1,
        ensemble_decay: float | None = None,
        normalize_observations: bool = False,
        image_shift: Natural = 0,
        max_grad_norm: Positive | None = None,
        accumulation: Count = 1,
    ) -> None:
        super().__init__()
        if numbers not in get_args(NumberKind):
            raise ConfigError(unknown_name("algorithm.numbers", numbers, get_args(NumberKind)))
        if action_horizon > prediction_horizon:
            raise ConfigError(
                f"algorithm.action_horizon: {action_horizon} actions are more than prediction_horizon="
                f"{prediction_horizon}, the length of a chunk"
            )
        if ensemble_decay is not None and (action_horizon > 1 or prediction_horizon == 1):
            given = f"{action_horizon} and {prediction_horizon}"
            raise ConfigError(f"algorithm.ensemble_decay: needs action_horizon=1 and chunks of 2 or more, not {given}")
        self.numbers, self.ensemble_decay, self.max_grad_norm = numbers, ensemble_decay, max_grad_norm
        self.observation_horizon, self.prediction_horizon = observation_horizon, prediction_horizon
        self.action_horizon, self.accumulation = action_horizon, accumulation
        self.normalize_observations, self.image_shift = normalize_observations, image_shift
        self.is_chunked = observation_horizon > 1 or prediction_horizon > 1

    def initialize(self, context: WorkflowContext) -> None:
        """Put a head on the actor and build the optimiser `policy`."""
        self._spec, components = context.spec, context.components
        self.code = ModelActions(context.spec, "BehaviorCloning")
        self.perception = Perception(
            context.spec,
            components,
            normalize_observations=self.normalize_observations,
            shift_pad=self.image_shift,
            ranks=context.ranks,
        ).to(context.device)
        self._reject_misfits(components["actor"])
        self.policy = ClonePolicy(components["actor"], self.code, self.prediction_horizon, self.numbers)
        self.policy.to(context.device)
        learnt = trained(self.perception, self.policy)
        self.learner = Learner(context, "policy", learnt, lr=1e-3, max_grad_norm=self.max_grad_norm)
        self._output = fast_forward(self.policy.trunk, self.policy.head)
        self._update = PartedUpdate(context, self._learn)
        self._horizons = self._make_horizons(context) if self.is_chunked else {}
        self._ensemble = self._make_ensemble(context)
        self._decisions = None if self._ensemble is None else Decisions(self._decide, context)
        self._said: Actions = {}  # by the ensemble, at this step

    def _reject_misfits(self, trunk: nn.Module) -> None:
        wanted = self.observation_horizon * self.perception.output_dim
        reject_ensemble("actor", trunk)
        if isinstance(trunk, MLP) and trunk.input_dim != wanted:
            given = f"{self.observation_horizon} x {self.perception.output_dim} features"
            raise ConfigError(f"components.actor.input_dim: must be {wanted} ({given}), not {trunk.input_dim}")
        if self.is_chunked and self.perception.is_recurrent:
            raise ConfigError(
                "components.memory: goes with observation_horizon=1 and prediction_horizon=1, because it learns from "
                "sequences (null: none)"
            )
        reject_long_horizons(self._spec, observations=self.observation_horizon, actions=self.prediction_horizon)
        if self.prediction_horizon > 1 and self.perception.read.has_mask:
            raise ConfigError("algorithm.prediction_horizon: an action_mask is known for one step only (1)")

    def _make_horizons(self, context: WorkflowContext) -> dict[bool, RecedingHorizon]:
        """Return what does chunks one after another, by whether it explores."""
        sizes = {"history": self.observation_horizon, "num_actions": self.action_horizon}
        plans = {explore: partial(self._plan, explore) for explore in (False, True)}
        return {explore: RecedingHorizon(plan, **sizes, context=context) for explore, plan in plans.items()}

    def _make_ensemble(self, context: WorkflowContext) -> TemporalEnsemble | None:
        if self.ensemble_decay is None:
            return None
        return TemporalEnsemble(
            self._expected,
            self.code,
            history=self.observation_horizon,
            length=self.prediction_horizon,
            decay=self.ensemble_decay,
            spec=context.spec,
            device=context.device,
        )

    @property
    def batch_kinds(self) -> tuple[BatchKind, ...]:
        """Return that a memory learns from sequences, and others from steps."""
        return ("sequences",) if self.perception.is_recurrent else ("transitions", "steps of episodes")

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's state, or what was seen and what is planned, at an episode's start."""
        if self._ensemble is not None:
            return self._ensemble.initial_carry(num_envs)
        return (self._horizons[True] if self.is_chunked else self.perception).initial_carry(num_envs)

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Sample, or take the most likely action; with chunks, go on with what was predicted."""
        if self._decisions is not None:
            self._said, carry = self._decisions("mean", obs, carry, is_first)
            return self._said, {}, carry
        if self.is_chunked:
            actions, carry = self._horizons[explore](obs, carry, is_first)
            return actions, {}, carry
        features, mask, after = self.perception.step(obs, carry, is_first)
        pi = self.policy.distribution(self._output(features), mask)
        action = (pi.sample() if explore else pi.mode())[:, 0]
        return self.code.to_environment(action), {} if carry is None else {CARRY: carry}, after

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Give up chunks that somebody else has interrupted: the next one begins where the correction ended."""
        if self._ensemble is not None:
            return self._ensemble.interrupted(carry, differs(self._said, actions))
        return self._horizons[True].interrupted(carry, actions) if self.is_chunked else carry

    def _plan(self, explore: bool, seen: Observation) -> Actions:
        """Return chunks [n, length, ...] of the environment's actions for observations [n, history, ...]."""
        pi = self._seen(seen)
        return self.code.to_environment(pi.sample() if explore else pi.mode())

    def _expected(self, seen: Observation) -> Tensor:
        """Return mean numbers and probabilities [n, length, A] for observations [n, history, ...]."""
        pi = self._seen(seen)
        return torch.cat([_mean(part) for part in (pi.parts if isinstance(pi, Joint) else (pi,))], -1)

    def _seen(self, seen: Observation) -> WorldDistribution:
        features, mask = self.perception.encode(seen)
        pi: WorldDistribution = self.policy(features.flatten(1), None if mask is None else mask[:, -1])
        return pi

    def _decide(self, behaviour: str, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        assert self._ensemble is not None
        return self._ensemble(obs, carry, is_first)

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Make the actions of one batch more likely, or the error smaller."""
        is_recurrent = self.perception.is_recurrent
        if is_recurrent != ("is_first" in batch):
            has = "sequences need components.memory" if "is_first" in batch else "components.memory needs sequences"
            raise ConfigError(f"phase {phase.name!r}: {has}, which its buffer {phase.buffer!r} has to fit")
        if self.is_chunked or CHUNK_END in batch:
            sizes = {"history": self.observation_horizon, "chunk_length": self.prediction_horizon}
            batch = read_chunks(batch, self._spec, **sizes)
        else:
            keys = ("observations", "actions", "weights", *(("is_first", CARRY) if is_recurrent else ()))
            batch = {key: batch[key] for key in keys if key in batch}
        metrics: Metrics = self._update(batch)
        return metrics

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        self.perception.follow(batch)
        count = None if self.accumulation == 1 else self._count(batch)
        found: list[_Found] = []

        def loss(part: Batch) -> Tensor:
            losses, own = self._losses(part)
            found.append(own)
            return weighted_mean(losses, own.weights, self.learner.ranks, count)

        total, norm = self.learner.descend_over(loss, parts_of(batch, self.accumulation))
        weights = [own.weights for own in found if own.weights is not None]
        quality = self._quality(
            joined([own.actions for own in found]),
            joined([own.targets for own in found]),
            joined(weights) if weights else None,
        )
        return {"loss": total, "grad_norm": norm, **quality}

    def _count(self, batch: Batch) -> Tensor | int:
        """Return how many actions of a batch count."""
        if CHUNK_END in batch:
            return counted((~batch[CHUNK_END]).float(), self.learner.ranks)
        return self.perception.count(batch, self.learner.ranks)

    def _losses(self, batch: Batch) -> tuple[Tensor, _Found]:
        """Return the loss of each action [R], and what was found."""
        seen = self.perception.examples(batch)
        targets, mask, weights = self.code.read(seen.actions), seen.mask, seen.weights
        if CHUNK_END in batch:
            mask, weights = None if mask is None else mask[:, -1], (~batch[CHUNK_END]).float().flatten()
        else:
            targets = targets.unsqueeze(1)
        pi = self.policy(seen.features.flatten(1), mask)
        return -pi.log_prob(targets).flatten(), _Found(pi.mode().detach(), targets, weights)

    def _quality(self, actions: Tensor, targets: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        """Return the mean error of numbers, in [-1, 1], and how often the choices are the right ones."""
        counted = None if weights is None else (weights != 0.0).float()
        (numbers, choices), (wanted, right) = self.code.split(actions), self.code.split(targets)
        found = {"error": (numbers - wanted).abs().mean(-1)} if self.code.num_numbers else {}
        if self.code.nvec:
            found["accuracy"] = (choices * right).sum(-1) / len(self.code.nvec)
        return {name: weighted_mean(values.flatten(), counted) for name, values in found.items()}


def _mean(part: WorldDistribution) -> Tensor:
    """Return mean numbers, or the probabilities of choices."""
    return torch.cat([one.log_probs.exp() for one in part.parts], -1) if isinstance(part, MultiOneHot) else part.mode()
