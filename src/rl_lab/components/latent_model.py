"""A world model without a decoder: latent states that predict each other, rewards and ends (TD-MPC and TD-MPC2).

Hansen et al., 2022 (https://arxiv.org/abs/2203.04955) and 2024 (https://arxiv.org/abs/2310.16828). Nothing that was
seen is rebuilt: the state that follows an action is to be the one that the encoder makes of the next observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.latent_encoder import TDMPC2_STYLE, LatentEncoder, joined
from rl_lab.components.layers import LayerStyle, Stack
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.simnorm import sim_norm, to_latent
from rl_lab.components.task_embedding import TaskEmbedding
from rl_lab.core import EnvSpec, Observation
from rl_lab.core.ranges import Count, Natural


class LatentState(NamedTuple):
    """States with any leading dimensions."""

    z: Tensor  # [..., latent_dim]
    task: Tensor | None = None  # [..., task_dim]: what is learned of the task; None: there is only one
    used: Tensor | None = None  # [..., A]: 1 where the task uses an entry of an action, else 0
    gamma: Tensor | None = None  # [..., 1]: the task's discount; None: that of all

    def each(self, function: Callable[[Tensor], Tensor]) -> LatentState:
        """Return states with every tensor changed by a function."""
        others = (None if leaf is None else function(leaf) for leaf in self[1:])
        return LatentState(function(self.z), *others)

    def at(self, index: int | slice) -> LatentState:
        """Return the states at places of the first dimension."""
        return self.each(lambda leaf: leaf[index])

    def discount(self, of_all: float | None) -> Tensor | float:
        """Return the discounts [...] of the states' tasks, or the one that all have."""
        if self.gamma is not None:
            return self.gamma.squeeze(-1)
        assert of_all is not None
        return of_all


class LatentModel(nn.Module):
    """Encodes observations, and predicts what follows actions.

    Args:
        encoder: From observations to tokens.
        reward: Predicts the reward of an action in a state.
        cont: Predicts whether the episode goes on in a state; null: it always does.
        tasks: Vectors of several tasks; null: there is one.
        latent_dim: Numbers of a state.
        group_size: Numbers of a state that are a point of a simplex (SimNorm, TD-MPC2); null: states are unbounded.
        units: Width of the layers of the dynamics.
        num_layers: How many.
        style: Of the layers.
    """

    def __init__(
        self,
        encoder: LatentEncoder,
        reward: ScalarHead,
        cont: ContinueHead | None = None,
        tasks: TaskEmbedding | None = None,
        *,
        latent_dim: Count = 512,
        group_size: Count | None = 8,
        units: Count = 512,
        num_layers: Natural = 2,
        style: LayerStyle = TDMPC2_STYLE,
    ) -> None:
        super().__init__()
        self.encoder, self.reward_head, self.cont_head, self.tasks = encoder, reward, cont, tasks
        self.latent_dim, self.group_size = latent_dim, group_size
        self.units, self.num_layers, self.style = units, num_layers, style

    def bind(self, spec: EnvSpec, workflow: str) -> None:
        """Make the layers for an environment; `workflow` is who asks, for errors."""
        self.action_code = ModelActions(spec, workflow)
        seen = spec.observation if self.tasks is None else self.tasks.bind(spec.observation, self.action_code)
        self.encoder.bind(seen, self.task_dim)
        if self.encoder.is_lone_image and self.encoder.output_dim == self.latent_dim:
            self.project = sim_norm(self.latent_dim, self.group_size)  # published so: the tokens are the state
        else:
            self.project = to_latent(self.encoder.output_dim, self.latent_dim, self.style, self.group_size)
        trunk = Stack(self.joint_dim, self.units, self.num_layers, self.style)
        self.dynamics = nn.Sequential(trunk, to_latent(trunk.output_dim, self.latent_dim, self.style, self.group_size))
        self.reward_head.bind(self.joint_dim)
        if self.cont_head is not None:
            self.cont_head.bind(self.feature_dim)

    @property
    def task_dim(self) -> int:
        """Return the numbers that are learned of a task."""
        return 0 if self.tasks is None else self.tasks.dim

    @property
    def feature_dim(self) -> int:
        """Return the numbers that `features` has."""
        return self.latent_dim + self.task_dim

    @property
    def joint_dim(self) -> int:
        """Return the numbers that `joint` has."""
        return self.feature_dim + self.action_code.dim

    def encode(self, obs: Observation) -> LatentState:
        """Return the states of observations with any leading dimensions."""
        task, used = (None, None) if self.tasks is None else self.tasks(obs)
        gamma = None if self.tasks is None else self.tasks.discounts(obs)
        return LatentState(self.project(self.encoder(obs, task)), task, used, gamma)

    def next(self, state: LatentState, action: Tensor) -> LatentState:
        """Return the states that follow actions [..., A]."""
        return state._replace(z=self.dynamics(self.joint(state, action)))

    def step(self, state: LatentState, action: Tensor) -> tuple[Tensor, LatentState]:
        """Return the expected rewards [...] of actions in states, and the states that follow."""
        joint = self.joint(state, action)
        return self.reward_head.mean(self.reward_head(joint)), state._replace(z=self.dynamics(joint))

    def imagine(self, start: LatentState, actions: Tensor) -> LatentState:
        """Return the states [H + 1, ...] that follow each other from states [...] by actions [H, ..., A]."""
        states = [start]
        for action in actions.unbind():
            states.append(self.next(states[-1], action))
        many = start.each(lambda leaf: leaf.expand(len(states), *leaf.shape))  # a task stays what it is
        return many._replace(z=torch.stack([state.z for state in states]))

    @staticmethod
    def features(state: LatentState) -> Tensor:
        """Return what heads of states read."""
        return joined(state.z, state.task)

    @staticmethod
    def joint(state: LatentState, action: Tensor) -> Tensor:
        """Return what heads of states and actions read; actions may be several for each state, [n, ..., A]."""
        lead = action.shape[:-1]
        state = state.each(lambda leaf: leaf.expand(*lead, leaf.shape[-1]))
        return joined(state.z, state.task, action if state.used is None else action * state.used)

    def reward(self, state: LatentState, action: Tensor) -> Tensor:
        """Return the expected rewards [...] of actions in states."""
        return self.reward_head.mean(self.reward_head(self.joint(state, action)))

    def cont(self, state: LatentState) -> Tensor:
        """Return how likely [...] the episode goes on in states; without a head it always does."""
        if self.cont_head is None:
            return torch.ones(state.z.shape[:-1], device=state.z.device)
        return self.cont_head.probability(self.cont_head(self.features(state)))
