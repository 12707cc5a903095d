"""Several agents as one: functions, lengths and means of each, and how agents are stacked."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core.seeds import Seeds, is_batched, stack_agents


class Owner(nn.Module):
    """A layer and the mean of what it saw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()))

    def loss(self, x):
        self.seen.copy_(0.5 * self.seen + 0.5 * x.mean())
        return (self.layer(x).tanh() * self.seen).sum()

    def noisy(self, x):
        return {"drawn": self.layer(x) + torch.rand(2), "was_batched": torch.full((), float(is_batched()))}


def owners(count=3):
    torch.manual_seed(0)
    made = [Owner() for _ in range(count)]
    together = Owner()
    together.load_state_dict(made[0].state_dict())
    optimizers = [[torch.optim.Adam(each.parameters())] for each in (together, *made[1:])]
    stack_agents([together, *made[1:]], optimizers)
    return made, together


@pytest.mark.parametrize("fuse", [None, partial(torch.compile, backend="aot_eager", fullgraph=True)])
def test_every_agent_computes_with_its_own_and_changes_its_own(fuse):
    made, together = owners()
    loss = Seeds(3)(together, together.loss, fuse)
    for seed in range(3):
        x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(seed))
        found = loss(x)
        gradients = torch.autograd.grad(found.sum(), list(together.parameters()))
        for agent, one in enumerate(made):
            expected = one.loss(x[agent])
            torch.testing.assert_close(found[agent], expected)
            for mine, own in zip(gradients, torch.autograd.grad(expected, list(one.parameters())), strict=True):
                torch.testing.assert_close(mine[agent], own)
            torch.testing.assert_close(together.seen[agent], one.seen)
    torch._dynamo.reset()


def test_rows_and_the_first_agent():
    made, together = owners()
    x = torch.randn(6, 4)
    found = Seeds(3).rows(together, together.layer.forward)(x)
    expected = torch.cat([one.layer(rows) for one, rows in zip(made, x.chunk(3), strict=True)])
    torch.testing.assert_close(found, expected)
    first = Seeds(3).first(together, lambda rows, text: (together.layer(rows), text))
    mine, text = first(x.view(3, 2, 4), "as it is")
    torch.testing.assert_close(mine, expected[:2])
    assert text == "as it is"
    drawn = Seeds(3)(together, together.noisy)(torch.zeros(3, 4))
    noise = drawn["drawn"] - torch.stack([one.layer.bias for one in made])
    assert len(noise.unique()) == noise.numel()
    assert drawn["was_batched"].all()
    assert not is_batched()


def test_lengths_scales_and_means():
    tensors = [torch.randn(3, 4, 2), torch.randn(3, 5), torch.randn(3)]
    factors = [torch.randn(3) for _ in tensors]
    norms, scaled = Seeds(3).norms(tensors), Seeds(3).scaled(tensors, factors)
    for index, tensor in enumerate(tensors):
        array = tensor.double().numpy()
        for agent in range(3):
            assert norms[index, agent].item() == pytest.approx(np.sqrt((array[agent] ** 2).sum()), rel=1e-6)
            np.testing.assert_allclose(scaled[index][agent], array[agent] * factors[index][agent].item(), rtol=1e-6)
    found = Seeds(3).means({"a": torch.tensor([1.0, 2.0, 6.0]), "b": torch.tensor([0.0, 0.0, 3.0])})
    means, own = {"a": 3.0, "b": 1.0}, {"a/seed_0": 1.0, "a/seed_1": 2.0, "a/seed_2": 6.0, "b/seed_2": 3.0}
    assert {name: float(value) for name, value in found.items()} == means | own | {"b/seed_0": 0.0, "b/seed_1": 0.0}


def test_one_agent_is_as_it_is():
    one, owner = Seeds(), Owner()
    assert one(owner, owner.loss) == owner.loss == one.rows(owner, owner.loss) == one.first(owner, owner.loss)
    assert one(owner, owner.loss, lambda function: "fused") == "fused"
    x = torch.randn(2, 3)
    assert one.split(x) is x is one.merge(x)
    assert one.norms([x]).item() == pytest.approx(float(x.norm()))
