"""`lab env` on packaged, registered and users' own environments, and what `lab list environments` says of exactness."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rl_lab.cli.env_config import read_environment
from rl_lab.config.trees import CONFIGS, group_files
from rl_lab.core import ConfigError
from rl_lab.environments.checking.exactness import KINDS, NATIVE, NOT_EXACT, REPLAY, exactness

MINE = """
import gymnasium
import numpy as np
from gymnasium import spaces

from rl_lab.environments.counting import Counting


class Walk(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, fault="none", limit=9):
        self.fault, self.limit, self.steps = fault, limit, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        if self.fault == "raises" and self.steps == 5:
            raise RuntimeError("the motor\\nis on fire")
        return self._observe(), 0.5, False, self.steps >= self.limit, {}

    def _observe(self):
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        if self.fault == "poison" and self.steps == 5:
            obs[1] = np.nan
        if self.fault == "shape" and self.steps == 5:
            obs = obs[:1]
        if self.fault == "bounds":
            obs[0] = 1.5
        if self.fault == "grows" and self.steps == 0:
            self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        return obs


def make_env(**kwargs):
    return Walk(**kwargs)


class Strange(Counting):
    def get_state(self):
        return super().get_state() | {"thing": object()}
"""


@pytest.fixture
def mine(place):
    (place / "mine.py").write_text(MINE)
    return ("--plugin", "mine.py")


def statuses(output):
    found = [line.split(maxsplit=1) for line in output.splitlines()[:-1]]
    return {rest.split(":")[0]: status for status, rest in found}


def test_check_prints_one_line_per_promise(lab):
    result = lab("env", "check", "tensor_cartpole", "--steps", 40)
    assert result.exit_code == 0, result.output
    found = statuses(result.stdout)
    assert set(found.values()) == {"ok"}
    assert {"shapes", "types", "determinism", "seeding", "ownership", "exact state"} <= found.keys()
    assert result.stdout.splitlines()[-1] == f"tensor_cartpole: {len(found)} ok, 0 warnings, 0 failed"


def test_check_as_json(lab):
    shown = json.loads(lab("env", "check", "CartPole-v1", "num_envs=3", "--steps", 40, "--json").stdout)
    assert (shown["environment"], shown["failed"], shown["warning"]) == ("CartPole-v1", 0, 0)
    details = {check["name"]: check["detail"] for check in shown["checks"]}
    assert "3 copies" in details["made"]
    assert details["runs"].startswith("40 vector steps")
    assert shown["ok"] == len(details)


@pytest.mark.parametrize("override", ["env_kwargs.limit=4", "environment.env_kwargs.limit=4"])
def test_a_users_own_environment_with_arguments(lab, mine, override):
    shown = json.loads(lab("env", "check", "mine:make_env", override, "--steps", 30, *mine, "--json").stdout)
    details = {check["name"]: check["detail"] for check in shown["checks"]}
    assert shown["failed"] == 0, details
    assert details["episodes"] == "14 ended, after 4 .. 4 steps, mean 4"  # 30 // 4 of each of two copies
    assert details["rewards"] == "0.5 .. 0.5, mean 0.5"
    assert details["exact state"].startswith(REPLAY)


FAULTS = {
    "raises": ("runs", "stopped after 4 vector steps: environment .* raised RuntimeError: the motor is on fire"),
    "poison": ("runs", "stopped after 4 vector steps: .* returned NaN or infinity"),
    "shape": ("runs", r"stopped after 4 vector steps: .* shape \(1,\) instead of \(2,\)"),
    "grows": ("runs", "stopped after 0 vector steps: .*space"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_exit_code_1(lab, mine, fault):
    result = lab("env", "check", "mine:make_env", f"env_kwargs.fault={fault}", "exact_resume=true", *mine)
    name, text = FAULTS[fault]
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"FAILED  {name}:")]
    assert re.search(text, line), line
    assert "Traceback" not in result.output


def test_observations_outside_the_declared_space_are_a_warning(lab, mine):
    result = lab("env", "check", "mine:make_env", "env_kwargs.fault=bounds", "--steps", 20, *mine)
    assert result.exit_code == 0
    assert "warning declared space: step 0: observation[0] is 1.5, outside -1 .. 1 of its space" in result.stdout


def test_a_state_that_no_checkpoint_can_hold_is_found(lab, mine):
    Path("conf/environment").mkdir()
    Path("conf/environment/strange.yaml").write_text("_target_: mine.Strange\nnum_envs: 2\n")
    result = lab("env", "check", "strange", "--steps", 20, "--config-dir", "conf", *mine)
    assert result.exit_code == 1
    assert "FAILED  exact state: raised TypeError: state 'thing' is a builtins.object" in result.stdout


@pytest.mark.parametrize("command", ["check", "bench"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["cartpol"], "unknown environment 'cartpol'; did you mean 'cartpole'?"),
        (["CartPol-v1"], "unknown environment.name 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["cartpole", "wheels=3"], "environment: unknown argument of GymnasiumEnv 'wheels'"),
        (["cartpole", "num_envs=none"], "environment.num_envs: must"),
        (["cartpole", "num_envs"], "cannot read the override 'num_envs'"),
        (["subprocess:run"], "environment.name: module 'subprocess' is not allowed"),
        (["tensor_cartpole", "experiment.device=cuda:99"], "experiment.device: 'cuda:99' is not on this machine"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(lab, fails, command, arguments, text):
    assert text in fails(lab("env", command, *arguments), 2)


def test_bench_recommends_an_override_line(lab):
    result = lab("env", "bench", "tensor_cartpole", "--seconds", 0.01)
    assert result.exit_code == 0, result.output
    *rows, top, recommended = result.stdout.splitlines()
    assert [line.split()[1] for line in rows[1:]] == ["1", "16", "256", "1024", "4096", "16384"]
    assert re.fullmatch(r"best: [\d,]+ env steps/s with environment\.num_envs=\d+", top)
    assert re.search(r": environment\.num_envs=\d+$", recommended)


@pytest.fixture
def one_core(monkeypatch):
    """Let there be few settings to measure."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("rl_lab.environments.checking.bench.COPIES_PER_WORKER", (2,))
    monkeypatch.setattr("rl_lab.environments.checking.bench.SYNC_COPIES", (1, 4))


@pytest.mark.usefixtures("one_core")
def test_bench_of_single_environments_tries_workers(lab):
    result = json.loads(lab("env", "bench", "CartPole-v1", "--seconds", 0.01, "--json").stdout)
    assert {row["backend"] for row in result["rows"]} == {"sync", "process"}
    assert all(row["error"] is None and row["steps_per_s"] > 0 for row in result["rows"])
    assert result["recommended"].startswith("environment.backend=")
    assert result["best"]["steps_per_s"] == max(row["steps_per_s"] for row in result["rows"])


@pytest.mark.usefixtures("one_core")
def test_bench_of_what_fails_everywhere_is_exit_code_1(lab, mine):
    result = lab("env", "bench", "mine:make_env", "env_kwargs.fault=raises", "exact_resume=true", "num_envs=1", *mine)
    assert result.exit_code == 1
    assert "mine:make_env ran in no setting: environment 'mine:make_env'" in result.stderr


def test_list_says_what_resumes_exactly(lab):
    Path("conf/environment").mkdir()
    Path("conf/environment/mine.yaml").write_text("# My own.\nname: x\n")
    text = lab("list", "environments", "--config-dir", "conf").stdout
    assert re.search(r"^  cartpole +Balance a pole .* \[exact \(native state\)\]$", text, re.M)
    assert re.search(r"^  lunarlander +Land .* \[exact \(replay\)\]$", text, re.M)
    assert re.search(r"^  mine +My own\. \[not measured: lab env check mine\]$", text, re.M)
    listed = json.loads(lab("list", "environments", "--json").stdout)["environments"]
    assert listed["atari_fast"]["resume"] == NOT_EXACT


OPTIONS = group_files("environment")
BY_NAME = {"gymnasium"}
EXAMPLES = {
    "atari": "ALE/Pong-v5",
    "atari_fast": "ALE/Pong-v5",
    "dm_control": "dm_control/cartpole-swingup",
    "minigrid": "MiniGrid-Empty-5x5-v0",
}


def facts():
    return yaml.safe_load((CONFIGS / "environment_facts.yaml").read_text())


def test_every_packaged_environment_has_a_fact():
    assert facts().keys() == OPTIONS.keys(), "run: python benchmarks/environments.py --only NAME"
    assert {fact for name, fact in facts().items() if name not in BY_NAME} <= set(KINDS)


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - BY_NAME))
def test_the_facts_are_what_the_environments_say(name):
    overrides = ["experiment.device=cpu"] + ([f"name={EXAMPLES[name]}"] if name in EXAMPLES else [])
    config = read_environment(name, overrides)
    changes = {"backend": "sync", "on_crash": "raise", "timeout_s": None}
    try:
        env = config.build(num_envs=1, **{key: changes[key] for key in changes.keys() & config.arguments})
    except ConfigError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(str(error))
    env.reset(0)
    assert exactness(env) == facts()[name], "run: python benchmarks/environments.py --only NAME"
    assert (exactness(env) == NATIVE) == (env.spec.exact_resume and not replays(env))
    env.close()


def replays(env):
    """Return whether the state holds the actions of an episode."""
    members = env.get_state().get("members", [])
    return any("actions" in member for member in members)
