"""The phases of the published world models: how much is seen and learned before updates and steps take turns."""

from contextlib import closing

import pytest
from omegaconf import OmegaConf

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.config.units import ratio_notes
from rl_lab.config.validate import read_phases

TOTAL = 100_000


@pytest.mark.parametrize(
    ("preset", "seed", "pretrain", "hook", "ratio", "collect"),
    [
        ("planet", 5_000, 100, "update_world_model", 0.1, 1_000),
        ("dreamer_v1", 2_500, 100, "update_agent", 0.2, 1),
        ("dreamer_v2", 1_000, 100, "update_agent", 0.2, 1),
        ("dreamer_v2_discrete", 50_000, 1, "update_agent", 0.0625, 1),
    ],
)
def test_the_published_phases(preset, seed, pretrain, hook, ratio, collect):
    given = [f"+preset={preset}", "+environment=cartpole", "environment.num_envs=1", "experiment.name=x"]
    config = compose([*given, f"training.total_timesteps={TOTAL}"])
    phases = OmegaConf.to_container(config.training.phases, resolve=True)
    assert [phase["name"] for phase in phases] == ["seed", "pretrain", "train"]
    assert {phase["buffer"] for phase in phases} == {"replay"}
    first, second, third = phases
    assert (first["duration_steps"], first["workflow_hooks"]) == (seed, ["collect"])
    assert (second["duration_updates"], second["workflow_hooks"]) == (pretrain, [hook])
    assert (third["duration_steps"], third["train_ratio"]) == (TOTAL - seed, ratio)
    assert third["workflow_hooks"][:2] == [{"collect": collect} if collect > 1 else "collect", hook]


def test_the_seed_lasts_for_a_sequence_of_every_environment():
    given = ["+preset=dreamer_v2", "+environment=cartpole", "environment.num_envs=64", "experiment.name=x"]
    config = compose([*given, f"training.total_timesteps={TOTAL}"])
    assert config.training.phases[0].duration_steps == 64 * 50


def test_the_ratio_is_said_in_all_units():
    """100 updates per 1,000 frames, each of 50 x 50 rows."""
    parts = assemble(compose(["+experiment=dreamer_v1_dmc_walker_walk"]), Targets(AllowList()))
    with closing(parts.env):
        phases = read_phases(parts.config, parts.targets)
        assert list(ratio_notes(phases, parts.context.buffers, parts.env.spec.action_repeat)) == [
            "phase train: 0.2 updates per env step, 0.1 per frame (2 frames per env step), "
            "500 replayed steps per env step"
        ]
