"""`training.teacher`: found, pinned, loaded, resumed beside to the bit, and refused in one line."""

import shutil
from contextlib import closing

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.changes import changes
from rl_lab.config.resume import read_config, recompose
from rl_lab.config.targets import Targets
from rl_lab.core import CheckpointError, ConfigError
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory
from tests.workflows.teaching import TINY, composed, newest_state, train

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a teacher, a run of ppo_cartpole, and a blind student of it that has a memory."""
    folder = tmp_path_factory.mktemp("runs")
    train(composed("ppo_cartpole", folder, *TINY, "training.eval_frequency=128"), folder, "teacher")
    train(composed("distill_cartpole", folder, *TINY, CUT), folder, "blind")
    return folder


CUT = "training.checkpoint_frequency=20"  # env steps: cuts what is collected


def assembled(config, **options):
    return assemble(config, Targets(AllowList()), **options)


def test_a_teacher_is_found_by_its_experiment_and_pinned(root):
    parts = assembled(composed("bc_cartpole", root, *TINY))
    (checkpoint,) = CheckpointStore(root / "teacher" / "checkpoints").entries()
    pinned = parts.config["training"]["teacher"]
    assert (pinned["run"], pinned["checkpoint"]) == (str(root / "teacher"), checkpoint.path.name)
    assert parts.composed.training.teacher.run == str(root / "teacher")
    assert parts.teacher.step == 128
    assert not any(parameter.requires_grad for parameter in parts.teacher.workflow.parameters())
    state = newest_state(RunDirectory.open(root / "teacher"))["workflow"]
    for name, weight in parts.teacher.workflow.state_dict().items():
        assert torch.equal(weight, state[name])


def test_the_teacher_moves_no_random_stream(root):
    config, streams, weights = composed("bc_cartpole", root, *TINY), [], []
    for with_teacher in (False, True):
        parts = assembled(config, with_teacher=with_teacher)
        assert (parts.teacher is not None) == with_teacher
        streams.append(torch.get_rng_state())
        weights.append(torch.cat([parameter.detach().flatten() for parameter in parts.workflow.parameters()]))
    assert torch.equal(*streams)
    assert torch.equal(*weights)


def test_resume_is_exact(root, tmp_path):
    config, whole = composed("distill_cartpole", root, *TINY, CUT), RunDirectory.open(root / "blind")
    run = train(config, tmp_path, "halves", stop_at=9)  # within DAgger, beside updates
    assert fingerprint(run) != fingerprint(whole)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    assert "collect/teacher_share" in whole.metrics_file.read_text()


def test_a_student_can_teach_with_its_memory_and_what_it_may_see(root, tmp_path):
    options = (
        "training.teacher={run: distill_cartpole, observation_keys: null, privileged: [positions], mix: episode, "
        "explore: true}"
    )
    config = composed("distill_cartpole", root, *TINY, options, "components.memory.input_dim=4", "experiment.name=x")
    whole = train(config, tmp_path, "whole")
    run = train(config, tmp_path, "halves", stop_at=9)
    carry = newest_state(run)["collector"]["carry"]
    assert carry["teacher"].shape == carry["student"].shape == (4, 64)
    assert carry["teacher"].abs().max() > 0  # in the middle of an episode
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    parts = assembled(recompose(run))
    assert dict(parts.teacher.reads) == {"positions": "positions"}
    assert list(parts.context.spec.observation) == ["state"]


def restored(run, *overrides):
    """Go on from a run's checkpoint with other overrides, as far as restoring."""
    parts = assembled(recompose(run, overrides))
    with closing(parts.env):
        assert changes(read_config(run), parts.config) == []
        orchestrator = build(parts, run)
        with closing(orchestrator.evaluator.env):
            orchestrator.restore(newest_state(run))


def test_a_resume_wants_the_teacher_it_had_wherever_that_lies_now(root, tmp_path):
    run, old, other = (
        RunDirectory.open(shutil.copytree(root / "blind", tmp_path / "run")),
        tmp_path / "old",
        tmp_path / "b",
    )
    for path in (old, other):
        shutil.copytree(root / "teacher", path)
    restored(run, f"training.teacher.run={old}")
    store = CheckpointStore(other / "checkpoints")
    state = newest_state(RunDirectory.open(other))
    name = next(iter(state["workflow"]))
    state["workflow"][name] = state["workflow"][name] + 1.0
    store.save(state, counters=state["counters"], phase="train")
    with pytest.raises(CheckpointError, match=r"made beside .*teacher/checkpoints.*/b/checkpoints.* has other weights"):
        restored(run, f"training.teacher.run={other}", "training.teacher.checkpoint=latest")
    with pytest.raises(ConfigError, match=r"^training\.teacher: no run directory at .*gone "):
        restored(run, f"training.teacher.run={tmp_path / 'gone'}")


def test_a_student_is_evaluated_without_its_teacher(root, tmp_path):
    path = shutil.copytree(root / "blind", tmp_path / "student")
    for name in ("composed.yaml", "config.yaml"):
        text = (path / name).read_text()
        (path / name).write_text(text.replace(str(root / "teacher"), "gone"))
    result = CliRunner().invoke(app, ["evaluate", str(path), "--episodes", "2"])
    assert result.exit_code == 0, result.output


def test_who_does_not_imitate_may_watch_a_teacher(root, tmp_path):
    hooks = "workflow_hooks: [collect, {update_agent: 1}]"
    phase = f"training.phases=[{{name: watch, buffer: replay, teacher_share: [1, 0], duration_steps: 64, {hooks}}}]"
    run = train(
        composed("dqn_cartpole", root, *TINY, phase, "training.teacher={run: ppo_cartpole}"), tmp_path, "watching"
    )
    state = newest_state(run)
    assert state["counters"]["updates"] > 0
    rows = state["buffers"]["replay"]["transitions"]["rows"]
    assert "teacher_actions" in str(rows)


# Bad input: all of it is refused in tests/orchestration/test_teacher.py too; here, as a user meets it.


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("bc_cartpole", "training.teacher.run=nobody"),
            "training.teacher: unknown run in {root}: 'nobody' (choices: ",
        ),
        (("bc_cartpole", "training.teacher.checkpoint=000099"), "training.teacher: no checkpoint at {root}/teacher/"),
        (("bc_cartpole", "+training.teacher.runs=x"), "unknown key in training.teacher 'runs'; did you mean 'run'? ("),
        (
            ("dagger_pendulum", "training.teacher.run=ppo_cartpole"),
            "training.teacher: {root}/teacher/checkpoints/000001 acts by one of 2 choices in 'CartPole-v1', but "
            "'Pendulum-v1' takes [1] numbers in [-2, 2]",
        ),
        (
            ("bc_cartpole", "training.phases.0.teacher_share=1.5"),
            "teacher_share of phase 'demonstrate' must be a number from 0 to 1 or [begin, end], not 1.5",
        ),
        (
            ("bc_cartpole", "algorithm.prediction_horizon=600"),
            "algorithm.prediction_horizon: 600 steps are longer than any episode of 'CartPole-v1' (500 steps)",
        ),
    ],
)
def test_bad_input_dies_in_one_line(root, overrides, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment, *others = overrides
    arguments = ["train", f"+experiment={experiment}", f"experiment.root={root}", *others]
    before = sorted(root.iterdir())
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert (sorted(root.iterdir()), list(tmp_path.iterdir())) == (before, [])  # nothing is left on disk
    (line,) = result.output.strip().splitlines()
    assert line.removeprefix("error: ").startswith(text.format(root=root))


TEACHERS = [
    ("dqn_cartpole", "bc_cartpole"),
    ("sac_cartpole", "bc_cartpole"),
    ("ppo_cartpole_recurrent", "bc_cartpole"),
    ("dreamer_cartpole", "bc_cartpole"),
    ("planet_cartpole", "bc_cartpole"),
    ("tdmpc2_cartpole", "bc_cartpole"),
    ("world_models_cartpole", "bc_cartpole"),
    ("bc_cartpole", "distill_cartpole"),
    ("td3_pendulum", "distill_diffusion_pendulum"),
    ("sql_pendulum", "dagger_pendulum"),
    ("distill_diffusion_pendulum", "dagger_pendulum"),
]


@pytest.mark.learning  # nothing is learned, but it takes minutes
@pytest.mark.parametrize(("teacher", "student"), TEACHERS)
def test_whoever_can_act_can_teach(teacher, student, tmp_path):
    config = composed(teacher, tmp_path, *TINY)
    if config.training.teacher is not None:
        first = config.training.teacher.run
        train(composed(first, tmp_path, *TINY), tmp_path, first)
    train(config, tmp_path, teacher)
    # The student acts half of the time: a teacher that remembers must go on from what was done.
    share = "training.phases.0.teacher_share=0.5"
    taught = composed(
        student, tmp_path, *TINY, CUT, share, f"training.teacher.run={teacher}", "experiment.name=student"
    )
    whole = train(taught, tmp_path, "whole")
    run = train(taught, tmp_path, "halves", stop_at=2)  # within the demonstrations
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
