"""Sums and weights of metrics between two rows, kept on the device they came from until the row is written.

What comes from the CPU is summed in plain floats: reading a number there waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.metrics import Mean, Numbers
from rl_lab.core.ranks import Ranks

Number = Tensor | float


class Accumulators:
    """Weighted means per key. Adding never waits for a device; `means` and `so_far` wait once."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Number, Number]] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, group: str, metrics: Numbers) -> None:
        """Add a value with weight 1, or the total and weight of a Mean, to each `group/name`."""
        waiting: list[tuple[Tensor, Tensor]] = []  # sums on devices and what they are to grow by, all in one call
        for name, value in metrics.items():
            key = f"{group}/{name}"
            total, weight = value if isinstance(value, Mean) else (value, 1.0)
            old_total, old_weight = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = (_plus(old_total, total, key, waiting), _plus(old_weight, weight, key, waiting))
        if waiting:
            sums, values = zip(*waiting, strict=True)
            with torch.inference_mode(False), torch.no_grad():
                torch._foreach_add_(sums, values)

    def so_far(self) -> dict[str, float]:
        """Return the means, in the order they came in, without those of weight 0; the sums are on the host then."""
        sums = _to_floats(self._sums)
        self._sums = dict(sums)
        return {key: total / weight for key, (total, weight) in sums.items() if weight != 0.0}

    def means(self) -> dict[str, float]:
        """Return the means, sorted by key, without those of weight 0, and start anew."""
        means, self._sums = self.so_far(), {}
        return dict(sorted(means.items()))

    def join(self, ranks: Ranks) -> None:
        """Take in what the other ranks have summed; all of them then hold the sums of all."""
        if ranks.size == 1:
            return
        joined: dict[str, tuple[Number, Number]] = {}
        for sums in ranks.gather(_to_floats(self._sums)):
            for key, (total, weight) in sums.items():
                old_total, old_weight = joined.get(key, (0.0, 0.0))
                joined[key] = (old_total + total, old_weight + weight)
        self._sums = joined

    def get_state(self) -> dict[str, Any]:
        """Return the running sums."""
        return {key: (_to_cpu(total), _to_cpu(weight)) for key, (total, weight) in self._sums.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from these sums."""
        self._sums = {key: (float(total), float(weight)) for key, (total, weight) in state.items()}


def _plus(old: Number, value: Number, key: str, waiting: list[tuple[Tensor, Tensor]]) -> Number:
    """Return the sum; one on a device is there already but still `waiting` for its value."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"metric {key!r} has shape {tuple(value.shape)}; log one number, or a core.Mean of a sum")
        if value.device.type != "cpu":
            grown = _sum_on(value.device, old)
            waiting.append((grown, value.reshape(())))
            return grown
        value = value.item()
    return old + float(value)


def _sum_on(device: torch.device, old: Number) -> Tensor:
    if isinstance(old, Tensor) and old.device == device and not old.is_inference():
        return old
    with torch.inference_mode(False):  # it is written in place later, whatever mode the caller is in
        return torch.as_tensor(old).to(device, torch.float32, copy=True)


def _to_floats(sums: Mapping[str, tuple[Number, Number]]) -> dict[str, tuple[float, float]]:
    """Bring all tensors to the host with one transfer per device."""
    parts = [part for pair in sums.values() for part in pair]
    floats = [part if not isinstance(part, Tensor) else 0.0 for part in parts]
    places: dict[torch.device, list[int]] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Tensor):
            places.setdefault(part.device, []).append(index)
    for indices in places.values():
        values = torch.stack([torch.as_tensor(parts[index]) for index in indices]).tolist()
        for index, value in zip(indices, values, strict=True):
            floats[index] = value
    return dict(zip(sums, zip(floats[::2], floats[1::2], strict=True), strict=True))


def _to_cpu(part: Number) -> Tensor:
    """Return a copy: what a device has summed in its own type, what was summed here in double."""
    return part.detach().to("cpu", copy=True) if isinstance(part, Tensor) else torch.tensor(part, dtype=torch.float64)
