"""Steps that overlap with updates: fixed in order, exact over every interruption, and no new way to hang or to fail."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.build import assemble
from rl_lab.config.build import build as build_run
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError, EnvironmentFault, hook
from rl_lab.environments.counting import STEP, Counting
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.identity import Identity
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.overlap import BackgroundEnv
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory
from tests.config.tiny import PLUGIN
from tests.orchestration.parts import Counter, no_timer
from tests.orchestration.test_orchestrator import NUM_ENVS, build, rows

WAIT_S = 20.0  # long enough for a busy machine; only a broken test waits for it
PHASES = [
    {"name": "train", "duration_steps": 12, "hooks": ["collect", "update_policy", {"evaluate": {"every_steps": 6}}]},
    {"name": "more", "duration_steps": 12, "hooks": [{"collect": 2}, "update_policy", "refresh"]},
]
ENVIRONMENTS = {
    "tensor": lambda: Counting(NUM_ENVS, min_length=2, max_length=4),
    "random tensor": lambda: Identity(NUM_ENVS, sizes=(4,), max_episode_steps=3),
    "hosted": lambda: GymnasiumEnv("CartPole-v1", NUM_ENVS, env_kwargs={"max_episode_steps": 3}),
}


class Versioned(Counter):
    """Records how many updates it has done when it acts."""

    def act(self, *args, **kwargs):
        actions, extras, carry = super().act(*args, **kwargs)
        return actions, {**extras, "version": torch.full_like(actions, len(self.calls))}, carry


class Kept(ReplayBuffer):
    """Remembers what was added, row by row."""

    def __init__(self, **options):
        super().__init__(64, 4, num_envs=NUM_ENVS, **options)
        self.rows = []

    def add(self, trajectory):
        super().add(trajectory)
        self.rows += [{key: value[t] for key, value in trajectory.items()} for t in range(len(trajectory["rewards"]))]


def orchestrator(path, env, *, overlap="strict", workflow=None, phases=PHASES, seed=0, buffer=None, **options):
    workflow = workflow or Versioned(2)
    buffers = {"replay": buffer or Kept()}
    made = build(path, seed=seed, phases=phases, workflow=workflow, buffers=buffers, **options)
    made.collector = Collector(env, 11, made.tracker.timer, overlap=overlap)
    made.evaluator.env = Counting(2, num_actions=2)
    return made


def versions(run):
    return [int(row["version"][0]) for row in run.context.buffers["replay"].rows]


def same_run(path, other):
    a, b = (fingerprint(RunDirectory.open(p)) for p in (path, other))
    return a == b and rows(path) == rows(other)


def test_actions_are_chosen_before_the_updates_they_run_beside(tmp_path):
    phases = [{"name": "train", "duration_steps": 6 * NUM_ENVS, "hooks": ["collect", "update_policy"]}]
    runs = {}
    for overlap in (None, "strict"):
        runs[overlap] = orchestrator(tmp_path / str(overlap), ENVIRONMENTS["tensor"](), overlap=overlap, phases=phases)
        runs[overlap].run()
    # The buffer is ready after two vector steps (6 of 4 rows), so the first cycle updates nothing.
    assert versions(runs[None]) == [0, 0, 1, 2, 3, 4]
    assert versions(runs["strict"]) == [0, 0, 0, 1, 2, 3]
    assert runs["strict"].counters == runs[None].counters


def test_in_a_rollout_only_the_first_action_is_older(tmp_path):
    phases = [{"name": "train", "duration_steps": 9 * NUM_ENVS, "hooks": [{"collect": 3}, "update_policy"]}]
    run = orchestrator(tmp_path / "run", ENVIRONMENTS["tensor"](), phases=phases)
    run.run()
    assert versions(run) == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_rows_are_those_of_the_environment(tmp_path):
    run = orchestrator(tmp_path / "run", ENVIRONMENTS["tensor"]())
    run.run()
    stored = run.context.buffers["replay"].rows
    assert [int(row["is_first"].sum()) for row in stored[:1]] == [NUM_ENVS]
    for before, after in pairwise(stored):
        done = before["terminated"] | before["truncated"]
        assert torch.equal(after["is_first"], done)
        assert torch.equal(after["observations"][~done], before["final_observations"][~done])
        assert torch.equal(after["count"], after["observations"][:, STEP] + 1)  # the carry follows its episodes
    assert not any(leaf.is_inference() for row in stored for leaf in row.values())


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_run_interrupted_anywhere_ends_in_the_same_bits(kind, tmp_path):
    """After every action, and within rollouts: one process saves and leaves, another goes on to the end."""
    whole = orchestrator(tmp_path / "whole", ENVIRONMENTS[kind](), cadence=CheckpointCadence(steps=5, minutes=1e-9))
    whole.run()
    entries = whole.checkpoints.entries()[:-1]
    assert len(entries) > 12
    undisturbed = orchestrator(tmp_path / "quiet", ENVIRONMENTS[kind](), cadence=CheckpointCadence())
    undisturbed.run()
    assert same_run(tmp_path / "quiet", tmp_path / "whole")
    for entry in entries:
        state = whole.checkpoints.load(entry.path).state
        assert state["collector"]["pending"]["step"]["rewards"].shape == (NUM_ENVS,)
        target = tmp_path / entry.path.name
        again = orchestrator(target, ENVIRONMENTS[kind](), seed=99, cadence=CheckpointCadence())
        for name in ("metrics.jsonl", "events.jsonl"):
            (target / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        again.restore(state)
        again.run()
        again.collector.env.close()
        assert same_run(target, tmp_path / "whole"), entry.path.name


class Slow(Counting):
    """Takes its time, another time at every step, and notes the thread it runs in."""

    def __init__(self, seed, longest_s=0.002):
        super().__init__(NUM_ENVS, min_length=2, max_length=4)
        self._delays, self._longest_s, self.threads = np.random.default_rng(seed), longest_s, set()

    def step(self, actions):
        self.threads.add(threading.current_thread().name)
        time.sleep(self._delays.uniform(0.5, 1.0) * self._longest_s)
        drawn = torch.from_numpy(np.random.random(NUM_ENVS)).float()  # a bad habit: NumPy's global stream
        time.sleep(self._delays.uniform(0.0, 1.0) * self._longest_s)
        step = super().step(actions)
        return step._replace(rewards=step.rewards + drawn)


def test_nothing_depends_on_how_long_a_step_takes(tmp_path):
    for longest_s in (0.0, 0.002, 0.02):
        env = Slow(0, longest_s)
        run = orchestrator(tmp_path / str(longest_s), env, cadence=CheckpointCadence())
        run.run()
        assert env.threads == {"environment"}
        assert same_run(tmp_path / str(longest_s), tmp_path / "0.0")


def test_evaluation_borrows_the_global_streams_only_when_no_step_can_draw_from_them(tmp_path):
    class Lurking(Slow):
        """Draws as soon as an evaluation has begun, if one begins soon."""

        def __init__(self, patience_s):
            super().__init__(0, 0.0)
            self.begun, self._patience_s = threading.Event(), patience_s

        def step(self, actions):
            self.begun.clear()
            self.begun.wait(self._patience_s)
            return super().step(actions)

    class Announcing(Counting):
        def __init__(self, begun):
            super().__init__(2)
            self._begun = begun

        def reset(self, seed):
            self._begun.set()
            time.sleep(0.005)
            return super().reset(seed)

    for patience_s in (0.0, 0.03):
        env = Lurking(patience_s)
        run = orchestrator(tmp_path / str(patience_s), env, cadence=CheckpointCadence())
        run.evaluator.env = Announcing(env.begun)
        run.run()
    assert same_run(tmp_path / "0.0", tmp_path / "0.03")


class Gate(Counting):
    """Its steps wait until an update is running, except the first three, which nothing runs beside."""

    def __init__(self):
        super().__init__(NUM_ENVS)
        self.is_updating, self.steps = threading.Event(), 0

    def step(self, actions):
        self.steps += 1
        if self.steps > 3:
            assert self.is_updating.wait(WAIT_S), "no update ran beside this step"
            self.is_updating.clear()
        return super().step(actions)


def test_a_step_runs_beside_the_update_and_its_rows_can_be_trained_on(tmp_path):
    env = Gate()

    class Opening(Counter):
        @hook
        def update_policy(self, batch, *, phase):
            env.is_updating.set()
            (batch["rewards"] * self.weight[0] + batch["count"]).sum().backward()
            return {}

    phases = [{"name": "train", "duration_steps": 6 * NUM_ENVS, "hooks": ["collect", "update_policy"]}]
    run = orchestrator(tmp_path / "run", env, workflow=Opening(), phases=phases, cadence=CheckpointCadence())
    run.run()
    assert env.steps == 7  # the last one is in the checkpoint and was not recorded


class Failing(Counting):
    """Raises at its fifth step."""

    def __init__(self, error=None):
        super().__init__(NUM_ENVS)
        self.error, self.steps, self.is_closed = error or RuntimeError("the motor\nis on fire"), 0, False

    def step(self, actions):
        self.steps += 1
        if self.steps == 5:
            raise self.error
        return super().step(actions)

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize("error", [RuntimeError("the motor\nis on fire"), EnvironmentFault("copy 2 is lost")])
def test_an_environment_that_raises_is_named_as_it_is_without(error, tmp_path):
    said, steps = [], []
    for overlap in (None, "strict"):
        env = Failing(error)
        run = orchestrator(tmp_path / str(overlap), env, overlap=overlap)
        with pytest.raises(EnvironmentFault) as caught:
            run.run()
        run.collector.env.close()
        assert env.is_closed
        events = [json.loads(line) for line in (tmp_path / str(overlap) / "events.jsonl").read_text().splitlines()]
        assert [event["reason"] for event in events if event["kind"] == "failed"] == [str(caught.value)]
        said.append(str(caught.value).replace(str(tmp_path / str(overlap)), ""))
        steps.append(run.counters.env_steps)
    assert said[0] == said[1]
    assert steps == [4 * NUM_ENVS, 4 * NUM_ENVS]


def test_a_checkpoint_over_a_failed_step_says_so(tmp_path):
    run = orchestrator(tmp_path / "run", Failing(), cadence=CheckpointCadence(steps=4 * NUM_ENVS))
    with pytest.raises(EnvironmentFault, match="'tensor/Counting' raised RuntimeError: the motor is on fire"):
        run.run()
    assert [entry.counters["env_steps"] for entry in run.checkpoints.entries()] == [2 * NUM_ENVS]  # the best so far
    run.collector.env.close()


def test_nan_of_a_step_ahead_is_named_with_its_env_step():
    class Broken(Counting):
        def _observe(self, state):
            return torch.where((state["elapsed"] == 2).unsqueeze(-1), torch.nan, super()._observe(state))

    workflow, said = Counter(), []
    for overlap in (None, "strict"):
        collector = Collector(Broken(NUM_ENVS), 0, no_timer, overlap=overlap)
        collector.collect(workflow, 1, env_steps=0, should_stop=lambda: False)
        with pytest.raises(EnvironmentFault, match="NaN or infinity in final_observations: copy 0, env step 3") as e:
            collector.collect(workflow, 1, env_steps=NUM_ENVS, should_stop=lambda: False)
        said.append(str(e.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_step_checkpoints_and_leaves(number, tmp_path):
    class Asking(Slow):
        def step(self, actions):
            step = super().step(actions)
            if self._state["episode"].sum() == 4 and not self.is_asked:
                self.is_asked = True
                os.kill(os.getpid(), number)
            return step

    env = Asking(0)
    env.is_asked = False
    first = orchestrator(tmp_path / "run", env)
    with pytest.raises(Interrupted) as caught:
        first.run()
    assert caught.value.exit_code == 128 + number
    first.collector.env.close()
    second = orchestrator(tmp_path / "run", Slow(5), seed=5)
    second.restore(first.checkpoints.load_newest().state)
    second.run()
    whole = orchestrator(tmp_path / "whole", Slow(7))
    whole.run()
    assert same_run(tmp_path / "run", tmp_path / "whole")


def test_closing_waits_for_the_running_step_and_frees_the_thread():
    before, env = set(threading.enumerate()), Slow(0)
    ahead = BackgroundEnv(env)
    (thread,) = set(threading.enumerate()) - before
    assert ahead.describe() == env.describe() == {}
    env.describe = lambda: {"joint_names": ["hip"]}
    assert ahead.describe() == {"joint_names": ["hip"]}
    ahead.reset(0)
    ahead.start(torch.zeros(NUM_ENVS, dtype=torch.int64))
    ahead.close()
    ahead.close()
    assert env._state["elapsed"].tolist() == [1] * NUM_ENVS
    assert not thread.is_alive()


def test_an_environment_that_nobody_closes_does_not_keep_the_process():
    code = """
import torch
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.overlap import BackgroundEnv
ahead = BackgroundEnv(Counting(2))
ahead.reset(0)
ahead.start(torch.zeros(2, dtype=torch.int64))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_every_call_is_made_by_the_same_thread_in_order():
    class Noting(Counting):
        seen = ()

        def _note(self, name):
            self.seen += ((name, threading.get_ident()),)

        def reset(self, seed):
            self._note("reset")
            return super().reset(seed)

        def step(self, actions):
            time.sleep(0.005)
            self._note("step")
            return super().step(actions)

        def get_state(self):
            self._note("get_state")
            return super().get_state()

        def set_state(self, state):
            self._note("set_state")
            super().set_state(state)

        def render(self):
            self._note("render")
            return super().render()

        def close(self):
            self._note("close")

    env = Noting(NUM_ENVS)
    ahead = BackgroundEnv(env)
    ahead.reset(0)
    ahead.start(torch.zeros(NUM_ENVS, dtype=torch.int64))
    state = ahead.get_state()
    assert ahead.render() is None
    assert ahead.finish().rewards.tolist() == [1.0] * NUM_ENVS
    ahead.set_state(state)
    ahead.step(torch.zeros(NUM_ENVS, dtype=torch.int64))
    ahead.close()
    names, threads = zip(*env.seen, strict=True)
    assert names == ("reset", "step", "get_state", "render", "set_state", "step", "close")
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    assert torch.equal(state["dynamics"]["elapsed"], torch.ones(NUM_ENVS, dtype=torch.int64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["tensor", "hosted"])
def test_on_a_gpu_rows_are_those_of_the_host(kind):
    """The update keeps the GPU busy while the step is on its way; nothing of the step is read or freed too early."""
    made = {}
    for device in ("cpu", "cuda"):
        env = Counting(64, device=device) if kind == "tensor" else GymnasiumEnv("CartPole-v1", 4, device=device)
        collector = Collector(env, 3, no_timer, overlap="strict")

        class Scripted(Counter):
            def act(self, obs, carry, *, is_first, explore, step):
                return (obs * 1e3).sum(-1).long() % 2, {}, carry

        work, trajectories = torch.ones(1024, 1024, device=device), []
        for step in range(30):
            result = collector.collect(Scripted(), 1, env_steps=step, should_stop=lambda: False)
            trajectories.append({key: value.cpu() for key, value in result.trajectory.items()})
            for _ in range(5 if device == "cuda" else 0):
                work = torch.relu(work @ work * 1e-3)
        env_state = collector.get_state()["pending"]["step"]["rewards"].cpu()
        collector.env.close()
        made[device] = [*trajectories, {"pending": env_state}]
    for a, b in zip(made["cpu"], made["cuda"], strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_option_reaches_the_collector_and_is_refused_on_policy(tmp_path):
    targets, threads = Targets(AllowList()), torch.get_num_threads()
    with pytest.raises(ConfigError, match="training.overlap: strict needs a replay buffer, but phase 'train' learns"):
        assemble(compose(["+experiment=ppo_cartpole", "training.overlap=strict"]), targets)
    for overlap, kind in (("null", GymnasiumEnv), ("strict", BackgroundEnv)):
        composed = compose(["+experiment=dqn_cartpole", "budget=tiny", f"training.overlap={overlap}"])
        made = build_run(assemble(composed, targets), RunDirectory.create(tmp_path, overlap, 1), quiet=True)
        assert type(made.collector.env) is kind
        made.collector.env.close()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "rollout",
    [
        ["buffers.rollout._target_=tiny_plugin.OwnRollout"],
        [
            "buffers.rollout._target_=rl_lab.buffers.union.UnionBuffer",
            "+buffers.rollout.batch_size=8",
            "+buffers.rollout.ratios={new: 1.0}",
            "+buffers.rollout.parts={new: {_target_: rl_lab.buffers.rollout.RolloutBuffer}}",
        ],
    ],
    ids=["subclass", "part of a union"],
)
def test_what_is_on_policy_says_so_itself(rollout):
    threads, targets = torch.get_num_threads(), Targets(AllowList(load_plugins([PLUGIN])))
    with pytest.raises(ConfigError, match="training.overlap: strict needs a replay buffer, but phase 'train' learns"):
        assemble(compose(["+experiment=ppo_cartpole", "training.overlap=strict", *rollout]), targets)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
