"""Actions by denoising diffusion: DDPM (Ho et al., 2020) or DDIM (Song et al., 2021), as in Diffusion Policy."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.components.action_generators import ActionGenerator, Denoiser, weighted_squared_error
from rl_lab.core import ConfigError
from rl_lab.core.ranges import Count
from rl_lab.ops.noise_schedules import Prediction, reverse_steps, squared_cosine


class Diffusion(ActionGenerator):
    """Adds noise in the steps of a squared cosine, learns what it was, and takes it away step by step.

    Args:
        network: Reads noisy actions.
        num_steps: Steps of noise that are learned.
        num_sampling_steps: Of them, those on the way back; null: all.
        sampler: ddpm, which draws noise on the way back too, or ddim, which does not and gets by with 10 to 16 steps.
        prediction: What the network puts out: the noise (epsilon), the actions (sample), or v, a mixture of both.
    """

    kept: Tensor

    def __init__(
        self,
        network: Denoiser,
        num_steps: Count = 100,
        num_sampling_steps: Count | None = None,
        sampler: Literal["ddpm", "ddim"] = "ddpm",
        prediction: Prediction = "epsilon",
    ) -> None:
        super().__init__(network)
        count = num_sampling_steps or num_steps
        if count > num_steps:
            raise ConfigError(f"components.generator.num_sampling_steps: {count} are more than num_steps={num_steps}")
        self.num_steps, self.prediction = num_steps, prediction
        kept = squared_cosine(num_steps)
        self.steps = reverse_steps(kept, count, 1.0 if sampler == "ddpm" else 0.0)
        self.register_buffer("kept", torch.tensor(kept), persistent=False)
        self._roots = [(a**0.5, (1.0 - a) ** 0.5) for a in kept]

    def loss(self, condition: Any, actions: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the squared error of what the network says of actions with noise of random steps."""
        step = torch.randint(self.num_steps, (len(actions),), device=actions.device)
        noise = torch.randn_like(actions)
        kept = self.kept[step].view(-1, 1, 1)
        root, other = kept.sqrt(), (1.0 - kept).sqrt()
        wanted = {"epsilon": noise, "sample": actions, "v": root * noise - other * actions}[self.prediction]
        found = self.network(root * actions + other * noise, self._level(step), self.network.prepare(condition))
        return weighted_squared_error(found, wanted, weights)

    def sample(self, condition: Any, noise: Tensor, beside: Tensor | None = None) -> Tensor:
        """Return what is left of noise on the way back; at every step the actions are taken to lie in [-1, 1]."""
        prepared, noisy = self.network.prepare(condition), noise
        for back in self.steps:
            level = self._level(torch.full((1,), back.step, device=noise.device))
            sample = self._sample_in(noisy, self.network(noisy, level, prepared).float(), back.step).clamp(-1.0, 1.0)
            noisy = back.of_sample * sample + back.of_noisy * noisy
            if back.of_noise > 0.0:
                noisy = noisy + back.of_noise * torch.randn_like(noisy)
        return noisy

    def _level(self, step: Tensor) -> Tensor:
        return step / self.num_steps

    def _sample_in(self, noisy: Tensor, found: Tensor, step: int) -> Tensor:
        """Return the actions that the network sees in noisy ones."""
        root, other = self._roots[step]
        if self.prediction == "sample":
            return found
        return root * noisy - other * found if self.prediction == "v" else (noisy - other * found) / root
