"""Diffusion in numbers: how much of a sample is left at each step of noise, and the steps back.

`x_t = sqrt(a_t) x_0 + sqrt(1 - a_t) noise` with `a_t` falling from 1 to 0 (Ho et al., 2020, arXiv 2006.11239); the way
back is that of Song et al., 2021 (arXiv 2010.02502), of which DDPM is the one end and DDIM the other.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Prediction = Literal["epsilon", "sample", "v"]
OFFSET = 0.008  # Nichol and Dhariwal, 2021
MAX_BETA = 0.999


class ReverseStep(NamedTuple):
    """`x' = of_sample x_0 + of_noisy x + of_noise z`, z a fresh standard normal."""

    step: int  # of the schedule, whose noise is in `x`
    of_sample: float
    of_noisy: float
    of_noise: float


def squared_cosine(num_steps: int) -> list[float]:
    """Return `a_t` for t = 0 .. num_steps - 1: the squared cosine of Nichol and Dhariwal, no step losing over 0.999."""

    def left(time: float) -> float:
        return math.cos((time + OFFSET) / (1.0 + OFFSET) * math.pi / 2.0) ** 2

    kept, found = 1.0, []
    for step in range(num_steps):
        kept *= 1.0 - min(1.0 - left((step + 1) / num_steps) / left(step / num_steps), MAX_BETA)
        found.append(kept)
    return found


def reverse_steps(kept: list[float], num_steps: int, eta: float) -> list[ReverseStep]:
    """Return the way back from noise in `num_steps` of the schedule's steps, the noisiest first and the last one pure.

    `eta` 1 is DDPM with the smaller of its two variances, 0 is DDIM, which draws nothing on the way.
    """
    total = len(kept)
    chosen = [round(total - index * total / num_steps) - 1 for index in range(num_steps)]
    return [_reverse(kept, step, after, eta) for step, after in zip(chosen, [*chosen[1:], -1], strict=True)]


def _reverse(kept: list[float], step: int, after: int, eta: float) -> ReverseStep:
    now, then = kept[step], 1.0 if after < 0 else kept[after]
    deviation = eta * math.sqrt((1.0 - then) / (1.0 - now) * (1.0 - now / then))
    of_noisy = math.sqrt(max(0.0, 1.0 - then - deviation**2) / (1.0 - now))
    return ReverseStep(step, math.sqrt(then) - of_noisy * math.sqrt(now), of_noisy, deviation)
