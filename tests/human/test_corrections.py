"""Experts as teachers and operators beside a policy, from YAML to what lies in buffers and on disk."""

import json

import numpy as np
import pytest
import torch

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError
from rl_lab.tracking.fingerprint import fingerprint
from tests.workflows.teaching import TINY, composed, train

torch.set_num_threads(1)
CUT = "training.checkpoint_frequency=20"  # env steps: cuts what is collected
IMPATIENT = (
    *("training.operator.patience_steps=3", "training.operator.reaction_steps=1", "training.operator.noise=0.0"),
    "training.operator.max_correction_steps=6",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return train(composed("corrected_insertion", root, *TINY, CUT, *IMPATIENT), root, "whole")


def recorded(run):
    return list(read_episodes(run.path / "buffers" / "demonstrations" / "dataset"))


def test_every_step_tells_who_acted_and_every_episode_what_was_said(whole):
    episodes = recorded(whole)
    assert len(episodes) >= 2
    assert {episode.task for episode in episodes} == {"insert the peg into the hole"}
    flags = [episode.infos["is_intervention"] for episode in episodes]
    assert {float(flag) for each in flags for flag in each} <= {0.0, 1.0}
    for episode in episodes:
        verdicts = episode.infos["verdict"]
        assert (verdicts[:-1] == 0.0).all()
        assert verdicts[-1] == (1.0 if episode.terminated else -1.0)  # of this task the human judges well
    rows = [json.loads(line) for line in whole.metrics_file.read_text().splitlines()]
    shares = [row["collect/interventions"] for row in rows if "collect/interventions" in row]
    assert max(shares) > 0.0


def test_resume_is_exact(whole, tmp_path):
    config = composed("corrected_insertion", tmp_path, *TINY, CUT, *IMPATIENT)
    run = train(config, tmp_path, "halves", stop_at=9)
    assert fingerprint(run) != fingerprint(whole)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    pairs = zip(recorded(run), recorded(whole), strict=True)
    for ours, theirs in pairs:
        assert np.array_equal(ours.observations, theirs.observations)
        assert np.array_equal(ours.infos["is_intervention"], theirs.infos["is_intervention"])


@pytest.mark.parametrize(
    ("experiment", "override", "line"),
    [
        ("bc_insertion", "training.teacher.run=x", "training.teacher: give run .* or expert .*, one of them"),
        ("bc_insertion", "training.teacher.expert=null", "training.teacher: give run .* or expert .*, one of them"),
        ("bc_insertion", "training.teacher.expert.nois=1", "training.teacher.expert: unknown argument of Insertion"),
        (
            "bc_insertion",
            "training.teacher.expert={_target_: torch.nn.Identity}",
            "training.teacher.expert._target_: 'torch.nn.Identity' is not a subclass of Workflow",
        ),
        (
            "corrected_insertion",
            "training.operator={_target_: torch.nn.Identity}",
            "training.operator._target_: 'torch.nn.Identity' is not a subclass of Operator",
        ),
        (
            "ppo_pendulum",
            "training.operator={_target_: rl_lab.human.simulated.SimulatedHuman, "
            "expert: {_target_: rl_lab.human.experts.InsertionExpert}}",
            "training.operator: PPO learns from rollouts of its own in phase .*, where no operator may act",
        ),
        (
            "bc_insertion",
            "environment=pendulum|buffers.demonstrations.format=lab",
            r"InsertionExpert gives 3 numbers; 'Pendulum-v1' takes",
        ),
    ],
)
def test_bad_input_is_one_line(experiment, override, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as caught:
        assemble(composed(experiment, tmp_path, *TINY, *override.split("|")), Targets(AllowList()))
    assert "\n" not in str(caught.value)
