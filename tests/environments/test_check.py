"""Every promise that is broken is found, by the finding of its name and by no other."""

import re

import numpy as np
import pytest
import torch

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, MultiDiscrete
from rl_lab.environments.cartpole import CartPole
from rl_lab.environments.checking.check import check_environment
from rl_lab.environments.checking.conformity import Conformity, describe_spec
from rl_lab.environments.checking.random_actions import RandomActions
from rl_lab.environments.counting import Counting
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.identity import Identity
from tests.environments import zoo  # noqa: F401  (registers its ids)

torch.set_num_threads(1)


def check(make, steps=60, **options):
    return {finding.name: finding for finding in check_environment(make, steps=steps, **options)}


def statuses(findings):
    return {name: finding.status for name, finding in findings.items() if finding.status != "ok"}


class Broken(Counting):
    """Breaks one promise. Its episodes last 3 to 7 steps, and its first observation tells the seed."""

    made = 0

    def __init__(self, fault):
        Broken.made += 1
        super().__init__(3, num_actions=5)
        self.fault, self.number, self.count, self.seed = fault, Broken.made, 0, 0
        self._kept = torch.zeros(3, 4)
        if fault == "time limit":
            self.spec = EnvSpec("broken", self.spec.observation, self.spec.action, max_episode_steps=4)

    def reset(self, seed):
        self.count, self.seed = 0, seed
        if self.fault == "raises at reset":
            raise OSError("no such\nlevel")
        return super().reset(seed)

    def _observe(self, state):
        obs = super()._observe(state)
        obs[:, 0] += 0 if self.fault == "deaf to seeds" else 100 * self.seed
        return obs

    def step(self, actions):
        self.count += 1
        step = super().step(actions)
        is_hit = self.count == 10
        if self.fault == "raises" and is_hit:
            raise KeyError("wheel")
        return self.broken(step, actions, is_hit)

    def broken(self, step, actions, is_hit):
        if self.fault == "shape" and is_hit:
            return step._replace(observations=step.observations[:, :3])
        if self.fault == "keys" and is_hit:
            return step._replace(final_observations={"a": step.observations})
        if self.fault == "dtype" and is_hit:
            return step._replace(rewards=step.rewards.double())
        if self.fault == "array":
            return step._replace(rewards=step.rewards.numpy())
        if self.fault == "nan" and is_hit:
            step.rewards[1] = torch.nan
        if self.fault == "both flags":
            return step._replace(truncated=step.truncated | step.terminated)
        if self.fault == "final":
            return step._replace(final_observations=step.final_observations + 1)
        if self.fault == "not reset":
            return step._replace(observations=step.final_observations)
        if self.fault == "rewrites":
            self._kept.copy_(step.observations)
            return step._replace(observations=self._kept)
        if self.fault == "rewrites actions":
            actions.zero_()
        if self.fault == "global stream":
            return step._replace(rewards=torch.rand(3))
        if self.fault == "own number":
            return step._replace(rewards=step.rewards + self.number)
        if self.fault == "forgets":
            return step._replace(rewards=step.rewards + self.count)
        return step

    def get_state(self):
        if self.fault == "disturbing":
            self._state["elapsed"] = self._state["elapsed"] + 1
        state = super().get_state() | {"seed": self.seed, "count": 0 if self.fault == "forgets" else self.count}
        if self.fault == "aliased":
            self._kept += 1
            state["kept"] = self._kept
        return state

    def set_state(self, state):
        self.seed, self.count = state["seed"], state["count"]
        super().set_state(state)


FAULTS = {
    "shape": ("shapes", "failed", r"vector step 10: observations has shape \(3, 3\) instead of \(3, 4\)"),
    "keys": ("shapes", "failed", r"final_observations have the keys \['a'\] instead of \[''\]"),
    "dtype": ("types", "failed", "rewards is float64 instead of float32"),
    "array": ("types", "failed", r"rewards is a ndarray instead of a tensor \(60 times in 60 steps\)"),
    "nan": ("finite", "failed", "vector step 10: rewards of copy 1 holds NaN or infinity"),
    "both flags": ("flags", "failed", "copy 0 is terminated and truncated at once"),
    "final": ("final observations", "failed", "vector step 1: final_observations differ from the observations where"),
    "not reset": ("final observations", "warning", "of all .* episodes equals the first one of the next"),
    "rewrites": ("ownership", "failed", "observations of vector step 1 were written to"),
    "rewrites actions": ("ownership", "failed", "actions of vector step 1 were written to"),
    "deaf to seeds": ("seeding", "warning", "seeds 0 and 1 give the same 60 steps"),
    "disturbing": ("exact state", "failed", "get_state disturbs the environment: .* differs in .* at vector step"),
    "aliased": ("exact state", "failed", "the state taken at vector step 0 changed"),
    "forgets": (
        "exact state",
        "failed",
        "restored at vector step 20 it goes on differently, first in rewards at .* 21",
    ),
    "time limit": ("time limit", "failed", "an episode lasted 7 steps, the limit is 4"),
    "raises": ("runs", "failed", "stopped after 9 vector steps: raised KeyError: 'wheel'"),
}


def test_an_environment_that_keeps_every_promise():
    findings = check(lambda: Broken("none"), steps=59)
    assert statuses(findings) == {}
    steps = sum(min(59 - begin, length) for begin, length in episodes(0))
    assert steps == 59
    ended = [length for copy in range(3) for begin, length in episodes(copy) if begin + length <= 59]
    rewards = [
        step + 1 for copy in range(3) for begin, length in episodes(copy) for step in range(min(59 - begin, length))
    ]
    assert findings["episodes"].detail == f"{len(ended)} ended, after 3 .. 7 steps, mean {np.mean(ended):.4g}"
    assert findings["rewards"].detail == f"1 .. 7, mean {np.mean(rewards):.6g}"
    assert "reached" in findings["time limit"].detail


def test_dicts_of_actions_are_checked_like_any_other():
    for make in (lambda: Identity(3, kind="mixed", masked=True), lambda: GymnasiumEnv("Zoo/Pilot-v0", 2)):
        findings = check(make, steps=30)
        assert {finding.status for name, finding in findings.items() if name != "episodes"} <= {"ok"}, findings
    assert "acts {gear: Discrete(3), pedals: float32 [2] in 0..10}" in findings["made"].detail


def episodes(copy):
    """Return (first step, length) of the episodes of a copy of Counting, by its definition."""
    begin, found = 0, []
    while begin < 59:
        found.append((begin, 3 + (copy + len(found)) % 5))
        begin += found[-1][1]
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_promise_is_found_and_no_other(fault):
    findings = check(lambda: Broken(fault))
    name, status, text = FAULTS[fault]
    assert statuses(findings) == {name: status}, findings
    assert re.search(text, findings[name].detail), findings[name].detail
    assert all("\n" not in finding.detail for finding in findings.values())
    assert {"determinism", "seeding", "exact state"} <= findings.keys()  # the rest was still checked


@pytest.mark.parametrize(("fault", "text"), [("global stream", "another reset"), ("own number", "a second instance")])
def test_what_does_not_repeat_is_found(fault, text):
    findings = check(lambda: Broken(fault))
    assert statuses(findings) == {"determinism": "failed", "exact state": "failed"}
    assert text in findings["determinism"].detail
    assert "first in rewards at vector step 1" in findings["determinism"].detail


def test_observations_outside_their_bounds():
    class Loud(Identity):
        def _observe(self, state):
            return super()._observe(state) * 3

    findings = check(lambda: Loud(2))
    assert statuses(findings) == {"bounds": "failed"}
    assert findings["bounds"].detail.startswith("reset: observations lie in 0 .. 3, outside 0.0 .. 1.0 (121 times")


def test_a_task_that_terminates_at_its_limit_is_worth_a_look():
    class Ends(Counting):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(terminated=step.terminated | step.truncated, truncated=step.truncated & False)

    assert statuses(check(lambda: Ends(2))) == {"time limit": "warning", "seeding": "warning"}


def test_what_cannot_be_restored_is_a_warning():
    class Robot(CartPole):
        def __init__(self):
            super().__init__(2)
            self.spec = EnvSpec("robot", self.spec.observation, self.spec.action, exact_resume=False)

    findings = check(Robot)
    assert statuses(findings) == {"exact state": "warning"}
    assert "warm-started" in findings["exact state"].detail


def test_an_episode_that_never_ends_is_a_warning():
    findings = check(lambda: GymnasiumEnv("Zoo/Echo-v0", 2), steps=20)
    assert statuses(findings) == {"episodes": "warning"}
    assert "none ended in 20 steps" in findings["episodes"].detail


def test_a_state_goes_through_the_round_trip():
    def refuse(state):
        raise TypeError("state 'dynamics' is a lambda")

    findings = check(lambda: CartPole(2), round_trip=refuse)
    assert statuses(findings) == {"exact state": "failed"}
    assert findings["exact state"].detail == "raised TypeError: state 'dynamics' is a lambda"


def test_what_cannot_be_made_or_reset_says_so():
    assert statuses(check(lambda: Broken("raises at reset"))) == {"runs": "failed"}
    assert check(lambda: Broken("raises at reset"))["runs"].detail.endswith("raised OSError: no such level")

    def fails():
        raise OSError("no licence")

    assert check(fails)["made"] == ("made", "failed", "raised OSError: no licence")
    with pytest.raises(ConfigError, match="CartPol-v1"):
        check(lambda: GymnasiumEnv("CartPol-v1", 1))


@pytest.mark.parametrize("fault", ["raise", "nan", "shape", "reward"])
def test_a_faulty_gymnasium_environment_gives_one_line(fault):
    findings = check(lambda: GymnasiumEnv("Zoo/Faulty-v0", 2, env_kwargs={"fault": fault}, exact_resume=True))
    assert statuses(findings)["runs"] == "failed"
    assert "stopped after 2 vector steps: environment 'Zoo/Faulty-v0' (copy 0, vector step 3" in findings["runs"].detail
    assert findings["determinism"].status == findings["exact state"].status == "ok"  # of the two steps there were


def test_steps_are_enough_to_see_the_limit_when_nobody_says_how_many():
    findings = {f.name: f for f in check_environment(lambda: CartPole(1, max_episode_steps=350))}
    assert findings["runs"].detail.startswith("450 vector steps")


def test_conformity_knows_the_device_and_every_kind_of_leaf():
    class Env:
        num_envs, device = 2, torch.device("cuda:0")
        spec = EnvSpec("x", {"n": Discrete(3), "m": MultiDiscrete((2, 3)), "b": Box((), torch.bool)}, Discrete(2))

    obs = {"n": torch.tensor([0, 3]), "m": torch.tensor([[1, 2], [0, 3]]), "b": torch.tensor([True, False])}
    problems = list(Conformity(Env()).observations(obs))
    assert [check for check, _ in problems] == ["device", "bounds", "device", "bounds", "device"]
    assert problems[0][1] == "observations.n is on cpu instead of cuda:0"
    assert problems[1][1] == "observations.n lie in 0 .. 3, outside 0 .. 2"
    assert problems[3][1] == "observations.m lie in 0 .. 3, outside 0 .. [1, 2]"
    text = "observes {n: Discrete(3), m: MultiDiscrete(2, 3), b: bool []}, acts Discrete(2), no time limit"
    assert describe_spec(Env.spec) == text


def test_random_actions_obey_masks_and_bounds():
    env = Identity(200, kind="multi_discrete", sizes=(2, 3), masked=True)
    obs = env.reset(0)
    actions = RandomActions(env)(obs)
    for row, (first, second) in enumerate(actions.tolist()):
        assert obs["action_mask"][row, first]
        assert obs["action_mask"][row, 2 + second]
    assert {tuple(row) for row in actions.tolist()} == {(a, b) for a in range(2) for b in range(3)}
    mixed = Identity(200, kind="mixed", sizes=(2, 3), masked=True)
    obs = mixed.reset(0)
    actions = RandomActions(mixed)(obs)
    columns = actions["choices"] + torch.tensor([0, 2])
    assert obs["action_mask"].gather(1, columns).all()
    assert -1 <= actions["numbers"].min() < -0.9 < 0.9 < actions["numbers"].max() <= 1
    numbers = RandomActions(Identity(500, kind="continuous"))(obs)
    assert -1 <= numbers.min() < -0.9 < 0.9 < numbers.max() <= 1
    env.spec = EnvSpec("x", env.spec.observation, Box((2,), torch.int64, low=-1, high=1))
    assert RandomActions(env)(obs).unique().tolist() == [-1, 0, 1]
    env.spec = EnvSpec("x", env.spec.observation, Box((2,), low=0.0))
    assert RandomActions(env)(obs).min() == 0
