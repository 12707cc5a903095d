"""Rewards by a classifier's word: when an episode ends, what is refused, and that a run with it resumes exactly."""

import json
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.classified_reward import ClassifiedReward, load_classifier
from rl_lab.tracking.fingerprint import fingerprint
from tests.workflows.teaching import TINY, composed, train

torch.set_num_threads(1)
NODE = "_target_: rl_lab.human.classified_reward.ClassifiedReward, _partial_: true"
CLASSIFIER = ("components.classifier.hidden_dims=[8]", "training.checkpoint_frequency=null")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a classifier whose head says: success where the third number of the state is positive."""
    root = tmp_path_factory.mktemp("runs")
    return train(composed("reward_classifier_insertion", root, *TINY, *CLASSIFIER), root, "classifier").path


class Line(gymnasium.Env):
    """Shows the same 12 numbers, but for the third one, which is what it is told; ten steps."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (12,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(-1.0), {}

    def step(self, action):
        self.steps += 1
        return self._seen(float(action[0])), 7.0, False, self.steps >= 10, {"other": 1}

    def _seen(self, value):
        obs = np.zeros(12, np.float32)
        obs[2] = value
        return obs


def wrapped(run, sharpness=40.0, **options):
    env = ClassifiedReward(Line(), run=str(run), **options)
    env._classifier.forward = lambda obs: torch.stack([torch.zeros(len(obs)), sharpness * obs[:, 2]], -1)
    return env


def walk(env, values):
    env.reset()
    return [env.step(np.array([value], np.float32)) for value in values]


def test_a_success_gives_one_and_ends_the_episode(trained):
    outcomes = walk(wrapped(trained), [-1.0, -0.5, 0.5])
    assert [reward for _, reward, *_ in outcomes] == [0.0, 0.0, 1.0]
    assert [terminated for _, _, terminated, _, _ in outcomes] == [False, False, True]
    assert outcomes[2][4] == {"other": 1, "classified": pytest.approx(1.0)}


def test_it_must_be_seen_so_often_in_a_row(trained):
    values = [0.5, 0.5, -0.5, 0.5, 0.5, 0.5]
    outcomes = walk(wrapped(trained, in_a_row=3), values)
    assert [reward for _, reward, *_ in outcomes] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    env = wrapped(trained, in_a_row=2, ends_episode=False)
    outcomes = walk(env, [0.5] * 10)
    assert [reward for _, reward, *_ in outcomes] == [0.0] + [1.0] * 9
    assert [outcome[2:4] for outcome in outcomes[-2:]] == [(False, False), (False, True)]
    env.reset()
    assert env.get_state()["streak"] == 0


def test_progress_sums_up_to_where_the_task_has_come(trained):
    values = [-0.02, 0.01, 0.0, 0.03]
    outcomes = walk(wrapped(trained, reward="progress", threshold=0.99), values)
    chances = [1 / (1 + np.exp(-40.0 * value)) for value in [-1.0, *values]]
    rewards = [reward for _, reward, *_ in outcomes]
    assert rewards == pytest.approx(np.diff(chances).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("success", (1.0, True, False)), ("failure", (0.0, True, False)), ("abort", (0.0, False, True))],
)
def test_a_persons_word_counts_more_than_the_classifiers(trained, word, outcome):
    sees_success, sees_failure = 0.5, -0.5
    for value in (sees_success, sees_failure):
        env = wrapped(trained, in_a_row=2)
        walk(env, [0.5])
        for unrelated in ("hold", "fresh"):
            env.instruct(unrelated)
        env.instruct(word)
        assert env.step(np.array([value], np.float32))[1:4] == outcome
        assert walk(env, [-0.5])[0][1:4] == (0.0, False, False)  # of the next episode nobody has spoken


def test_a_word_reaches_the_robot_below_and_decides_alike(trained):
    env = GymnasiumEnv(
        "cell/Insertion-v0", 1, wrappers=[partial(ClassifiedReward, run=str(trained), threshold=0.001)],
        info_keys=["is_success"],
    )  # fmt: skip
    for word, success in (("success", 1.0), ("failure", 0.0)):
        env.reset(0)
        assert env.instruct(word)
        step = env.step(torch.full((1, 3), 0.5))
        found = float(step.rewards), bool(step.terminated), float(step.infos["is_success"])
        assert found == (success, True, success)
    env.close()


def test_a_success_by_word_completes_the_progress(trained):
    env = wrapped(trained, reward="progress", threshold=0.99)
    first = walk(env, [0.01])[0][1]
    env.instruct("success")
    start = 1 / (1 + np.exp(40.0))
    assert first + env.step(np.array([-1.0], np.float32))[1] == pytest.approx(1.0 - start, abs=1e-5)


def test_state_goes_on_and_another_classifier_is_refused(trained):
    env, again = wrapped(trained, in_a_row=3), wrapped(trained, in_a_row=3)
    walk(env, [0.5, 0.5])
    again.reset()
    again.set_state(env.get_state())
    assert again.step(np.array([0.5], np.float32))[1] == 1.0
    with pytest.raises(EnvironmentFault, match="has other weights than when the run was saved"):
        again.set_state({**env.get_state(), "sha256": "0"})


def test_a_run_that_learns_from_it_resumes_exactly(trained, tmp_path):
    node = f"{{{NODE}, run: {trained}, in_a_row: 2}}"
    overrides = (*TINY, f"environment.wrappers=[{node}]", "environment.info_keys=[is_success,classified]",
                 "training.checkpoint_frequency=20")  # fmt: skip
    whole = train(composed("rlpd_insertion", tmp_path, *overrides), tmp_path, "whole")
    run = train(composed("rlpd_insertion", tmp_path, *overrides), tmp_path, "halves", stop_at=9)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"run": "nowhere"}, "no checkpoint in nowhere"),
        ({"threshold": 1.0}, "needs a threshold between 0 and 1"),
        ({"in_a_row": 0}, "in_a_row of 1 or more"),
        ({"reward": "best"}, "reward outcome or progress, not .* 'best'"),
    ],
)
def test_bad_options_are_one_line(options, line, trained):
    with pytest.raises(ConfigError, match=line) as caught:
        ClassifiedReward(Line(), **{"run": str(trained), **options})
    assert "\n" not in str(caught.value)


def test_damaged_foreign_and_unfitting_classifiers_are_refused(trained, tmp_path):
    other = train(composed("bc_insertion", tmp_path, *TINY), tmp_path, "other").path
    with pytest.raises(ConfigError, match="is not the run of a RewardClassifier"):
        load_classifier(other)

    class Short(Line):
        def __init__(self):
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)

    with pytest.raises(ConfigError, match=r"reads an observation \[12\], the environment has observation \[5\]"):
        ClassifiedReward(Short(), run=str(trained))
    newest = sorted((other / "checkpoints").glob("[0-9]*"))[-1]
    tensors = newest / "tensors.safetensors"
    damaged = bytearray(tensors.read_bytes())
    damaged[-1] ^= 1
    tensors.write_bytes(damaged)
    with pytest.raises(ConfigError, match="is damaged: its sha256"):
        load_classifier(other)
    tensors.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_classifier(other)
    assert json.loads((newest / "MANIFEST.json").read_text())["files"]


def test_a_wrong_wrapper_dies_at_start(trained, tmp_path):
    node = f"{{{NODE}, run: {trained}, treshold: 1}}"
    with pytest.raises(ConfigError, match="treshold"):
        assemble(composed("rlpd_insertion", tmp_path, *TINY, f"environment.wrappers=[{node}]"), Targets(AllowList()))
