"""Which configs can have several agents, and how they are built: as runs with their seeds would be."""

import pytest
import torch

from rl_lab.config.agents import of_all_agents
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError

SMALL = ("+experiment=dreamer_cartpole", "budget=tiny", "+logging=quiet", "environment.num_envs=2")


def parts(*overrides):
    return assemble(compose([*overrides]), Targets(AllowList()))


def test_agents_begin_as_runs_with_their_seeds_do():
    together = parts(*SMALL, "experiment.seed=5", "experiment.num_seeds=3")
    assert together.env.num_envs == 6
    assert together.context.num_envs == 2
    drawn = torch.rand(1)
    for agent in range(3):
        alone = parts(*SMALL, f"experiment.seed={5 + agent}")
        assert alone.env.num_envs == 2
        for name, tensor in alone.workflow.state_dict().items():
            assert torch.equal(together.workflow.state_dict()[name][agent], tensor), name
        if agent == 0:
            assert torch.equal(torch.rand(1), drawn)  # the streams of the first go on as if it were alone


def test_copies_of_all_agents():
    config = {"environment": {"_target_": "x"}, "experiment": {"num_seeds": 3}}
    assert of_all_agents(config)["num_envs"] == 3
    assert of_all_agents(config, 4)["num_envs"] == 12
    assert of_all_agents({**config, "experiment": {"num_seeds": 1}}) == {"_target_": "x"}


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("+experiment=ppo_cartpole", "experiment.num_seeds=8"),
            "experiment.num_seeds: PPO trains one agent at a time, not 8 (workflows that can: Dreamer, PlaNet; any: "
            "experiment.seed=1,2,3, one after another)",
        ),
        ((*SMALL, "experiment.num_seeds=0"), "experiment.num_seeds: must be greater than or equal to 1"),
        (
            (*SMALL, "experiment.num_seeds=2", "training.teacher={run: other}"),
            "experiment.num_seeds: 2 agents cannot have training.teacher",
        ),
    ],
)
def test_what_cannot_be_is_one_line(overrides, text):
    with pytest.raises(ConfigError) as caught:
        parts(*overrides)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
