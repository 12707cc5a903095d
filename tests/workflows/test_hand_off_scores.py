"""One world model, learned by PlaNet: planners plan in it, an actor learns in dreams of it; both then do right."""

import copy

import pytest
import torch

from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.layers import LayerStyle
from rl_lab.components.planners import CEM, MPPI
from rl_lab.components.scalar_heads import ScalarHead
from rl_lab.components.world_actors import WorldActor
from rl_lab.environments.identity import Identity
from rl_lab.orchestration.hand_off import load_parts
from rl_lab.workflows.dreamer import Dreamer
from tests.workflows.off_policy import phase, score, start
from tests.workflows.parts import collect, make_collector
from tests.workflows.test_dreamer import NAMES
from tests.workflows.test_planet import make_planet, small_model

torch.set_num_threads(1)
GUESSING, LEARNED = 0.65, 0.85  # of 1; at random: 0.5


def make_env():
    return Identity(8, sizes=(2,))


def make_model():
    return small_model(16, free_nats=1.0, reward_scale=10.0)


def make_dreamer(seed):
    style = LayerStyle("elu", "none", "glorot")

    def components():
        return {
            "world_model": make_model(),
            "actor": WorldActor(16, 1, style),
            "critic": ScalarHead(16, 1, style, kind="gaussian"),
        }

    options = {"horizon": 3, "gamma": 0.5, "entropy_scale": 1e-2, "replay_value_scale": 0.0}
    return start(Dreamer(**options), make_env().spec, components, names=NAMES, seed=seed, lr=1e-2)


@pytest.fixture(scope="module")
def source():
    """Return the weights of a model that has explained random actions, and what it has seen."""
    env = make_env()
    workflow = make_planet(env.spec, CEM(1, 16, 4, 2), make_model(), random_steps=10_000)
    buffer = SequenceBuffer(10_000, 16, 8, num_envs=env.num_envs, spec=env.spec)
    buffer.add(collect(make_collector(env), workflow, 60))
    for _ in range(160):
        workflow.update_world_model(buffer.sample(), phase=phase())
    return workflow.state_dict(), buffer


@pytest.mark.parametrize("planner", [CEM(2, 32, 8, 2), MPPI(2, 32, 8, 2)], ids=["CEM", "MPPI"])
def test_plans_in_it_are_right(source, planner):
    planet = make_planet(make_env().spec, planner, make_model(), seed=5)
    torch.manual_seed(2)
    assert score(planet, make_env()) < GUESSING  # in a model that has learned nothing
    load_parts(planet, source[0], ["world_model"])
    assert score(planet, make_env()) > LEARNED


def test_an_actor_learns_in_dreams_of_it(source):
    dreamer = make_dreamer(seed=7)
    load_parts(dreamer, source[0], ["world_model"])
    assert score(dreamer, make_env()) < GUESSING
    model = copy.deepcopy(dreamer.world_model.state_dict())
    for _ in range(100):
        dreamer.update_controller(source[1].sample(), phase=phase())
    assert score(dreamer, make_env()) > LEARNED
    assert all(torch.equal(tensor, model[name]) for name, tensor in dreamer.world_model.state_dict().items())
