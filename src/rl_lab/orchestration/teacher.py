"""A finished run as the teacher of this one: who acts while data is collected, and what is recorded of it.

Teacher and student both decide at every step, each from what it may see and with a carry of its own. Which decision the
environment gets is drawn with the phase's `teacher_share`, the beta of DAgger (Ross et al., 2011,
https://arxiv.org/abs/1011.0686): 1 collects demonstrations, 0 lets the student act and the teacher only say what it
would have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.buffer import Buffer
from rl_lab.core.environment import Actions, Observation
from rl_lab.core.errors import CheckpointError, ConfigError, unknown_name
from rl_lab.core.metrics import Mean
from rl_lab.core.phase import Phase
from rl_lab.core.spaces import Box, Discrete, EnvSpec, Leaf, Space, leaves_of
from rl_lab.core.trees import tree_where
from rl_lab.core.workflow import Carry, CollectResult, Extras, Workflow

SHARE = "teacher_share"  # key of a phase
LABELS = "teacher_actions"  # what the teacher would have done, beside what was done
IS_TEACHER = "is_teacher"


class Share(NamedTuple):
    """How likely it is that the teacher acts: at the start of a phase and, after a straight line, at its end."""

    begin: float
    end: float

    def at(self, progress: float) -> float:
        """Return the share at this progress of the phase, 0 to 1."""
        return self.begin + (self.end - self.begin) * min(1.0, progress)


def read_share(phase: Phase) -> Share:
    """Return the schedule that a phase's YAML gives: a number, or [begin, end]."""
    given = phase[SHARE]
    ends = given if isinstance(given, list | tuple) else (given, given)
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool) and 0 <= end <= 1]
    if len(ends) != 2 or len(numbers) != 2:
        raise ConfigError(f"{SHARE} of phase {phase.name!r} must be a number from 0 to 1 or [begin, end], not {given}")
    return Share(*map(float, numbers))


def check_shares(
    phases: Sequence[Phase], workflow: Workflow, buffers: Mapping[str, Buffer], *, has_teacher: bool
) -> None:
    """Refuse phases that do not say who acts, say it where nobody does, or learn from rollouts that are not theirs."""
    for phase in phases:
        collects, is_given = phase.type == "online", SHARE in phase.options
        if is_given and not (has_teacher and collects):
            why = "collects nothing" if has_teacher else "has no teacher (training.teacher)"
            raise ConfigError(f"{SHARE} of phase {phase.name!r}: the phase {why}")
        if not (has_teacher and collects):
            continue
        if not is_given:
            raise ConfigError(
                f"phase {phase.name!r} collects beside a teacher and needs {SHARE}: 0 (the student acts) to 1, or "
                "[begin, end]"
            )
        share = read_share(phase)
        is_own = phase.buffer is not None and buffers[phase.buffer].is_on_policy and not workflow.imitates
        if is_own and max(share) > 0.0:
            raise ConfigError(
                f"{SHARE} of phase {phase.name!r}: {type(workflow).__name__} learns from rollouts of its own, where "
                "no teacher may act (0)"
            )


def student_spec(spec: EnvSpec, privileged: Sequence[str]) -> EnvSpec:
    """Return what the student knows of an environment: `privileged` observations are the teacher's alone."""
    if not privileged:
        return spec
    if not isinstance(spec.observation, Mapping):
        raise ConfigError(
            f"training.teacher.privileged: the observation of {spec.id!r} is one array; the wrapper observation_parts "
            "gives names to parts of it"
        )
    for key in privileged:
        if key not in spec.observation:
            raise ConfigError(unknown_name("key in training.teacher.privileged", key, spec.observation))
    seen = {key: leaf for key, leaf in spec.observation.items() if key not in privileged}
    if not seen:
        raise ConfigError("training.teacher.privileged: nothing is left that the student could see")
    return replace(spec, observation=seen)


@dataclass(frozen=True)
class Teacher:
    """The frozen policy of a run, with its normalisers and whatever it remembers.

    Attributes:
        workflow: With the weights of a checkpoint; it does not learn.
        source: That checkpoint, for people.
        sha256: Of its weights and state: a run resumes only beside the same teacher.
        step: Env steps that it has learned from.
        explore: Whether it samples its actions instead of taking the most likely ones.
        reads: Where each of its observations lies in those of the environment; `` is the whole.
    """

    workflow: Workflow
    source: str
    sha256: str
    step: int
    explore: bool
    reads: Mapping[str, str]

    def act(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return what it does and its next carry."""
        actions, _, carry = self.workflow.act(
            self._seen(obs), carry, is_first=is_first, explore=self.explore, step=self.step
        )
        return actions, carry

    def _seen(self, obs: Observation) -> Observation:
        parts: dict[str, Tensor] = obs if isinstance(obs, dict) else {"": obs}
        seen = {name: parts[key] for name, key in self.reads.items()}
        return seen.get("", seen)


def match_specs(teacher: EnvSpec, env: EnvSpec, keys: Mapping[str, str] | str | None, source: str) -> Mapping[str, str]:
    """Return where each observation of the teacher lies in those of an environment; raises when one must not teach."""
    if teacher.action != env.action:
        raise ConfigError(
            f"training.teacher: {source} acts by {_described(teacher.action)} in {teacher.id!r}, but {env.id!r} takes "
            f"{_described(env.action)}"
        )
    wanted, found = leaves_of(teacher.observation), leaves_of(env.observation)
    if isinstance(keys, str):
        keys = dict.fromkeys(wanted, keys)
    for name in keys or ():
        if name not in wanted and "" in wanted:
            raise ConfigError(f"training.teacher.observation_keys: {source} reads one array, give one name instead")
        if name not in wanted:
            raise ConfigError(
                unknown_name("observation of the teacher in training.teacher.observation_keys", name, wanted)
            )
    names = {name: (keys or {}).get(name, name) for name in wanted}
    for name, key in names.items():
        label = f"training.teacher: {source} reads {f'{name!r}, ' if name else ''}{_described(wanted[name])}"
        if key not in found:
            has = ", ".join(filter(None, found)) or "one array"
            raise ConfigError(f"{label}, but {env.id!r} has {has}: say where by training.teacher.observation_keys")
        if _kind(wanted[name]) != _kind(found[key]):
            raise ConfigError(f"{label}, but that of {env.id!r} is {_described(found[key])}")
    return names


def _kind(leaf: Leaf) -> object:
    """Return what must be the same for a network to read it; bounds need not."""
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Box) else leaf


def _described(space: Space) -> str:
    if isinstance(space, Mapping):
        return "{" + ", ".join(f"{name}: {_described(leaf)}" for name, leaf in space.items()) + "}"
    if isinstance(space, Box):
        return f"{list(space.shape)} numbers in [{space.low:g}, {space.high:g}]"
    return f"one of {space.n} choices" if isinstance(space, Discrete) else f"choices of {list(space.nvec)}"


class Mixture:
    """Student and teacher as one policy.

    Args:
        student: What learns.
        teacher: What does not.
        device: Of the environment.
        per_episode: Whether who acts is drawn when an episode begins; else at every step.
        privileged: Observations that are not recorded: only the teacher reads them.
    """

    def __init__(
        self,
        student: Workflow,
        teacher: Teacher,
        device: torch.device,
        *,
        per_episode: bool = False,
        privileged: Sequence[str] = (),
    ) -> None:
        self._student, self._teacher, self._device = student, teacher, device
        self._per_episode, self._privileged = per_episode, frozenset(privileged)
        self._share, self._first_step, self._duration = Share(0.0, 0.0), 0, 1

    def during(self, phase: Phase, env_steps: int) -> Mixture:
        """Follow the schedule of a phase from here on; it depends on env steps alone, however collecting is cut."""
        self._share, self._duration = read_share(phase), phase.duration
        self._first_step = env_steps - round(phase.progress * phase.duration)
        if phase.unit != "steps":  # neither updates nor cycles move while steps are collected
            now = self._share.at(phase.progress)
            self._share = Share(now, now)
        return self

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the carries of both, and who acts."""
        nobody = torch.zeros(num_envs, dtype=torch.bool, device=self._device)
        carries = {"student": self._student, "teacher": self._teacher.workflow}
        return {**{name: one.initial_carry(num_envs) for name, one in carries.items()}, IS_TEACHER: nobody}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Let both decide and draw whose action is taken; both are told."""
        labels, after = self._teacher.act(obs, carry["teacher"], is_first)
        own, extras, own_after = self._student.act(obs, carry["student"], is_first=is_first, explore=explore, step=step)
        share = self._share.at((step - self._first_step) / self._duration)
        is_teacher = torch.rand(len(is_first), device=self._device) < share
        if self._per_episode:
            is_teacher = torch.where(is_first, is_teacher, carry[IS_TEACHER])
        taken = tree_where(is_teacher, labels, own)
        carry = {
            "student": self._student.took(own_after, taken),
            "teacher": self._teacher.workflow.took(after, taken),
            IS_TEACHER: is_teacher,
        }
        return taken, {**extras, LABELS: labels, IS_TEACHER: is_teacher}, carry

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Tell both that `actions` were taken instead."""
        student, teacher = self._student.took(carry["student"], actions), carry["teacher"]
        return {**carry, "student": student, "teacher": self._teacher.workflow.took(teacher, actions)}

    def recorded(self, result: CollectResult) -> CollectResult:
        """Return what the student may learn from; for one that imitates, `actions` are the teacher's.

        Another one finds beside the actions what the teacher would have done, and whether it did.
        """
        if result.trajectory is None:
            return result
        rows = dict(result.trajectory)
        labels, is_teacher = rows.pop(LABELS), rows.pop(IS_TEACHER)
        rows |= {"actions": labels} if self._student.imitates else {LABELS: labels, IS_TEACHER: is_teacher}
        for key in ("observations", "final_observations") if self._privileged else ():
            rows[key] = {name: leaf for name, leaf in rows[key].items() if name not in self._privileged}
        metrics = {SHARE: Mean(is_teacher.float().sum(), float(is_teacher.numel()))}
        return replace(result, trajectory=rows, metrics={**result.metrics, **metrics})

    def get_state(self) -> dict[str, Any]:
        """Return who the teacher is; what it remembers is in the carry."""
        return {"source": self._teacher.source, "sha256": self._teacher.sha256}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on beside another teacher."""
        if state["sha256"] != self._teacher.sha256:
            raise CheckpointError(
                f"training.teacher: the checkpoint was made beside {state['source']}, and {self._teacher.source} has "
                "other weights: a run resumes only beside the same teacher"
            )
