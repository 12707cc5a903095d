"""TD3 learns, resumes and compiles: whole runs in seconds."""

import pytest
import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.components.action_values import ValueRange
from rl_lab.core import RngStreams
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.static_step import StaticSteps, missing_compiler
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from tests.workflows.off_policy import networks, phase, random_batch, resumes_exactly, score, train
from tests.workflows.test_td3 import FAST, SPEC, make_td3, parameters

torch.set_num_threads(1)
TASK = {"kind": "continuous", "sizes": (1, 1)}


@pytest.mark.parametrize(
    "options",
    [
        {"noise_std": 0.3},
        {"noise": "ou", "policy_delay": 1, "target_noise": 0.0},
        {"noise_std_max": 0.5, "value_range": ValueRange(-2.0, 1.0, 31), **FAST},
    ],
    ids=["td3", "ddpg", "fast"],
)
def test_identity_is_learned(options):
    env = Identity(8, **TASK)
    workflow = make_td3(env.spec, hidden=(32, 32), num_envs=8, lr=3e-3, random_steps=200, **options)
    buffer = ReplayBuffer(10_000, 64, gamma=0.0, num_envs=8, spec=env.spec)
    train(workflow, env, env_steps=2000, updates_per_step=0.25, buffer=buffer)
    assert score(workflow, Identity(8, **TASK)) > 0.97


@pytest.mark.parametrize("experiment", ["ddpg_pendulum", "fast_td3_pendulum_tensor"])
def test_resume_is_exact_noise_included(experiment, tmp_path):
    assert resumes_exactly([f"+experiment={experiment}"], tmp_path, stop_at=100)
    halves, whole = (RunDirectory.open(path) for path in sorted(tmp_path.iterdir()))
    assert halves.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    state = CheckpointStore(halves.checkpoints).load_newest().state
    assert (state["collector"]["carry"]["noise"] != 0).all()  # a process on its way, and sizes that were drawn


@pytest.mark.skipif(missing_compiler() is not None, reason="torch's compiler needs a C++ compiler")
def test_compiled_updates_equal_eager_ones():
    runs = []
    for execution in ("eager", "compiled"):
        # With a delay of 1 there is one function to compile; it holds all that the other one does.
        options = {"policy_delay": 1, "normalize_observations": True, "value_range": ValueRange(-3.0, 3.0, 11)}
        workflow = make_td3(static=StaticSteps(execution), **options)
        for seed in range(3):
            torch.manual_seed(seed)
            metrics = workflow.update_agent(random_batch(SPEC, seed=seed), phase=phase())
        runs.append((parameters(workflow), metrics))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-5)
    for name, value in runs[0][1].items():
        torch.testing.assert_close(value, runs[1][1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.learning
def test_pendulum_is_learned():
    env = Pendulum(4)
    workflow = make_td3(env.spec, lambda: networks(env.spec, (64, 64)), lr=1e-3, gamma=0.98, random_steps=1000)
    train(workflow, env, env_steps=12_000, start_at=1000)
    assert Evaluator(Pendulum(50), 100, RngStreams(0)).evaluate(workflow, step=10**9)["return"] > -250
