"""Any gymnasium environment as a vector environment of the lab, in this process or in workers.

Observations: numbers become float32, images uint8 [C, H, W], Discrete a float32 one-hot, a Dict or Tuple a dict of
tensors with `action_mask` as bool (`hosting.codec`). Actions: a dict where a space mixes choices and numbers; outside
the bounds of a Box they are clipped to them before the step (`hosting.actions`). The state of a running episode is its
layers' own, or its random state and its actions (`hosting.member`). What a name stands for is decided in
`hosting.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.core import (
    Actions,
    Box,
    ConfigError,
    Discrete,
    EnvironmentFault,
    EnvSpec,
    Instruction,
    Leaf,
    Measured,
    MultiDiscrete,
    Observation,
    Space,
    State,
    Step,
    VectorEnv,
    unknown_name,
)
from rl_lab.environments.hosting.actions import (
    ActionCodec,
    BoxAction,
    DiscreteAction,
    MixedAction,
    PlainAction,
    action_codec,
)
from rl_lab.environments.hosting.backend import Backend, SyncBackend
from rl_lab.environments.hosting.codec import (
    OBSERVATION,
    Array,
    Arrays,
    ObservationCodec,
    UnsupportedSpace,
    is_finite,
    observation_codec,
)
from rl_lab.environments.hosting.group import Blueprint, MemberFault
from rl_lab.environments.hosting.member import signature_of
from rl_lab.environments.hosting.process_pool import ProcessPool
from rl_lab.environments.hosting.recipe import Recipe, Wrapper
from rl_lab.environments.hosting.registry import find_recipe, is_repeatable, make_sample, reject_unseeded
from rl_lab.environments.wrappers.wrapping import (
    build_wrappers,
    description,
    episode_limit,
    frames_per_step,
    measured,
    steps_per_second,
)

BACKENDS = ("sync", "process")
CRASHES = ("raise", "restart")
DTYPES = {np.float32: torch.float32, np.uint8: torch.uint8, np.bool_: torch.bool}


class GymnasiumEnv(VectorEnv):
    """`num_envs` copies of one single environment, chosen by its name.

    `final_observations` of a step is the same object as `observations` when no episode ended: tensors are never written
    again.

    Args:
        name: A registered id such as CartPole-v1, `module:Id`, your own `module:function` that returns a gymnasium.Env,
            or the name of a family: dm_control/cartpole-swingup, ALE/Pong-v5, MiniGrid-Empty-5x5-v0, CarRacing-fast,
            gym_pusht/PushT-v0, FetchReach-v4, cell/Insertion-v0; Softlearning's universe/domain/task, e.g.
            gym/HalfCheetah/v3, too.
        num_envs: Copies that step together.
        device: Where the tensors live; the lab gives it.
        backend: sync (in this process, the fastest for cheap environments) or process (in workers, by shared memory).
        env_kwargs: Further arguments of `gymnasium.make`, of the family or of your function.
        wrappers: Layers around each copy, innermost first: names, a name with its arguments, e.g. {frame_stack: 4}, or
            your own as {_target_: ..., _partial_: true}.
        num_workers: Worker processes of the backend process; null: one per CPU, at most one per copy.
        exact_resume: Whether a running episode can be continued exactly; null: found out (those with a state of their
            own and gymnasium's are, others are tried); false for what cannot be repeated (a real robot, a human).
        info_keys: Names of numbers in the environment's info that are recorded and logged; `a.b` looks into info["a"].
        rescale_actions: true: bounded actions are in [-1, 1] for the agent; false: never; null: where the bounds differ
            between entries.
        on_crash: When a worker process dies: raise, or restart it (up to 3 times within 100 vector steps); its episodes
            then count as truncated.
        timeout_s: Seconds a worker may take for one step of its copies before it counts as crashed; null: no limit.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: torch.device | str = "cpu",
        backend: Literal["sync", "process"] = "sync",
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper | str | Mapping[str, Any]] = (),
        num_workers: int | None = None,
        exact_resume: bool | None = None,
        info_keys: Sequence[str] = (),
        rescale_actions: bool | None = None,
        on_crash: Literal["raise", "restart"] = "raise",
        timeout_s: float | None = None,
    ) -> None:
        _check_options(backend, num_envs, num_workers, on_crash, timeout_s)
        self.num_envs, self.device = num_envs, torch.device(device)
        self._is_on_cpu = self.device.type == "cpu"
        self._info_keys = tuple(dict.fromkeys(info_keys))
        recipe = find_recipe(name, env_kwargs or {}, build_wrappers(wrappers))
        self._blueprint, self.spec, self._facts = _survey(recipe, exact_resume, rescale_actions, self._info_keys)
        self._steps = 0  # vector steps since `reset`, for error messages
        try:
            self._backend: Backend = (
                SyncBackend(self._blueprint, num_envs)
                if backend == "sync"
                else ProcessPool(self._blueprint, num_envs, num_workers, on_crash=on_crash, timeout_s=timeout_s)
            )
        except MemberFault as fault:
            raise self._fault(fault) from fault

    def reset(self, seed: int) -> Observation:
        """Start every copy anew; the same seed gives the same episodes."""
        self._steps = 0
        words = np.random.SeedSequence(seed).generate_state(self.num_envs)
        try:
            return self._to_observation(self._backend.reset([int(word) >> 1 for word in words]))
        except MemberFault as fault:
            raise self._fault(fault) from fault

    def step(self, actions: Actions) -> Step:
        """Step every copy; one that ends its episode is reset within the same call."""
        self._steps += 1
        try:
            outcome = self._backend.step(self._to_array(actions))
        except MemberFault as fault:
            raise self._fault(fault) from fault
        obs = self._to_observation(outcome.observations)
        final = obs if outcome.finals is None else self._to_observation(outcome.finals)
        tensor = self._to_tensor
        infos = {key: tensor(outcome.infos[i]) for i, key in enumerate(self._info_keys)}
        return Step(obs, tensor(outcome.rewards), tensor(outcome.terminated), tensor(outcome.truncated), final, infos)

    def get_state(self) -> State:
        """Return the record of every running episode; without `exact_resume` there is none."""
        members = self._backend.get_state() if self.spec.exact_resume else []
        return {"id": self.spec.id, "steps": self._steps, "members": members}

    def set_state(self, state: State) -> None:
        """Bring every running episode back."""
        if not self.spec.exact_resume:
            raise EnvironmentFault(f"environment {self.spec.id!r} cannot be restored: its exact_resume is false")
        if state["id"] != self.spec.id or len(state["members"]) != self.num_envs:
            here, there = f"{self.num_envs} x {self.spec.id!r}", f"{len(state['members'])} x {state['id']!r}"
            raise EnvironmentFault(f"environment {here} cannot go on from a state of {there}")
        self._steps = state["steps"]
        try:
            self._backend.set_state(state["members"])
        except MemberFault as fault:
            raise self._fault(fault) from fault

    def describe(self) -> dict[str, Any]:
        """Return what the environment says of itself: of a robot, names of joints and the task in words."""
        return dict(self._facts)

    def render(self) -> Tensor | None:
        """Return the picture of the first copy, [H, W, 3] uint8; None unless env_kwargs.render_mode is rgb_array."""
        try:
            picture = self._backend.render()
        except MemberFault as fault:
            raise self._fault(fault) from fault
        return None if picture is None else torch.from_numpy(picture.copy())

    def instruct(self, instruction: Instruction) -> bool:
        """Pass a person's word on to every copy."""
        try:
            return self._backend.instruct(instruction)
        except MemberFault as fault:
            raise self._fault(fault) from fault

    def close(self) -> None:
        """Free processes, windows and memory."""
        self._backend.close()

    def _to_array(self, actions: Actions) -> Array:
        codec = self._blueprint.action
        if not isinstance(codec, MixedAction):
            return self._checked(actions, codec, self.spec.id)
        if not isinstance(actions, dict) or actions.keys() != codec.parts.keys():
            found = sorted(actions) if isinstance(actions, dict) else type(actions).__name__
            raise ValueError(f"actions for {self.spec.id!r} are {found} instead of a dict of {sorted(codec.parts)}")
        parts = codec.parts.items()
        return codec.join({name: self._checked(actions[name], part, f"{self.spec.id}: {name}") for name, part in parts})

    def _checked(self, actions: Actions, codec: PlainAction, name: str) -> Array:
        """Return actions of one kind as the codec takes them."""
        if not isinstance(actions, Tensor):
            raise ValueError(f"actions for {name!r} are a {type(actions).__name__} instead of one tensor")
        array: Array = actions.detach().numpy() if self._is_on_cpu else actions.detach().cpu().numpy()
        if array.shape != (wanted := (self.num_envs, *codec.shape)):
            raise ValueError(f"actions for {name!r} have shape {array.shape} instead of {wanted}")
        if array.dtype != codec.dtype:
            array = array.astype(codec.dtype)
        if not is_finite(array):
            raise EnvironmentFault(f"environment {name!r} was given NaN or infinity as action: {array.tolist()}")
        return array

    def _to_observation(self, arrays: Arrays) -> Observation:
        if OBSERVATION in arrays:
            return self._to_tensor(arrays[OBSERVATION])
        return {name: self._to_tensor(array) for name, array in arrays.items()}

    def _to_tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._is_on_cpu else tensor.to(self.device)

    def _fault(self, fault: MemberFault) -> EnvironmentFault:
        where = f"copy {fault.index}, vector step {self._steps}, {fault.doing}"
        return EnvironmentFault(f"environment {self.spec.id!r} ({where}) {fault.what}")


def _check_options(
    backend: str, num_envs: int, num_workers: int | None, on_crash: str, timeout_s: float | None
) -> None:
    if backend not in BACKENDS:
        raise ConfigError(unknown_name("environment.backend", backend, BACKENDS))
    if on_crash not in CRASHES:
        raise ConfigError(unknown_name("environment.on_crash", on_crash, CRASHES))
    if num_envs < 1 or (num_workers is not None and num_workers < 1):
        raise ConfigError(f"environment.num_envs and num_workers must be 1 or more, got {num_envs}, {num_workers}")
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigError(f"environment.timeout_s must be more than 0 or null, got {timeout_s}")
    if backend == "sync" and (on_crash == "restart" or timeout_s is not None):
        raise ConfigError("environment.on_crash=restart and environment.timeout_s need environment.backend=process")


def _survey(
    recipe: Recipe, exact_resume: bool | None, rescale: bool | None, info_keys: tuple[str, ...]
) -> tuple[Blueprint, EnvSpec, dict[str, Any]]:
    """Make one environment to learn what it is like, and what it says of itself."""
    sample = make_sample(recipe)
    try:
        observation = observation_codec(sample.observation_space)
        action = action_codec(sample.action_space, rescale)
        reject_unseeded(recipe, sample, observation, exact_resume)
        if exact_resume is None:
            exact_resume = is_repeatable(recipe, sample, observation, action)
    except UnsupportedSpace as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"environment.name {recipe.id!r} has the unsupported space {text}") from error
    finally:
        sample.close()
    spec = EnvSpec(
        id=recipe.id,
        observation=_observation_space(observation),
        action=_action_space(action),
        max_episode_steps=episode_limit(sample),
        exact_resume=exact_resume,
        action_repeat=frames_per_step(sample),
        steps_per_second=steps_per_second(sample),
        measured=None if (facts := measured(sample)) is None else Measured(**facts),
    )
    blueprint = Blueprint(recipe, observation, action, signature_of(sample), exact_resume, info_keys)
    return blueprint, spec, description(sample)


def _observation_space(codec: ObservationCodec) -> Space:
    leaves = {name: Box(leaf.shape, DTYPES[leaf.dtype]) for name, leaf in codec.leaves.items()}
    return leaves if codec.is_dict else leaves[OBSERVATION]


def _action_space(codec: ActionCodec) -> Space:
    if isinstance(codec, MixedAction):
        return {name: _action_leaf(part) for name, part in codec.parts.items()}
    return _action_leaf(codec)


def _action_leaf(codec: PlainAction) -> Leaf:
    if isinstance(codec, DiscreteAction):
        return Discrete(codec.n)
    if isinstance(codec, BoxAction):
        low, high = codec.bounds
        return Box(codec.shape, low=low, high=high)
    return MultiDiscrete(codec.nvec)
