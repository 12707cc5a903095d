"""Weights from one workflow to another: what fits is taken to the bit, what does not is named."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from rl_lab.components.dynamics import Latent
from rl_lab.components.latents import CategoricalLatent
from rl_lab.core import CheckpointError, ConfigError
from rl_lab.orchestration.hand_off import load_parts
from rl_lab.workflows.planet import PlaNet
from tests.workflows.off_policy import parts_of, phase


class Parts(nn.Module):
    def __init__(self, width=3, **others):
        super().__init__()
        self.model = nn.Linear(2, width)
        for name, module in others.items():
            self.add_module(name, module)


def test_only_the_named_part_is_taken():
    source, target = Parts(actor=nn.Linear(3, 1)), Parts(planner=nn.Linear(3, 1))
    kept = target.planner.weight.clone()
    load_parts(target, source.state_dict(), ["model"])
    assert torch.equal(target.model.weight, source.model.weight)
    assert torch.equal(target.planner.weight, kept)


def test_what_does_not_fit_is_named_with_its_shapes():
    target = Parts()
    before = target.model.weight.clone()
    with pytest.raises(CheckpointError, match=r"model.weight is \[4, 2\] there and \[3, 2\] here; model.bias is \[4\]"):
        load_parts(target, Parts(width=4).state_dict(), ["model"])
    with pytest.raises(CheckpointError, match="model.weight is not in it"):
        load_parts(target, {"other.weight": before}, ["model"])
    with pytest.raises(ConfigError, match=r"training.resume_parts 'critic' \(choices: model\)"):
        load_parts(target, Parts().state_dict(), ["critic"])
    assert torch.equal(target.model.weight, before)


@pytest.mark.parametrize(
    ("source", "target"),
    [("dreamer_cartpole", "planet_dreamer_cartpole"), ("planet_dreamer_cartpole", "dreamer_cartpole")],
)
def test_dreamer_and_planet_share_one_world_model(source, target):
    first, second = (parts_of([f"+experiment={name}"]) for name in (source, target))
    load_parts(second.workflow, first.workflow.state_dict(), ["world_model"])
    weights = first.workflow.world_model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in second.workflow.world_model.state_dict().items())
    for parts in (first, second):
        parts.env.close()


def handed_over(source, target, *overrides):
    """Return both workflows, that of `target` with the world model of `source`, whose rewards tell states apart."""
    first, second = parts_of([f"+experiment={source}"]), parts_of([f"+experiment={target}", *overrides])
    heads = [parts.workflow.world_model.reward_head for parts in (first, second)]
    torch.nn.init.normal_(heads[0].out.weight, generator=torch.Generator().manual_seed(1))
    for head in heads:  # so that one step does not outweigh all others
        head.bins.copy_(torch.linspace(-1.0, 1.0, len(head.bins)))
    load_parts(second.workflow, first.workflow.state_dict(), ["world_model"])
    for parts in (first, second):
        parts.env.close()
    return first.workflow, second.workflow


@pytest.mark.parametrize("planner", ["CEM", "MPPI"])
def test_the_model_of_dreamer_is_planned_in(planner, monkeypatch):
    def no_chance(space, shape, device):
        return torch.zeros(*shape, space.num_variables, space.num_classes)

    monkeypatch.setattr(CategoricalLatent, "noise", no_chance)  # the same actions are always worth the same
    chosen = f"components.planner._target_=rl_lab.components.planners.{planner}"
    dreamer, planet = handed_over("dreamer_cartpole", "planet_dreamer_cartpole", chosen)
    obs, is_first = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)), torch.ones(3, dtype=torch.bool)
    torch.manual_seed(3)
    with torch.no_grad():
        actions, _, carry = planet.act(obs, planet.initial_carry(3), is_first=is_first, explore=False, step=10**6)
        latent, code, horizon = Latent(carry["deter"], carry["stoch"]), planet.code, planet.planner.horizon
        drawn = code.random(horizon * 3 * 64, torch.device("cpu")).view(horizon, 3, 64, -1)
        worth = planet._worth(latent, drawn)
        assert torch.equal(PlaNet._worth(dreamer, latent, drawn), worth)  # what the model of Dreamer says of them
        plan = planet.planner.plan(partial(planet._worth, latent), 3, code, torch.device("cpu"))
        planned = planet._worth(latent, plan.actions.unsqueeze(2)).squeeze(-1)
    assert actions.shape == (3,)
    assert (planned > worth.mean(-1) + worth.std(-1)).all()


def test_the_model_of_planet_is_imagined_in():
    planet, dreamer = handed_over("planet_dreamer_cartpole", "dreamer_cartpole")
    code, generator = dreamer.world_model.action_code, torch.Generator().manual_seed(2)
    none = torch.zeros(2, 6, dtype=torch.bool)
    batch = {
        "observations": torch.randn(2, 6, 4, generator=generator),
        "actions": torch.randint(2, (2, 6), generator=generator),
        "rewards": torch.rand(2, 6, generator=generator),
        **{"is_first": none, "is_last": none, "is_terminal": none},
    }
    actor = copy.deepcopy(dreamer.actor.state_dict())
    for _ in range(2):  # the first one's learning rate may still be 0
        metrics = dreamer.update_controller(batch, phase=phase())
    assert all(torch.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(tensor, actor[name]) for name, tensor in dreamer.actor.state_dict().items())
    weights = planet.world_model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in dreamer.world_model.state_dict().items())
    dream = dreamer.imagine(dreamer.world_model.initial(5, torch.device("cpu")), horizon=3)
    rewards = planet.world_model.reward(dream.features)
    assert torch.equal(dreamer.world_model.reward(dream.features), rewards)
    assert rewards.std() > 0.0
    assert dream.actions.shape == (3, 5, code.dim)
