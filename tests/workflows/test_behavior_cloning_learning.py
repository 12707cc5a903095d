"""Behaviour cloning learns, resumes and compiles: whole runs in seconds."""

from functools import partial

import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.open import open_writer
from rl_lab.buffers.datasets.recorder import write_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import HookCall, LabError, Phase, RngStreams, Workflow
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.identity import CHOICES, NUMBERS, Identity
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.static_step import StaticSteps, missing_compiler
from rl_lab.orchestration.teacher import Mixture, Teacher
from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.jsonl import read_rows
from tests.workflows.off_policy import RESUMED, phase_of, random_batch, score
from tests.workflows.parts import collect, make_collector, make_ppo, trunks
from tests.workflows.parts import train as train_ppo
from tests.workflows.teaching import TINY, composed, newest_state, train
from tests.workflows.test_behavior_cloning import NUMBERS as SPEC
from tests.workflows.test_behavior_cloning import make_bc, parameters, update

torch.set_num_threads(1)


class Copycat(Workflow):
    """Does what the observation of an identity task says."""

    def __init__(self, kind):
        super().__init__()
        self._kind = kind

    def initialize(self, context): ...

    def act(self, obs, carry, *, is_first, explore, step):
        x = obs["observation"] if isinstance(obs, dict) else obs
        if self._kind == "continuous":
            return x, {}, None
        choices = torch.stack([part.argmax(-1) for part in x[:, :4].split(2, -1)], -1)
        if self._kind == "mixed":
            return {CHOICES: choices, NUMBERS: x[:, 4:]}, {}, None
        return choices if self._kind == "multi_discrete" else x.argmax(-1), {}, None


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("discrete", "gaussian"),
        ("multi_discrete", "gaussian"),
        ("continuous", "gaussian"),
        ("continuous", "squared"),
        ("mixed", "absolute"),
    ],
)
def test_identity_is_learned(kind, numbers):
    task = {"kind": kind, "sizes": (4,) if kind == "discrete" else (2, 2), "masked": kind == "discrete"}
    env = Identity(8, **task)
    workflow = make_bc(env.spec, hidden=(32,), lr=1e-2, numbers=numbers)
    buffer = ReplayBuffer(10_000, 64, num_envs=8, spec=env.spec)
    buffer.add(collect(make_collector(env), Copycat(kind), 100))
    for _ in range(200):
        metrics = update(workflow, buffer.sample())
    assert float(metrics.get("accuracy", 1.0)) > 0.98
    assert float(metrics.get("error", 0.0)) < 0.08
    assert score(workflow, Identity(8, **task)) > 0.98


def recorded(folder, steps=60, scale=1.0):
    """Return a dataset on disk of what somebody did who does what the observations say."""
    env = Identity(8, kind="continuous", sizes=(1, 1))
    rows = collect(make_collector(env), Copycat("continuous"), steps)
    with open_writer(folder / "demos", "lab") as writer:
        write_episodes([rows | {"actions": scale * rows["actions"]}], writer)
    return env.spec, str(folder / "demos")


def test_a_recorded_dataset_is_cloned(tmp_path):
    spec, path = recorded(tmp_path)
    buffer = DatasetBuffer(path, partial(EpisodeBuffer, batch_size=64, chunk_length=2, history=2), spec=spec)
    workflow = make_bc(spec, hidden=(32,), lr=1e-2, observation_horizon=2, prediction_horizon=2)
    for _ in range(150):
        update(workflow, buffer.sample())
    assert score(workflow, Identity(8, kind="continuous", sizes=(1, 1))) > 0.98  # its newest observation says it all


@pytest.mark.parametrize(
    ("scale", "spec", "options", "message"),
    [
        (3.0, None, {}, r"demos, episode 0: actions lie in \[-.*\], the environment takes \[-1, 1\]"),
        (1.0, SPEC, {}, r"demos, episode 0: observations are \[2\], the environment has \[3\]$"),
        (
            1.0,
            None,
            {"chunk_length": 11},
            r"into\.chunk_length=11 is longer than every episode of .*demos: the shortest has 10 steps, the longest",
        ),
        (1.0, None, {"history": 11}, r"into\.history=11 is longer than every episode of .*\(choose 10 or less\)$"),
    ],
)
def test_a_dataset_that_does_not_fit_is_one_line(tmp_path, scale, spec, options, message):
    own, path = recorded(tmp_path, scale=scale)
    with pytest.raises(LabError, match=message):
        DatasetBuffer(path, partial(EpisodeBuffer, batch_size=8, **options), spec=spec or own)


@pytest.mark.learning  # half a minute of compiling
@pytest.mark.skipif(missing_compiler() is not None, reason="torch's compiler needs a C++ compiler")
def test_compiled_updates_equal_eager_ones():
    runs = []
    for execution in ("eager", "compiled"):
        workflow = make_bc(static=StaticSteps(execution), normalize_observations=True, max_grad_norm=1.0)
        for seed in range(3):
            metrics = update(workflow, random_batch(SPEC, seed=seed))
        runs.append((parameters(workflow), metrics))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-5)
    for name, value in runs[0][1].items():
        torch.testing.assert_close(value, runs[1][1][name], rtol=1e-3, atol=1e-5)


def balance(workflow, episodes=20):
    return Evaluator(CartPole(20), episodes, RngStreams(5)).evaluate(workflow, step=0)["return"]


def test_a_clone_balances_as_long_as_its_teacher():
    env = CartPole(16)
    torch.manual_seed(3)
    options = {"gamma": 0.98, "gae_lambda": 0.8, "num_epochs": 10, "lr": 2.5e-3, "num_envs": 16}
    teacher = make_ppo(env.spec, trunks(env.spec, (32, 32)), **options)
    train_ppo(teacher, env, steps=64, updates=16)
    assert (best := balance(teacher)) > 150
    student = make_bc(env.spec, hidden=(32, 32), lr=3e-3)
    assert balance(student) < 120
    phase = Phase("p", "online", (HookCall("collect"),), "cycles", 1, options={"teacher_share": 1.0})
    mixture = Mixture(student, Teacher(teacher, "", "", 0, False, {"": ""}), env.device)
    collector = make_collector(env, 1)
    demonstrations = collector.collect(mixture.during(phase, 0), 200, env_steps=0, should_stop=lambda: False)
    buffer = ReplayBuffer(10_000, 128, num_envs=16, spec=env.spec)
    buffer.add(mixture.recorded(demonstrations).trajectory)
    for _ in range(300):
        update(student, buffer.sample())
    assert balance(student) > 0.85 * best


def test_resume_is_exact_in_every_phase(tmp_path):
    """A clone of a teacher that is stopped while it is shown, and while it is fitted."""
    config = composed("ppo_cartpole", tmp_path, *TINY)
    train(config, tmp_path, "teacher")
    config = composed("bc_cartpole", tmp_path, *TINY)
    whole, run = train(config, tmp_path, "whole"), None
    for name, actions in {"demonstrate": 1, "fit": 3}.items():
        run = train(config, tmp_path, "parts", stop_at=actions)
        assert phase_of(newest_state(run)) == name
    run = train(config, tmp_path, "parts")
    expected, state = newest_state(whole), newest_state(run)
    assert [key for key in (*RESUMED, "teacher") if tree_hash(expected[key]) != tree_hash(state[key])] == []
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


def evaluated(experiment, root, *overrides):
    """Run a packaged experiment to its end and return the mean return of its last evaluation."""
    run = train(composed(experiment, root, "logging=quiet", *overrides), root, f"{experiment}-{len(overrides)}")
    rows = [row for row in read_rows(run.metrics_file) if "eval/return" in row]
    return rows[-1]["eval/return"]


@pytest.mark.learning
def test_clones_reach_475_and_a_blind_student_needs_its_memory(tmp_path):
    assert evaluated("ppo_cartpole", tmp_path) > 475
    assert evaluated("bc_cartpole", tmp_path) > 475
    assert evaluated("distill_cartpole", tmp_path) > 475
    without = ["components.memory=null", "components.actor.input_dim=2"]
    without += ["+buffer@buffers.steps=replay", "buffers.demonstrations=null"]
    without += [f"training.phases.{index}.buffer=steps" for index in range(3)]
    assert evaluated("distill_cartpole", tmp_path, *without) < 200


@pytest.mark.learning
def test_students_swing_the_pendulum_up(tmp_path):
    best = evaluated("td3_pendulum", tmp_path)
    assert best > -250
    assert evaluated("dagger_pendulum", tmp_path) > best - 50
