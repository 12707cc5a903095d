"""Perception: transitions and sequences become the same rows; what belongs to no step does not count."""

import pytest
import torch
from torch import nn

from rl_lab.components.cnn import CNN
from rl_lab.components.perception import Perception, weighted_mean
from rl_lab.components.recurrent import GRU
from rl_lab.core import Box, ConfigError, EnvSpec

SPEC = EnvSpec("made-up", Box((3,)), Box((1,), low=-1.0, high=1.0))


def sequence(batch=2, length=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = {
        "observations": torch.randn(batch, length, 3, generator=generator),
        "actions": torch.randn(batch, length, 1, generator=generator),
        "rewards": torch.randn(batch, length, generator=generator),
        "is_first": torch.zeros(batch, length, dtype=torch.bool),
        "is_terminal": torch.zeros(batch, length, dtype=torch.bool),
        "carry": torch.randn(batch, length, 4, generator=generator),
    }
    rows["is_terminal"][0, 2] = True  # an episode ends there and another begins
    rows["is_first"][0, 3] = True
    return rows


def test_rows_of_sequences_step_by_step():
    torch.manual_seed(0)
    memory = GRU(3, 4)
    online, target = Perception(SPEC, {"memory": memory}), Perception(SPEC, {"memory": GRU(3, 4)})
    batch = sequence()
    rows = online(batch, target, 0.9)
    for b in range(2):
        carry = batch["carry"][b, 0]
        features = []
        for t in range(5):
            if batch["is_first"][b, t]:
                carry = torch.zeros(4)
            carry = memory.cell(batch["observations"][b, t].unsqueeze(0), carry.unsqueeze(0)).squeeze(0)
            features.append(carry)
        for t in range(4):
            row = t * 2 + b  # time-major
            torch.testing.assert_close(rows.features[row], features[t])
            torch.testing.assert_close(rows.next_features[row], features[t + 1].detach())
            assert torch.equal(rows.actions[row], batch["actions"][b, t + 1])
            assert rows.rewards[row] == batch["rewards"][b, t + 1]
            assert float(rows.discounts[row]) == pytest.approx(0.0 if batch["is_terminal"][b, t + 1] else 0.9)
            assert float(rows.weights[row]) == (0.0 if batch["is_first"][b, t + 1] else 1.0)
    assert not torch.allclose(rows.next_features, rows.next_target_features)
    assert not rows.next_target_features.requires_grad


def test_means_leave_out_rows_of_no_weight():
    values = torch.tensor([[1.0, 2.0, 100.0]])
    assert float(weighted_mean(values, torch.tensor([1.0, 1.0, 0.0]))) == 1.5
    assert float(weighted_mean(values, torch.tensor([0.5, 1.0, 0.0]))) == 1.25  # importance weights stay weights
    assert float(weighted_mean(values, None)) == pytest.approx(103 / 3)


def test_statistics_follow_the_batches():
    perception = Perception(SPEC, {}, normalize_observations=True)
    torch.manual_seed(0)
    obs = torch.randn(4000, 3) * 3.0 + 7.0
    batch = {"observations": obs, "next_observations": obs, "actions": obs[:, :1], "rewards": obs[:, 0]}
    batch["discounts"] = torch.ones(4000)
    perception.follow(batch)
    rows = perception(batch, perception, 0.9)
    assert float(rows.features.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(rows.features.std()) == pytest.approx(1.0, abs=1e-2)
    features, mask, carry = perception.step(obs[:2], None, torch.ones(2, dtype=torch.bool))
    torch.testing.assert_close(features, rows.features[:2])
    assert mask is None
    assert carry is None


def test_images_are_shifted_in_batches_only():
    spec = EnvSpec("made-up", Box((1, 36, 36), dtype=torch.uint8), SPEC.action)
    seen = []

    class Spy(nn.Module):
        output_dim = 1

        def forward(self, x):
            seen.append(x)
            return x.float().mean((-1, -2))

    perception = Perception(spec, {"encoder": Spy()}, shift_pad=4)
    images = torch.arange(36 * 36, dtype=torch.float32).view(1, 1, 36, 36).expand(4, -1, -1, -1).to(torch.uint8)
    perception.step(images, None, torch.ones(4, dtype=torch.bool))
    assert torch.equal(seen[-1], images)
    rewards = torch.zeros(4)
    batch = {"observations": images, "next_observations": images, "actions": torch.zeros(4, 1), "rewards": rewards}
    perception(batch | {"discounts": torch.ones(4)}, perception, 0.9)
    assert any(not torch.equal(x, images) for x in seen[1:])


@pytest.mark.parametrize(
    ("spec", "components", "options", "message"),
    [
        (EnvSpec("x", Box((1, 36, 36)), SPEC.action), {}, {}, r"components\.encoder: images need one"),
        (
            EnvSpec("x", Box((1, 36, 36)), SPEC.action),
            {"encoder": CNN((1, 36, 36))},
            {"normalize_observations": True},
            r"algorithm\.normalize_observations: needs vectors",
        ),
    ],
)
def test_what_does_not_fit_is_refused(spec, components, options, message):
    with pytest.raises(ConfigError, match=message):
        Perception(spec, components, **options)
