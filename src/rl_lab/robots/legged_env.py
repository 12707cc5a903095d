"""A robot task as a vector environment: a robot, a simulation, and dicts of terms from YAML.

A step: interval events act, targets go to the actuators, physics runs, then terminations, rewards, commands, and what
the step led to is observed. Worlds whose episodes ended are then reset, and their first observations replace the last.
Nothing looks at a value on the host; on a CPU, where that costs nothing, work without a reset is skipped. On a GPU all
of a step is a few CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Actions, Box, EnvironmentFault, EnvSpec, Observation, State, Step, VectorEnv
from rl_lab.robots.captured_step import CapturedStep
from rl_lab.robots.description import describe_task
from rl_lab.robots.managers.commands import CommandManager, read_gait
from rl_lab.robots.managers.control import ControlManager
from rl_lab.robots.managers.curriculum import TerrainCurriculum
from rl_lab.robots.managers.episode_means import EpisodeMeans
from rl_lab.robots.managers.events import EventManager
from rl_lab.robots.managers.mirrors import find_mirror
from rl_lab.robots.managers.observations import ObservationManager
from rl_lab.robots.managers.rewards import RewardManager, sensors_of
from rl_lab.robots.managers.terminations import TerminationManager
from rl_lab.robots.managers.terms import positive
from rl_lab.robots.mdp.reader import StateReader, robot_facts
from rl_lab.robots.mdp.state import RobotState
from rl_lab.robots.mdp.world import World, any_of
from rl_lab.robots.models.layout import layout_of
from rl_lab.robots.models.scene import Physics, compile_scene, read_simulation
from rl_lab.robots.observer import LeggedObserver
from rl_lab.robots.registry import find_robot
from rl_lab.robots.sim.interface import make_sim

ERRORS = ("velocity_error", "yaw_rate_error")
CHECK_EVERY = 64  # vector steps between looks at the simulation's overflow counters, where a look waits for the device


class LeggedEnv(VectorEnv):
    """Worlds of one robot that follows velocity commands. The terms are described in docs/legged.md.

    Args:
        num_envs: Worlds that step together.
        robot: quadruped, g1, pm01, sa01, rotunbot, or the path of a YAML file that describes a robot of your own.
        observations: Groups by name (actor, critic), each with `terms`; one group alone is a plain vector.
        rewards: `terms` with weights, `only_positive`, `scale_by_dt`.
        terminations: Terms that end an episode; with `time_out: true` they cut it.
        commands: Ranges of vx, vy and yaw rate, how long they hold, shares of standing ones, curriculum and gait.
        events: Terms with a mode: startup, reset, interval or step.
        control: `substeps` of physics per action, `action_clip`, and changed `joints` by name or pattern.
        simulation: `backend`, `num_threads`, `deterministic`, and the physics: `timestep`, `cone`, `iterations`.
        terrain: Kinds, levels and size of tiles, and the curriculum; null is a plane.
        episode_s: Seconds after which an episode is cut.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        robot: str,
        *,
        observations: Mapping[str, Any],
        rewards: Mapping[str, Any],
        terminations: Mapping[str, Any],
        commands: Mapping[str, Any],
        events: Mapping[str, Any] | None = None,
        control: Mapping[str, Any] | None = None,
        simulation: Mapping[str, Any] | None = None,
        terrain: Mapping[str, Any] | None = None,
        episode_s: float = 20.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self._generator = torch.Generator(self.device)
        self._control = ControlManager(control or {}, find_robot(robot))
        self.robot, self.substeps, self.action_clip = self._control.robot, self._control.substeps, self._control.clip
        self._terrain = TerrainCurriculum(terrain, num_envs, self.device)
        self._build_world(dict(simulation or {}), events or {}, sensors_of(rewards))
        gait = read_gait(commands.get("gait") or {}, self.world.facts)
        commands = {key: value for key, value in commands.items() if key != "gait"}
        self.commands = CommandManager(commands, self.world.facts, num_envs, self._generator)
        self._reader = StateReader(self.world, gait, self._terrain.height, self._terrain.scan)
        self._terminations = TerminationManager(terminations, self.world.facts)
        self.rewards = RewardManager(rewards, self.world.facts, num_envs)
        if self.commands.curriculum is not None:
            self._tracked = self.rewards.row(self.commands.curriculum["reward"])
        self._errors = EpisodeMeans(ERRORS, num_envs, self.device)
        self._steps = 0
        self._limit = math.ceil(positive("environment.episode_s", episode_s) / self.world.facts.dt - 1e-6)
        self._prepare(observations)
        self._captured = self._capture() if self.world.sim.uses_graphs else None
        mirror, no_mirror = find_mirror(self.world, gait, self._terrain.scan, self._events.functions, self.observations)
        self.spec = EnvSpec(
            f"legged/{self.robot.name}{'' if terrain is None else '-rough'}",
            self.observations.space,
            Box((len(self.robot.joints),), low=-self.action_clip, high=self.action_clip),
            max_episode_steps=self._limit,
            steps_per_second=1.0 / self.world.facts.dt,
            exact_steps=self.world.sim.deterministic,
            mirror=mirror,
            no_mirror=no_mirror,
        )

    def _build_world(self, simulation: dict[str, Any], events: Mapping[str, Any], sensors: set[str]) -> None:
        physics, options = read_simulation(simulation)
        draft = compile_scene(self.robot, None, Physics(**physics))  # names and limits; terms are read against it
        dt = draft.opt.timestep * self.substeps
        facts = robot_facts(draft, self.robot, layout_of(draft, self.robot), dt, self.device)
        self._events = EventManager(events, facts, self.num_envs)
        physics["max_actuator_delay"] = max(physics.get("max_actuator_delay", 0.0), self._events.longest_lag)
        model = compile_scene(self.robot, self._terrain.terrain, Physics(**physics), sensors)
        sim = make_sim(model, self.num_envs, device=self.device, randomized=self._events.fields, **options)
        layout = layout_of(model, self.robot)
        self.world = World(sim, self.robot, layout, facts, self._generator, self._terrain.origins())
        self._control.bind(facts, layout)

    def _prepare(self, observations: Mapping[str, Any]) -> None:
        """Draw everything once, so that the widths of all observations are known."""
        self._events.announce(self.world)
        self._generator.manual_seed(0)
        self._actions = (torch.zeros(self.num_envs, len(self.robot.joints), device=self.device),) * 3
        self._elapsed = torch.zeros(self.num_envs, device=self.device)
        self._everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._events.start(self.world)
        self._reset_worlds(self._everywhere)
        self.last_state = self._read()  # what the last step led to, before any reset: for testers and recorders
        self.observations = ObservationManager(observations, self.last_state, self._generator)

    def _capture(self) -> CapturedStep:
        owners = [part for name, part in self._parts().items() if name not in ("sim", "observations")]
        owners += [self, *self.observations.groups.values()]
        return CapturedStep(self._take_step, self, owners, self.world.sim, self._generator)

    @property
    def is_captured(self) -> bool:
        """Whether steps are replays of CUDA graphs."""
        return self._captured is not None and self._captured.is_recorded

    def _kept(self) -> AbstractContextManager[None]:
        """Return a context in which anything may change what lies between two steps, which may be captured."""
        return nullcontext() if self._captured is None else self._captured.kept()

    def reset(self, seed: int) -> Observation:
        """Start every world anew; the same seed gives the same episodes."""
        self._generator.manual_seed(seed)
        with self._kept():
            self.commands.begin()
            self.world.origins = self._terrain.begin(self._generator)
            self._events.start(self.world)
            self._reset_worlds(self._everywhere)
            return self._first_observations(self._everywhere)

    def step(self, actions: Actions) -> Step:
        """Step every world; one that ends its episode is reset within the same call."""
        assert isinstance(actions, Tensor)
        self._steps += 1
        if self._captured is None:
            step, self.last_state = self._take_step(actions.to(self.device))
            return step
        is_usual = self.commands.fixed is None and not self.world.sim.is_stale
        step, self.last_state = self._captured(actions.to(self.device), is_usual=is_usual)
        if self._steps % CHECK_EVERY == 0:
            self.world.sim.check()
        return step

    def _take_step(self, actions: Tensor) -> tuple[Step, RobotState]:
        state = self._advance(actions.clamp(-self.action_clip, self.action_clip))
        terminated, cut, infos = self._terminations(state)
        state.terminated = terminated
        rewards = self.rewards(state)
        cut = cut | self._terrain.is_outside(state.base_pos) | (self._elapsed >= self._limit)
        truncated = cut & ~terminated
        ended = terminated | truncated
        infos |= self._infos(state)
        followed, state.command = state.command, self.commands.advance(state)
        self._reader.remember(state)
        final = self.observations.advance(state)
        if not any_of(ended):
            return Step(final, rewards, terminated, truncated, final, infos), state
        self._end_episodes(state, followed, ended, infos)
        self._reset_worlds(ended)
        return Step(self._first_observations(ended), rewards, terminated, truncated, final, infos), state

    def _advance(self, actions: Tensor) -> RobotState:
        """Act, let time pass, and return where that led."""
        self._events.advance(self.world)
        self.world.sim.write("ctrl", self._control(actions, self.world.joint_offset))
        self._reader.step(self.substeps)
        if self._captured is None:
            self.world.sim.check()
        self._elapsed = self._elapsed + 1.0
        self._actions = (actions, *self._actions[:2])
        return self._read()

    def _read(self) -> RobotState:
        return self._reader.read(self._actions, self.commands.value, self._elapsed)

    def _infos(self, state: RobotState) -> dict[str, Tensor]:
        """Return what is logged of an episode when it ends: means of reward terms and errors, and the curricula."""
        error = state.command[:, :2] - state.lin_vel[:, :2]
        self._errors.add(torch.stack((error.norm(dim=-1), (state.command[:, 2] - state.ang_vel[:, 2]).abs())))
        infos = self.rewards.episode.means() | self._errors.means() | self._terrain.infos()
        if self.commands.curriculum is not None:
            infos["command_level"] = self.commands.level.expand(self.num_envs).clone()
        return infos

    def _end_episodes(self, state: RobotState, followed: Tensor, ended: Tensor, infos: Mapping[str, Tensor]) -> None:
        """Let the curricula learn from the episodes that end with this step, and from the commands they `followed`."""
        if self.commands.curriculum is not None:
            name, weight = self._tracked
            self.commands.learn(infos[name] / weight, ended)
        walked = (state.base_pos - self.world.origins)[:, :2].norm(dim=-1)
        wanted = followed[:, :2].norm(dim=-1) * self._limit * state.facts.dt
        self.world.origins = self._terrain.end_episodes(walked, wanted, ended, self._generator)

    def _reset_worlds(self, mask: Tensor) -> None:
        self.world.sim.reset(mask)
        self._events.restart(self.world, mask)
        self.world.sim.forward()
        self._reader.restart(mask)
        self.rewards.episode.restart(mask)
        self._errors.restart(mask)
        self._elapsed = torch.where(mask, 0.0, self._elapsed)
        newest, last, older = (torch.where(mask.unsqueeze(-1), 0.0, action) for action in self._actions)
        self._actions = (newest, last, older)

    def _first_observations(self, mask: Tensor) -> Observation:
        state = self._read()
        state.command = self.commands.restart(state, mask)
        return self.observations.restart(state, mask)

    def get_state(self) -> State:
        """Return all that the next step depends on."""
        if self._captured is not None:
            self.world.sim.check()
        return {
            "id": self.spec.id,
            "rng": self._generator.get_state(),
            "steps": self._steps,
            "elapsed": self._elapsed.clone(),
            "actions": [action.clone() for action in self._actions],
            **{name: part.get_state() for name, part in self._parts().items()},
        }

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        if state["id"] != self.spec.id or len(state["elapsed"]) != self.num_envs:
            found = f"cannot go on from {len(state['elapsed'])} worlds of {state['id']!r}"
            raise EnvironmentFault(f"environment {self.spec.id!r} has {self.num_envs} worlds and {found}")
        with self._kept():
            for name, part in self._parts().items():
                part.set_state(state[name])
            self._elapsed = torch.as_tensor(state["elapsed"]).to(self.device, copy=True)
            first, second, third = (torch.as_tensor(action).to(self.device, copy=True) for action in state["actions"])
            self._actions, self._steps = (first, second, third), state["steps"]
        self._generator.set_state(torch.as_tensor(state["rng"]).cpu())

    def _parts(self) -> dict[str, Any]:
        return {
            "sim": self.world.sim,
            "world": self.world,
            "events": self._events,
            "commands": self.commands,
            "terrain": self._terrain,
            "reader": self._reader,
            "rewards": self.rewards.episode,
            "errors": self._errors,
            "observations": self.observations,
        }

    def describe(self) -> dict[str, Any]:
        """Return what a deployed policy must know, as a plain tree."""
        return describe_task(self, self._terrain.scan)

    def observer(self) -> LeggedObserver:
        """Return clips, scales and histories."""
        return LeggedObserver(self.observations)

    def notes(self) -> list[str]:
        """Return what makes the simulation slow."""
        return [f"environment {self.spec.id!r}: {note}" for note in self.world.sim.notes]

    def attach(self, crash: Path) -> None:
        """Write worlds that are not finite there."""
        self.world.sim.dump_dir = crash

    def render(self) -> Tensor:
        """Return the picture of the first world."""
        return self.world.sim.render()

    def close(self) -> None:
        """Free the simulation."""
        self.world.sim.close()
