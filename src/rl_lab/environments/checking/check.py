"""Whether an environment keeps the promises of `VectorEnv`: one finding per promise, whatever else is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from torch import Tensor

from rl_lab.core import State, UsageError, VectorEnv, tree_leaves
from rl_lab.environments.checking.conformity import describe_spec
from rl_lab.environments.checking.exactness import NOT_EXACT, exactness
from rl_lab.environments.checking.recording import CheckFailed, Recorder, Recording, digest, follow, watched
from rl_lab.environments.checking.spaces import space_misfit

Status = Literal["ok", "warning", "failed"]
Make = Callable[[], VectorEnv]
MakeSingle = Callable[[], gymnasium.Env[Any, Any]]
RoundTrip = Callable[[State], State]
SHORTEST, LONGEST, UNLIMITED = 300, 1200, 600  # vector steps, when nobody says how many
SECONDS = 5.0  # of the first pass, when nobody says how many steps
CONFORMITY = {  # check -> what is true when nothing was wrong
    "shapes": "every tensor has the shape that the spec says",
    "types": "every tensor has the type that the spec says",
    "device": "every tensor is on the environment's device",
    "finite": "no NaN and no infinity",
    "bounds": "every observation lies within the bounds of the spec",
    "flags": "never terminated and truncated at once",
}


class Finding(NamedTuple):
    """What one check found."""

    name: str
    status: Status
    detail: str


class _Instances:
    """Makes copies of the environment and closes them all."""

    def __init__(self, make: Make) -> None:
        self._make, self._made = make, list[VectorEnv]()

    def new(self) -> VectorEnv:
        """Return another instance; a wrong config passes through, whatever else it raises fails the check."""
        try:
            with watched():
                self._made.append(self._make())
        except CheckFailed as failed:
            if isinstance(failed.__cause__, UsageError):
                raise failed.__cause__ from None
            raise
        return self._made[-1]

    def close(self) -> None:
        """Close every instance; one that cannot be closed does not keep the others open."""
        while self._made:
            try:
                with watched():
                    self._made.pop().close()
            except CheckFailed:
                continue


def check_environment(
    make: Make,
    *,
    steps: int | None = None,
    seed: int = 0,
    round_trip: RoundTrip = lambda state: state,
    make_single: MakeSingle | None = None,
) -> Iterator[Finding]:
    """Yield one finding per promise.

    Args:
        make: Returns a new instance.
        steps: Vector steps of random actions; None: enough to see a time limit, at most about five seconds of them.
        seed: Of the environment and of the actions.
        round_trip: What a state goes through before another instance is given it: a checkpoint, say.
        make_single: Returns the gymnasium environment that the copies are made of, where there is one.
    """
    instances = _Instances(make)
    try:
        yield from _check(instances, steps, seed, round_trip, make_single)
    finally:
        instances.close()


def _check(
    instances: _Instances, steps: int | None, seed: int, round_trip: RoundTrip, make_single: MakeSingle | None
) -> Iterator[Finding]:
    try:
        env = instances.new()
    except CheckFailed as failed:
        yield Finding("made", "failed", str(failed))
        return
    yield Finding(
        "made", "ok", f"{type(env).__name__} {env.spec.id!r}, {env.num_envs} copies: {describe_spec(env.spec)}"
    )
    recording = Recorder(env, seed).run(steps or _enough(env), SECONDS if steps is None else None)
    yield _ran(recording)
    if not recording.first:  # not even a reset
        return
    yield from _conformity(recording)
    if make_single is not None:
        yield _guarded("declared space", lambda: _declared(make_single, seed))
    yield from _episodes(recording, env)
    yield _guarded("determinism", lambda: _repeats(env, instances, recording))
    yield _guarded("seeding", lambda: _other_seed(env, recording))
    yield _guarded("exact state", lambda: _exact(instances, env, recording, round_trip))


def _enough(env: VectorEnv) -> int:
    limit = env.spec.max_episode_steps
    return UNLIMITED if limit is None else min(max(SHORTEST, limit + 100), LONGEST)


def _guarded(name: str, check: Callable[[], tuple[Status, str]]) -> Finding:
    try:
        return Finding(name, *check())
    except CheckFailed as failed:
        return Finding(name, "failed", str(failed))


def _ran(recording: Recording) -> Finding:
    count = len(recording.steps)
    if recording.fault is not None:
        return Finding("runs", "failed", f"stopped after {count} vector steps: {recording.fault}")
    speed = count * recording.num_envs / max(recording.seconds, 1e-9)
    return Finding("runs", "ok", f"{count} vector steps of random actions, {speed:,.0f} env steps/s while checking")


def _conformity(recording: Recording) -> Iterator[Finding]:
    for name, promise in CONFORMITY.items():
        found = recording.problems.get(name, [])
        times = f" ({len(found)} times in {len(recording.steps)} steps)" if len(found) > 1 else ""
        yield Finding(name, "failed", found[0] + times) if found else Finding(name, "ok", promise)
    status: Status = "ok" if recording.rewritten is None else "failed"
    yield Finding("ownership", status, recording.rewritten or "tensors are never written to after they were returned")


def _declared(make_single: MakeSingle, seed: int) -> tuple[Status, str]:
    """Look at the environment itself: the tensors of a batch no longer know its declared bounds."""
    with watched():
        env = make_single()
        try:
            misfit, steps = space_misfit(env, seed)
        finally:
            env.close()
    if misfit is not None:
        return "warning", f"step {steps}: {misfit}"
    return "ok", f"{steps} observations lie in the observation space of the environment"


def _episodes(recording: Recording, env: VectorEnv) -> Iterator[Finding]:
    if not recording.counted:
        return
    least, greatest, total = recording.rewards
    mean = total / (recording.counted * recording.num_envs)
    yield Finding("rewards", "ok", f"{least:.6g} .. {greatest:.6g}, mean {mean:.6g}")
    lengths, problems = recording.lengths, recording.problems.get("final observations", [])
    if problems:
        yield Finding("final observations", "failed", problems[0])
    elif lengths and recording.unmoved == len(lengths):
        same = "equals the first one of the next: is it reset within the step?"
        yield Finding("final observations", "warning", f"the last observation of all {len(lengths)} episodes {same}")
    elif lengths:
        yield Finding("final observations", "ok", f"kept at {len(lengths)} ends, equal to the observations elsewhere")
    if not lengths:
        detail = f"none ended in {recording.counted} steps: resets and time limits were not seen (more with --steps)"
        yield Finding("episodes", "warning", detail)
        return
    mean = sum(lengths) / len(lengths)
    yield Finding(
        "episodes", "ok", f"{len(lengths)} ended, after {min(lengths)} .. {max(lengths)} steps, mean {mean:.4g}"
    )
    yield _time_limit(recording, env.spec.max_episode_steps)


def _time_limit(recording: Recording, limit: int | None) -> Finding:
    truncated = sum(is_truncated for _, is_truncated in recording.limits)
    if limit is None:
        return Finding(
            "time limit", "ok", f"none declared; {truncated} of {len(recording.limits)} ends were truncations"
        )
    longest = max(recording.lengths)
    if longest > limit:
        return Finding("time limit", "failed", f"an episode lasted {longest} steps, the limit is {limit}")
    reached = [is_truncated for length, is_truncated in recording.limits if length == limit]
    if reached and not any(reached):
        detail = f"all {len(reached)} episodes of {limit} steps are terminated; a time limit would be a truncation"
        return Finding("time limit", "warning", detail)
    return Finding("time limit", "ok", f"{limit} steps, reached {len(reached)} times, {truncated} truncations")


def _repeats(env: VectorEnv, instances: _Instances, recording: Recording) -> tuple[Status, str]:
    """Run the same seed and actions again, and in a second instance."""
    for who, other in (("after another reset", env), ("in a second instance", instances.new())):
        with watched():
            first = digest(other.reset(recording.seed))
        where = follow(other, recording, 0, len(recording.steps)) if first == recording.first else "the reset"
        if where is not None:
            return "failed", f"the same seed and actions give something else {who}, first in {where}"
    return "ok", f"the same seed and actions give the same {len(recording.steps)} steps again and in a second instance"


def _other_seed(env: VectorEnv, recording: Recording) -> tuple[Status, str]:
    with watched():
        first = digest(env.reset(recording.seed + 1))
    if first != recording.first:
        return "ok", "another seed begins with another observation"
    where = follow(env, recording, 0, len(recording.steps))
    if where is not None:
        return "ok", f"another seed differs, first in {where}"
    return "warning", f"seeds {recording.seed} and {recording.seed + 1} give the same {len(recording.steps)} steps"


def _exact(instances: _Instances, env: VectorEnv, recording: Recording, round_trip: RoundTrip) -> tuple[Status, str]:
    """Take states on the way of a repeated run, and go on from each of them in a new instance."""
    with watched():
        kind = exactness(env)
    if kind == NOT_EXACT:
        return "warning", "not exact: a running episode cannot be restored, so a run can only be warm-started"
    total = len(recording.steps)
    points = sorted({0, total // 3, 2 * total // 3})
    with watched():
        env.reset(recording.seed)
    states, position = dict[int, tuple[Any, bytes, State]](), 0
    for point in points:
        where = follow(env, recording, position, point)
        if where is not None:
            return "failed", f"get_state disturbs the environment: a run in which it was called differs in {where}"
        with watched():
            state = env.get_state()
            states[point] = state, digest(state), round_trip(state)
        position = point
    where = follow(env, recording, position, total)
    if where is not None:
        return "failed", f"get_state disturbs the environment: a run in which it was called differs in {where}"
    return _continues(instances.new(), recording, states, kind)


def _continues(
    other: VectorEnv, recording: Recording, states: dict[int, tuple[Any, bytes, State]], kind: str
) -> tuple[Status, str]:
    total, size = len(recording.steps), 0
    for point, (state, before, restored) in states.items():
        if digest(state) != before:
            return "failed", f"the state taken at vector step {point} changed while the environment went on"
        with watched():
            other.set_state(restored)
        where = follow(other, recording, point, min(total, point + max(100, total // 2)))
        if where is not None:
            return "failed", f"restored at vector step {point} it goes on differently, first in {where}"
        size = max(size, _num_bytes(state))
    points = ", ".join(map(str, states))
    return "ok", f"{kind}: restored at vector steps {points} in a new instance it goes on to the bit ({size:,} bytes)"


def _num_bytes(state: State) -> int:
    """Return about how much room a state takes: arrays by their bytes, everything else as 8."""
    leaves = (leaf for _, leaf in tree_leaves(state))
    return sum(leaf.nbytes if isinstance(leaf, Tensor | np.ndarray) else 8 for leaf in leaves)
