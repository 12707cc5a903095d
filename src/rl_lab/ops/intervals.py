"""How sure a share of successes is: the score interval (Wilson, 1927), which holds also at 0 and at 100 %."""

from __future__ import annotations

import math
from collections.abc import Mapping

Z_95 = 1.959963984540054  # of the normal distribution: 95 % lie within


def wilson_interval(share: float, num_trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return the lowest and the highest share that `share` of `num_trials` successes is compatible with."""
    spread = z * z / num_trials
    middle = (share + spread / 2.0) / (1.0 + spread)
    half = math.sqrt(share * (1.0 - share) * spread + spread * spread / 4.0) / (1.0 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def with_interval(metrics: Mapping[str, float], share: str, num_trials: str) -> dict[str, float]:
    """Return metrics with the 95 % interval of a share beside it, where both names are among them."""
    if share not in metrics or num_trials not in metrics:
        return dict(metrics)
    low, high = wilson_interval(metrics[share], int(metrics[num_trials]))
    return {**metrics, f"{share}_low": low, f"{share}_high": high}
