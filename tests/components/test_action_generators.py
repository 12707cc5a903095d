"""Diffusion and flow matching with networks that know the answer: what is drawn is what was to be learned."""

import numpy as np
import pytest
import torch

from rl_lab.components.action_generators import Denoiser, sinusoids, weighted_squared_error
from rl_lab.components.diffusion import Diffusion
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.core import ConfigError

torch.set_num_threads(1)
MEAN, STD = 0.2, 0.1  # of the actions, far enough from the borders of [-1, 1]


class Known(Denoiser):
    """The best that a network can say of actions that are normal, and are moved by the condition."""

    def __init__(self, kind, kept=None):
        super().__init__()
        self.kind, self.kept = kind, kept
        self.calls = []

    def forward(self, noisy, level, prepared):
        self.calls.append(level)
        shares = self._shares(level.view(-1, 1, 1).double())
        root, other = shares
        spread = root**2 * STD**2 + other**2
        away = noisy.double() - root * (MEAN + prepared)
        actions, noise = MEAN + prepared + root * STD**2 * away / spread, other * away / spread
        answers = {"epsilon": noise, "sample": actions, "v": root * noise - other * actions, "flow": noise - actions}
        return answers[self.kind].float()

    def _shares(self, level):
        if self.kept is None:
            return 1 - level, level
        kept = torch.tensor(self.kept, dtype=torch.float64)[(level * len(self.kept)).round().long()]
        return kept.sqrt(), (1 - kept).sqrt()


def diffusion(prediction="epsilon", sampler="ddpm", count=None, num_steps=100):
    made = Diffusion(Known(prediction), num_steps, count, sampler, prediction)
    made.network.kept = made.kept.tolist()
    return made


def spread_of_chain(kept, count, sampler):
    """The standard deviation that the whole chain ends with, followed through each of its linear steps in float64."""
    chosen = [round(100 - index * 100 / count) - 1 for index in range(count)]
    variance = 1.0
    for now, then in zip(chosen, [*chosen[1:], None], strict=True):
        a, after = kept[now], 1.0 if then is None else kept[then]
        gain = np.sqrt(a) * STD**2 / (a * STD**2 + 1 - a)  # of the best guess at the actions
        if sampler == "ddim":
            factor, noise = np.sqrt(after) * gain + np.sqrt(1 - after) * (1 - np.sqrt(a) * gain) / np.sqrt(1 - a), 0.0
        else:
            beta = 1 - a / after
            factor = (np.sqrt(after) * beta * gain + np.sqrt(1 - beta) * (1 - after)) / (1 - a)
            noise = beta * (1 - after) / (1 - a)
        variance = factor**2 * variance + noise
    return np.sqrt(variance)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
@pytest.mark.parametrize(("sampler", "count"), [("ddpm", 100), ("ddim", 100), ("ddim", 16)])
def test_diffusion_draws_the_distribution_that_was_to_be_learned(prediction, sampler, count):
    torch.manual_seed(0)
    made = diffusion(prediction, sampler, count)
    drawn = made.sample(torch.tensor([[0.1, -0.3]]), torch.randn(8000, 1, 2))
    assert drawn.mean((0, 1)).tolist() == pytest.approx([MEAN + 0.1, MEAN - 0.3], abs=0.01)
    wanted = spread_of_chain(made.kept.double().tolist(), count, sampler)  # finite steps draw a narrow one narrower
    assert drawn.std(0).flatten().tolist() == pytest.approx([wanted, wanted], rel=0.03)
    assert wanted == pytest.approx(STD, rel=0.4 if count == 16 else 0.15)
    assert len(made.network.calls) == count


def test_what_the_network_puts_out_does_not_change_what_is_drawn():
    noise = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(1))
    drawn = [diffusion(kind, "ddim", 10).sample(0.0, noise) for kind in ("epsilon", "sample", "v")]
    assert torch.allclose(drawn[0], drawn[1], atol=1e-4)
    assert torch.allclose(drawn[1], drawn[2], atol=1e-4)


def test_actions_stay_in_their_range():
    made = diffusion("epsilon", "ddpm")
    drawn = made.sample(5.0, torch.randn(50, 4, 2))
    assert (drawn == 1.0).all()


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v"])
def test_the_loss_of_diffusion_against_a_loop(prediction):
    class Fixed(Denoiser):
        def forward(self, noisy, level, prepared):
            return 0.3 * noisy + level.view(-1, 1, 1) + prepared

    made = Diffusion(Fixed(), 50, prediction=prediction)
    actions, weights = torch.rand(6, 4, 2) * 2 - 1, (torch.rand(6, 4) < 0.6).float()
    torch.manual_seed(3)
    steps, noise = torch.randint(50, (6,)).numpy(), torch.randn(6, 4, 2).double().numpy()
    torch.manual_seed(3)
    found = made.loss(0.1, actions, weights).item()
    kept, total = made.kept.double().numpy(), 0.0
    for row in range(6):
        a = kept[steps[row]]
        for place in range(4):
            x0, eps = actions[row, place].double().numpy(), noise[row, place]
            said = 0.3 * (np.sqrt(a) * x0 + np.sqrt(1 - a) * eps) + steps[row] / 50 + 0.1
            wanted = {"epsilon": eps, "sample": x0, "v": np.sqrt(a) * eps - np.sqrt(1 - a) * x0}[prediction]
            total += float(weights[row, place]) * ((said - wanted) ** 2).mean()
    assert found == pytest.approx(total / float(weights.sum()), rel=1e-5)


def test_flow_draws_the_distribution_that_was_to_be_learned():
    torch.manual_seed(0)
    made = FlowMatching(Known("flow"), num_sampling_steps=100)
    drawn = made.sample(torch.tensor([[0.1, -0.3]]), torch.randn(4000, 1, 2))
    assert drawn.mean((0, 1)).tolist() == pytest.approx([MEAN + 0.1, MEAN - 0.3], abs=0.01)
    assert drawn.std(0).flatten().tolist() == pytest.approx([STD, STD], rel=0.1)
    levels = torch.cat(made.network.calls)
    assert levels.tolist() == pytest.approx(np.linspace(1.0, 0.01, 100), abs=1e-6)


def test_the_loss_of_flow_matching_and_its_levels():
    class Asked(Denoiser):
        def forward(self, noisy, level, prepared):
            self.noisy, self.level = noisy, level
            return torch.zeros_like(noisy)

    made, actions = FlowMatching(Asked()), torch.rand(20_000, 1, 1) * 2 - 1
    loss = made.loss(None, actions).item()
    level = made.network.level
    assert level.mean().item() == pytest.approx(0.6, abs=0.01)  # Beta(1.5, 1)
    assert level.var().item() == pytest.approx(1.5 / (2.5**2 * 3.5), abs=0.003)
    assert 0.001 <= level.min().item() < level.max().item() <= 1.0
    share = level.view(-1, 1, 1)
    noise = (made.network.noisy - (1 - share) * actions) / share
    assert loss == pytest.approx((noise - actions).square().mean().item(), rel=1e-3)
    assert loss == pytest.approx(1 + 1 / 3, abs=0.05)  # variances of noise and of uniform actions


def test_steps_without_weight_do_not_count():
    found, wanted = torch.zeros(2, 3, 2), torch.ones(2, 3, 2)
    wanted[0, 1:] = 9.0
    weights = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert weighted_squared_error(found, wanted, weights).item() == 1.0
    assert weighted_squared_error(found, wanted, torch.zeros(2, 3)).item() == 0.0


def test_sinusoids_are_those_of_a_hundred_steps():
    found = sinusoids(torch.tensor([0.0, 0.37]), 8)
    frequencies = np.exp(-np.log(10_000) * np.arange(4) / 3)
    assert found[1].numpy() == pytest.approx(
        np.concatenate([np.sin(37 * frequencies), np.cos(37 * frequencies)]), abs=1e-5
    )


def test_more_steps_back_than_forth_are_one_line():
    with pytest.raises(ConfigError, match=r"^components.generator.num_sampling_steps: 20 are more than num_steps=10$"):
        Diffusion(Known("epsilon"), 10, 20)
