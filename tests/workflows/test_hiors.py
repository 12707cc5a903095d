"""Hi-ORS: its weighted loss, rate and chunks against plain loops, what it learns from, and that it resumes exactly."""

import copy
import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.buffers.rejection import RejectionBuffer
from rl_lab.buffers.storage.acceptance import Acceptance
from rl_lab.components.action_mlp import ActionMLP
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.targets import Targets
from rl_lab.core import (
    Box,
    ConfigError,
    EnvSpec,
    HookCall,
    Named,
    Optimizers,
    Phase,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from rl_lab.environments.multigoal import MultiGoal
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.workflows.hiors import HiORS
from tests.buffers.test_rejection import judged
from tests.workflows.teaching import TINY, composed, newest_state, train

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((1,)), Box((1,), low=-5.0, high=5.0))
RULE = Acceptance((0.0,), discount=0.9)


def phase(progress=0.0):
    calls = (HookCall("update_policy", is_update=True),)
    return Phase("practise", "offline", calls, "updates", 100, buffer="accepted", progress=progress)


def accepted(rule=RULE, chunk=4):
    buffer = RejectionBuffer(1000, 16, rule, history=1, chunk_length=chunk, num_envs=3, seed=1)
    trajectory = judged(60)
    trajectory["actions"] = trajectory["actions"].float()[..., None] - 2.0
    buffer.add(trajectory)
    return buffer


def make_policy(buffer=None, *, seed=0, spec=SPEC, hidden=(16,), lr=1e-2, **options):
    """Return an initialised policy for chunks of 4 actions; the same seed gives the same parameters."""
    seed_everything(seed)
    workflow = HiORS(**{"prediction_horizon": 4, "action_horizon": [1, 3], "warmup_updates": 2} | options)
    generator = FlowMatching(ActionMLP(hidden, level_dim=8), num_sampling_steps=5 if len(hidden) > 1 else 3)
    workflow.initialize(
        WorkflowContext(
            config={},
            device=torch.device("cpu"),
            spec=spec,
            num_envs=4,
            components=Named("component", {"generator": generator}),
            controllers=Named("controller", {}),
            optimizers=Optimizers({"policy": partial(torch.optim.AdamW, lr=lr, weight_decay=0.1, fused=True)}),
            buffers=Named("buffer", {"accepted": buffer or accepted()}),
            rng=RngStreams(seed),
        )
    )
    return workflow


def weights_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize(("power", "mask", "parts"), [(1.0, True, [16]), (2.0, False, [6, 5, 5]), (0.0, True, [16])])
def test_updates_against_a_plain_loop(power, mask, parts):
    buffer, options = accepted(), {"decay_updates": 4, "max_grad_norm": None, "accumulation": len(parts)}
    workflow = make_policy(buffer, score_power=power, mask_padding=mask, **options)
    policy = copy.deepcopy(workflow.agent.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1)
    low, high = buffer.limits("observations")
    for update, rate in enumerate([1e-2 / 3, 2e-2 / 3, 1e-2, 5.5e-3, 1e-3]):  # up in 2, down to a tenth at 4
        batch = buffer.sample()
        torch.manual_seed(update)
        metrics = workflow.update_policy(batch, phase=phase(0.9))  # of the phase nothing depends on
        torch.manual_seed(update)
        drawn = [(torch.rand(size), torch.randn(size, 4, 1)) for size in parts]
        uniform, noise = (torch.cat(each) for each in zip(*drawn, strict=True))
        total, weight = 0.0, 0.0
        for row in range(16):
            level = uniform[row] ** (1 / 1.5) * 0.999 + 0.001
            action, seen = batch["actions"][row] / 2.0, 2 * (batch["observations"][row] - low) / (high - low) - 1
            mixed = level * noise[row] + (1 - level) * action
            found = policy.generator.network(mixed[None], level[None], seen.reshape(1, 1))
            errors = (found[0, :, 0] - (noise[row] - action)[:, 0]).square()
            for step in range(4):
                if not (mask and batch["is_pad"][row, step]):
                    worth = float(batch["scores"][row]) ** power
                    total, weight = total + worth * errors[step], weight + worth
        loss = total / weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-4)
        assert weights_of(workflow.agent.policy).numpy() == pytest.approx(weights_of(policy).numpy(), abs=2e-5)


def test_golden_losses():
    buffer = accepted()
    workflow = make_policy(buffer)
    found = [workflow.update_policy(buffer.sample(), phase=phase())["loss"].item() for _ in range(3)]
    assert found == pytest.approx([2.078178, 1.349155, 1.508845], rel=2e-3)


def test_same_seed_same_policy_other_seed_another():
    runs = []
    for seed in (3, 3, 4):
        buffer = accepted()
        workflow = make_policy(buffer, seed=seed)
        for _ in range(3):
            workflow.update_policy(buffer.sample(), phase=phase())
        actions, _, carry = act(workflow, workflow.initial_carry(4), True)
        runs.append(torch.cat([weights_of(workflow), actions.flatten(), carry["left"].float()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def act(workflow, carry, is_first):
    obs, first = torch.zeros(4, 1), torch.full((4,), is_first)
    return workflow.act(obs, carry, is_first=first, explore=True, step=0)


def test_a_correction_ends_the_chunk_of_the_copy_that_was_corrected():
    workflow = make_policy(action_horizon=4)
    proposed, _, carry = act(workflow, workflow.initial_carry(4), True)
    assert torch.equal(workflow.took(carry, proposed)["left"], torch.full((4,), 3))
    taken = proposed.clone()
    taken[1] += 0.5
    carry = workflow.took(carry, taken)
    assert carry["left"].tolist() == [3, 0, 3, 3]
    before = carry["queue"].clone()
    proposed, _, carry = act(workflow, carry, False)
    assert carry["left"].tolist() == [2, 3, 2, 2]
    assert [bool((before[n] == carry["queue"][n]).all()) for n in range(4)] == [True, False, True, True]
    assert torch.equal(proposed[[0, 2, 3]], before[[0, 2, 3], 1])


def roads(rule, chunk=8):
    """The packaged ways to the east and to the west, of which a human calls only those to the east a success."""
    buffer = RejectionBuffer(20_000, 64, rule, history=1, chunk_length=chunk, seed=0)
    for episode in read_episodes("packaged/two_roads"):
        count, ends = len(episode), torch.arange(len(episode)) == len(episode) - 1
        states = torch.tensor(np.concatenate([episode.observations, episode.final_observation[None]]))[:, None]
        verdict = 1.0 if episode.final_observation[0] > 0 else -1.0
        buffer.add(
            {
                "observations": states[:-1],
                "final_observations": states[1:],
                "actions": torch.tensor(episode.actions)[:, None],
                "rewards": torch.zeros(count, 1),
                "terminated": ends[:, None],
                "truncated": torch.zeros(count, 1, dtype=torch.bool),
                "is_first": (torch.arange(count) == 0)[:, None],
                "infos": {"verdict": (verdict * ends)[:, None]},
            }
        )
    return buffer


@pytest.mark.parametrize(("threshold", "lowest_west", "highest_west"), [(1.0, 0.0, 0.02), (0.0, 0.2, 0.8)])
def test_what_is_refused_is_not_learned(threshold, lowest_west, highest_west):
    buffer = roads(Acceptance((threshold,)))
    workflow = make_policy(
        buffer,
        spec=MultiGoal(1).spec,
        hidden=(128, 128),
        lr=3e-3,
        prediction_horizon=8,
        action_horizon=[2, 6],
        average_most=0.98,
        score_power=1.0 if threshold else 0.0,
    )
    for _ in range(600):
        workflow.update_policy(buffer.sample(), phase=phase())
    found = Evaluator(MultiGoal(64, report_goals=True), 64, RngStreams(0)).evaluate(workflow, step=0)
    assert found["info/at_east"] + found["info/at_west"] > 0.85
    assert lowest_west <= found["info/at_west"] <= highest_west


@pytest.mark.learning
def test_practice_beside_a_human_beats_its_warm_start(tmp_path):
    run = train(composed("hiors_insertion", tmp_path, "+logging=quiet"), tmp_path, "run")
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    shares = [row["eval/info/is_success"] for row in rows if "eval/info/is_success" in row]
    assert shares[-1] >= shares[0] + 0.2


CUT = "training.checkpoint_frequency=20"  # env steps: cuts what is collected
IMPATIENT = (
    *("training.operator.patience_steps=2", "training.operator.reaction_steps=1", "training.operator.noise=0.0"),
    *("training.operator.max_correction_steps=8", "environment.env_kwargs.max_episode_steps=30"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return train(composed("hiors_insertion", root, *TINY, CUT, *IMPATIENT), root, "whole")


def test_resume_is_exact_in_the_middle_of_a_correction_and_of_a_chunk(whole, tmp_path):
    config = composed("hiors_insertion", tmp_path, *TINY, CUT, *IMPATIENT)
    run = train(config, tmp_path, "halves", stop_at=22)
    carry = newest_state(run)["collector"]["carry"]
    assert carry["operator"]["is_acting"].any()
    assert carry["policy"]["student"]["left"].any()
    assert fingerprint(run) != fingerprint(whole)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


SHORT = (
    *(
        "+logging=quiet",
        "logging.every_updates=1",
        "environment.num_envs=4",
        "environment.env_kwargs.max_episode_steps=30",
    ),
    *("training.phases.1={name: warm_start, buffer: accepted, duration_updates: 4, workflow_hooks: [update_policy]}",),
    "training.phases.2={name: practise, buffer: accepted, teacher_share: 0.0, duration_cycles: 2, "
    "workflow_hooks: [{collect: 40}, {update_policy: 2}]}",
)


@pytest.mark.parametrize("takeovers", [0, 3])
def test_refused_episodes_are_on_disk_and_not_learned_from(takeovers, tmp_path):
    limit = f"training.operator.max_takeovers={takeovers}"
    run = train(composed("hiors_insertion", tmp_path, *SHORT, *IMPATIENT[:4], limit), tmp_path, "short")
    episodes = list(read_episodes(run.path / "buffers" / "accepted" / "dataset"))
    last = [json.loads(line) for line in run.metrics_file.read_text().splitlines()][-1]
    verdicts = np.array([episode.infos["verdict"][-1] for episode in episodes])
    assert (verdicts < 0).any()
    assert last["buffer/accepted/recorded"] == len(episodes)
    assert last["buffer/accepted/accepted"] == (verdicts > 0).sum() == last["buffer/accepted/episodes"]
    assert last["buffer/accepted/refused"] == (verdicts < 0).sum()
    assert any(episode.infos["is_intervention"].any() for episode in episodes) == (takeovers > 0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"action_horizon": 5}, r"^algorithm.action_horizon: 5 actions are more than prediction_horizon=4"),
        (
            {"action_horizon": [3, 2]},
            r"^algorithm.action_horizon: needs a number, or the least and the most, not \[3, 2\]$",
        ),
        (
            {"action_horizon": [1, 2, 3]},
            r"^algorithm.action_horizon: needs a number, or the least and the most, not \[1, ",
        ),
        ({"decay_updates": 2}, r"^algorithm.decay_updates: 2 must be more than warmup_updates=2$"),
    ],
)
def test_wrong_options_are_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        make_policy(**options)


RULES = "buffers.accepted.into.acceptance"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (f"{RULES}.thresholds=[0.5,0.4]", "^acceptance.thresholds: must not fall, but 0.4 comes after 0.5$"),
        (
            f"{RULES}.min_steps=101",
            "buffers.accepted.into.*min_steps: 101 steps are longer than any episode of 'cell/Ins",
        ),
        (f"+{RULES}.no_op=1", f"{RULES}: unknown argument of Acceptance 'no_op'"),
        (f"{RULES}.discount=1.5", f"{RULES}.discount"),
        (f"{RULES}.label=reward_", f"{RULES}.label"),
        ("+algorithm.score_weight=2", "algorithm: unknown argument of HiORS 'score_weight'"),
        ("algorithm.action_horizon=[5,64]", "algorithm.action_horizon: 64 actions are more than prediction_horizon"),
        ("algorithm.action_horizon=0", "algorithm.action_horizon"),
    ],
)
def test_wrong_configs_are_one_line(override, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as caught:
        assemble(composed("hiors_insertion", tmp_path, override), Targets(AllowList()))
    assert "\n" not in str(caught.value)


def test_a_buffer_without_scores_is_one_line():
    batch = {key: value for key, value in accepted().sample().items() if key != "scores"}
    with pytest.raises(
        ConfigError, match=r"^algorithm.score_power: the buffer gives no scores, as a RejectionBuffer doe"
    ):
        make_policy().update_policy(batch, phase=phase())
    assert math.isfinite(make_policy(score_power=0.0).update_policy(batch, phase=phase())["loss"])
    with pytest.raises(ConfigError, match=r"its buffer has chunk_length=8$"):
        make_policy().update_policy(accepted(chunk=8).sample(), phase=phase())
