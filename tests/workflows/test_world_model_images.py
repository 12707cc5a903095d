"""PlaNet and Dreamers but the newest, as packaged, on pictures of 64 x 64: they bind, learn from a batch and act."""

from contextlib import closing

import pytest
import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from tests.workflows.off_policy import phase

SMALL = [
    "environment.num_envs=1",
    "training.total_timesteps=128",
    "algorithm.random_steps=0",
    "experiment.compile=eager",
]


def make_batch(spec, batch=2, length=4):
    generator = torch.Generator().manual_seed(1)
    is_first = torch.zeros(batch, length, dtype=torch.bool)
    is_first[:, 0] = True
    none = torch.zeros(batch, length, dtype=torch.bool)
    return {
        "observations": torch.randint(256, (batch, length, *spec.observation.shape), generator=generator).byte(),
        "actions": 2.0 * torch.rand(batch, length, *spec.action.shape, generator=generator) - 1.0,
        "rewards": torch.rand(batch, length, generator=generator),
        "is_first": is_first,
        "is_last": none,
        "is_terminal": none,
    }


@pytest.mark.parametrize(
    ("preset", "hook"),
    [
        ("planet", "update_world_model"),
        ("dreamer_v1", "update_agent"),
        ("dreamer_v2", "update_agent"),
        ("dreamer_v3_2023", "update_agent"),
    ],
)
def test_a_tiny_budget_leaves_pictures_that_the_presets_can_read(preset, hook):
    names = [f"+preset={preset}", "+environment=dmc_walker_walk_pixels", "budget=tiny", "experiment.name=pictures"]
    made = assemble(compose([*names, *SMALL]), Targets(AllowList()))
    with closing(made.env):
        spec, workflow = made.env.spec, made.workflow
        assert spec.observation.shape == (3, 64, 64)
        before = [tensor.clone() for tensor in workflow.world_model.encoder.parameters()]
        metrics = getattr(workflow, hook)(make_batch(spec), phase=phase())
        assert metrics["decoder_image_loss"] > 0.0
        assert all(torch.isfinite(value) for value in metrics.values())
        after = workflow.world_model.encoder.parameters()
        assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
        obs, is_first = make_batch(spec, 1, 1)["observations"][0], torch.ones(1, dtype=torch.bool)
        actions, _, carry = workflow.act(obs, workflow.initial_carry(1), is_first=is_first, explore=True, step=1)
        assert actions.shape == (1, 6)
        assert carry["deter"].abs().sum() > 0.0
