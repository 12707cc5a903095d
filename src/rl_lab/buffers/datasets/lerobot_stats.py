"""The statistics that LeRobot keeps of every feature, per episode and over the dataset.

Vectors are summarised per number, arrays of more dimensions along their last one, pictures per channel as fractions of
255. Nothing is squared in the type it is stored in: pictures are counted, not summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rl_lab.buffers.datasets.format import Array
from rl_lab.buffers.datasets.lerobot_format import Feature

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Stats = dict[str, Array]


def episode_stats(array: Array, feature: Feature) -> Stats:
    """Return the statistics of one episode's array [T, ...]; pictures are [T, C, H, W]."""
    stats = _of_pictures(array) if feature.is_picture else _of_rows(array, feature)
    return {**stats, "count": np.array([len(array)])}


def _of_rows(array: Array, feature: Feature) -> Stats:
    rows = array.reshape(-1, feature.shape[-1])
    numbers = rows.astype(np.float64)
    kept = np.float64 if rows.dtype.kind == "f" else np.int64 if rows.dtype.kind in "iu" else np.bool_
    stats = {"min": rows.min(0).astype(kept), "max": rows.max(0).astype(kept)}
    stats |= {"mean": numbers.mean(0), "std": numbers.std(0)}
    return stats | dict(zip(QUANTILES, np.quantile(numbers, list(QUANTILES.values()), axis=0), strict=True))


def _of_pictures(frames: Array) -> Stats:
    """Return per-channel statistics of uint8 pictures from how often each of the 256 values occurs."""
    channels = [_of_counts(np.bincount(frames[:, c].ravel(), minlength=256)) for c in range(frames.shape[1])]
    return {name: np.array([[[channel[name]]] for channel in channels]) for name in channels[0]}  # [C, 1, 1]


def _of_counts(counts: Array) -> dict[str, float]:
    values = np.arange(256) / 255
    total = int(counts.sum())
    mean = float(counts @ values) / total
    present = np.flatnonzero(counts)
    stats = {
        "min": float(values[present[0]]),
        "max": float(values[present[-1]]),
        "mean": mean,
        "std": float(np.sqrt(counts @ (values - mean) ** 2 / total)),
    }
    ends = np.cumsum(counts)  # value v holds the sorted places ends[v - 1] to ends[v] - 1
    for name, quantile in QUANTILES.items():
        place = quantile * (total - 1)
        low, high = np.searchsorted(ends, [np.floor(place), np.ceil(place)], side="right")
        stats[name] = float(values[low] + (values[high] - values[low]) * (place % 1))
    return stats


def join_stats(parts: Iterable[Mapping[str, Stats]]) -> dict[str, Stats]:
    """Return the statistics of all episodes: exact, but for quantiles, which are means weighted by length."""
    joined: dict[str, Stats] = {}
    for part in parts:
        joined = {name: _join(joined[name], stats) if name in joined else dict(stats) for name, stats in part.items()}
    return joined


def _join(a: Stats, b: Stats) -> Stats:
    of_a, of_b = float(a["count"][0]), float(b["count"][0])
    total = of_a + of_b
    mean = (a["mean"] * of_a + b["mean"] * of_b) / total
    squares = of_a * (a["std"] ** 2 + (a["mean"] - mean) ** 2) + of_b * (b["std"] ** 2 + (b["mean"] - mean) ** 2)
    stats = {"min": np.minimum(a["min"], b["min"]), "max": np.maximum(a["max"], b["max"])}
    stats |= {"mean": mean, "std": np.sqrt(squares / total), "count": a["count"] + b["count"]}
    return stats | {name: (a[name] * of_a + b[name] * of_b) / total for name in QUANTILES if name in a and name in b}
