"""Sums and weights of metrics between two rows, kept on the device they came from until the row is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.metrics import Mean, Metrics

Number = Tensor | float


class Accumulators:
    """Weighted means per key. Adding never waits for a device; `means` waits once."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Number, Number]] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, group: str, metrics: Metrics) -> None:
        """Add a value with weight 1, or the total and weight of a Mean, to each `group/name`."""
        # Accumulators are written in place later: they must be ordinary tensors, whatever mode the caller is in.
        with torch.inference_mode(False), torch.no_grad():
            for name, value in metrics.items():
                key = f"{group}/{name}"
                total, weight = value if isinstance(value, Mean) else (value, 1.0)
                old_total, old_weight = self._sums.get(key, (0.0, 0.0))
                self._sums[key] = (_plus(old_total, total, key), _plus(old_weight, weight, key))

    def means(self) -> dict[str, float]:
        """Return the means, sorted by key, without those of weight 0, and start anew."""
        sums, self._sums = _to_floats(self._sums), {}
        return {key: sums[key][0] / sums[key][1] for key in sorted(sums) if sums[key][1] != 0.0}

    def get_state(self) -> dict[str, Any]:
        """Return the running sums."""
        return {key: tuple(_copy(part) for part in pair) for key, pair in self._sums.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from these sums."""
        self._sums = {key: (_copy(total), _copy(weight)) for key, (total, weight) in state.items()}


def _plus(old: Number, value: Number, key: str) -> Number:
    if not isinstance(value, Tensor):
        return old + float(value)
    if value.dim():
        if value.numel() != 1:
            raise ValueError(f"metric {key!r} has shape {tuple(value.shape)}; log one number, or a core.Mean of a sum")
        value = value.reshape(())
    if isinstance(old, Tensor) and old.device == value.device:
        return old.add_(value)
    dtype = torch.float64 if value.device.type == "cpu" else torch.float32
    if isinstance(old, Tensor):  # the first value after a resume: sums are restored on the CPU
        return old.to(value.device, dtype).add_(value)
    return value.to(dtype, copy=True).add_(old)


def _to_floats(sums: Mapping[str, tuple[Number, Number]]) -> dict[str, tuple[float, float]]:
    """Bring all tensors to the host with one transfer per device and dtype."""
    parts = [part for pair in sums.values() for part in pair]
    floats = [part if not isinstance(part, Tensor) else 0.0 for part in parts]
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Tensor):
            places.setdefault((part.device, part.dtype), []).append(index)
    for indices in places.values():
        values = torch.stack([torch.as_tensor(parts[index]) for index in indices]).tolist()
        for index, value in zip(indices, values, strict=True):
            floats[index] = value
    return dict(zip(sums, zip(floats[::2], floats[1::2], strict=True), strict=True))


def _copy(part: Number) -> Number:
    return part.detach().to("cpu", copy=True) if isinstance(part, Tensor) else part
