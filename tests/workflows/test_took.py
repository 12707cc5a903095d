"""Who remembers actions is told which were taken where those of another were: a teacher's, or a student's."""

import pytest
import torch

from tests.workflows import test_behavior_cloning as cloning
from tests.workflows import test_diffusion_policy as diffusion
from tests.workflows import test_flow_sac as flow_sac
from tests.workflows import test_hiors as hiors
from tests.workflows import test_sft as sft
from tests.workflows.test_dreamer import CONTINUOUS, make_dreamer
from tests.workflows.test_planet import SPEC, make_planet


@pytest.mark.parametrize(("make", "spec"), [(make_dreamer, CONTINUOUS), (make_planet, SPEC)])
def test_the_next_state_follows_from_what_was_done(make, spec):
    workflow, first, obs = make(spec), torch.ones(3, dtype=torch.bool), torch.randn(3, *spec.observation.shape)

    @torch.no_grad()
    def act(carry, is_first):
        torch.manual_seed(0)
        actions, _, carry = workflow.act(obs, carry, is_first=is_first, explore=False, step=10**6)
        return actions, carry

    own, carry = act(workflow.initial_carry(3), first)
    torch.testing.assert_close(workflow.took(carry, own)["action"], carry["action"])
    other = workflow.took(carry, torch.zeros_like(own))
    for key in ("deter", "stoch"):
        assert torch.equal(other[key], carry[key])
    assert not torch.equal(act(other, ~first)[1]["deter"], act(carry, ~first)[1]["deter"])


CHUNKS = {"prediction_horizon": 4, "action_horizon": 3}


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (cloning.make_bc, cloning.NUMBERS),
        (diffusion.make_policy, diffusion.SPEC),
        (flow_sac.make, flow_sac.SPEC),
        (hiors.make_policy, hiors.SPEC),
        (sft.make_sft, sft.SPEC),
    ],
)
@torch.no_grad()
def test_a_correction_ends_the_chunk_of_the_copy_that_was_corrected(make, spec):
    workflow, first = make(**CHUNKS), torch.ones(4, dtype=torch.bool)
    obs = torch.randn(4, *spec.observation.shape)
    own, _, carry = workflow.act(obs, workflow.initial_carry(4), is_first=first, explore=True, step=10**6)
    assert workflow.took(carry, own)["left"].tolist() == [2, 2, 2, 2]
    taken = own.clone()
    taken[1] += 0.5
    carry = workflow.took(carry, taken)
    assert carry["left"].tolist() == [2, 0, 2, 2]
    again = workflow.act(obs, carry, is_first=~first, explore=True, step=10**6)[2]
    assert again["left"].tolist() == [1, 2, 1, 1]  # it draws the next one while the others go on


@torch.no_grad()
def test_a_correction_ends_all_chunks_of_an_ensemble():
    """What is done next is then the newest chunk's alone, as at an episode's start."""
    workflow = cloning.shaken(cloning.make_bc(numbers="absolute", prediction_horizon=4, ensemble_decay=0.01))
    first, none = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    seen, after = torch.randn(3, *cloning.NUMBERS.observation.shape), torch.randn(3, *cloning.NUMBERS.observation.shape)
    own, _, carry = workflow.act(seen, workflow.initial_carry(3), is_first=first, explore=True, step=0)
    taken = own.clone()
    taken[1] += 0.5
    corrected = workflow.took(carry, taken)
    assert corrected["counts"].tolist() == [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    mean, _, _ = workflow.act(after, corrected, is_first=none, explore=True, step=1)
    fresh, _, _ = workflow.act(after, workflow.initial_carry(3), is_first=first, explore=True, step=1)
    assert torch.equal(mean[1], fresh[1])
    assert not torch.isclose(mean[[0, 2]], fresh[[0, 2]]).any()


@torch.no_grad()
def test_single_actions_remember_nothing_that_a_correction_could_end():
    workflow, first = cloning.make_bc(), torch.ones(2, dtype=torch.bool)
    own, _, carry = workflow.act(torch.randn(2, 3), workflow.initial_carry(2), is_first=first, explore=True, step=0)
    assert carry is None
    assert workflow.took(carry, own + 1.0) is None
