"""Who remembers actions is told which were taken where those of another were: a teacher's, or a student's."""

import pytest
import torch

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
