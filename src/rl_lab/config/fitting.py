"""Buffers that are made smaller until they fit, where `experiment.fit_memory` asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rl_lab.config.build import Parts, assemble
from rl_lab.config.memory import NoRoom, check_room
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.tracking.run_directory import RunDirectory

FITTED = "fitted_memory"  # in the manifest: what was asked for and what there is, by key; also an event
Fitted = dict[str, tuple[int, int]]


def fit_buffers(parts: Parts, root: Path, ranks: Ranks = ALONE) -> tuple[Parts, Fitted]:
    """Return the parts with buffers that fit, and the capacities before and after; what no capacity can mend is left.

    All ranks do what the first one finds.
    """
    fitted: Fitted = {}
    while parts.config["experiment"]["fit_memory"] and (smaller := ranks.first(_smaller(parts, root))):
        for key, capacity in smaller.items():
            before = fitted[key][0] if key in fitted else OmegaConf.select(parts.composed, key)
            fitted[key] = (before, capacity)
        parts.env.close()
        if parts.operator is not None:
            parts.operator.close()
        parts = assemble(with_capacities(parts.composed, smaller), parts.targets, ranks=ranks)
    return parts, fitted


def _smaller(parts: Parts, root: Path) -> dict[str, int]:
    """Return the capacities that must be lowered; none when all fits, or when that would not help."""
    try:
        check_room(parts.context.buffers, parts.config["buffers"], root)
    except NoRoom as error:
        capacities = {key: OmegaConf.select(parts.composed, key) for key in error.fitting}
        can = all(isinstance(capacities[key], int) and 0 < fit < capacities[key] for key, fit in error.fitting.items())
        return error.fitting if can else {}
    return {}


def with_capacities(composed: DictConfig, capacities: Mapping[str, int]) -> DictConfig:
    """Return a copy of the config with these capacities."""
    config = composed.copy()
    for key, capacity in capacities.items():
        OmegaConf.update(config, key, capacity)
    return config


def as_fitted_before(composed: DictConfig, run: RunDirectory) -> DictConfig:
    """Return the config of a run that goes on with the capacities it began with."""
    lowered = run.read_manifest().get(FITTED, {})
    is_same = OmegaConf.select(composed, "experiment.fit_memory") is True
    kept = {key: now for key, (asked, now) in lowered.items() if OmegaConf.select(composed, key) == asked}
    return with_capacities(composed, kept) if is_same and kept else composed


def describe(fitted: Fitted) -> list[str]:
    """Return a line for each buffer that was made smaller."""
    return [f"{key}: {now:,} instead of {asked:,}, which do not fit" for key, (asked, now) in fitted.items()]
