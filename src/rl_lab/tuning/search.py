"""What a search is about, before anybody searches: the space that is chosen from, and its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rl_lab.core.errors import ConfigError
from rl_lab.tuning.plan import plan
from rl_lab.tuning.space import Distribution, Expression, Fixed, Grid, Space
from rl_lab.tuning.sweep import planned
from rl_lab.tuning.sweep_directory import SweepDirectory
from rl_lab.tuning.sweep_file import SweepFile
from rl_lab.tuning.trial_configs import TrialConfigs

BASE_HASH = "base_hash"
_DRAWS = 4  # before a space is refused: some of its settings may be unusable


def search_space(space: Space) -> dict[str, Distribution]:
    """Return what the study chooses: distributions, and lists as choices."""
    chosen: dict[str, Distribution] = {}
    for key, values in space.items():
        if isinstance(values, Distribution):
            chosen[key] = values
        elif isinstance(values, Grid):
            chosen[key] = Distribution("choice", choices=values.values)
        else:
            assert isinstance(values, Fixed | Expression)
    if not chosen:
        raise ConfigError("sweep: nothing to choose: give a list or a distribution")
    return chosen


def prepare_search(
    directory: SweepDirectory,
    sweep: SweepFile,
    overrides: Sequence[str],
    configs: TrialConfigs,
    settled: Mapping[str, Any] | None = None,
) -> None:
    """Make the directory of a search, once a setting of its space has been checked; one that lies there must fit.

    `settled` are more options which must not change once it has begun.
    """
    definition = {**sweep.raw, "search": sweep.tune["goal"]} | ({} if settled is None else {"tune": dict(settled)})
    definition["overrides"] = [*sweep.options["overrides"], *overrides]
    if not directory.is_planned():
        check_search(sweep, configs)
        directory.make()
        with directory.claim("plan"):
            if not directory.is_planned():  # else another process was faster
                directory.write_plan(definition | {BASE_HASH: configs.base_hash}, [])
    begun = directory.read_plan()[0].get(BASE_HASH)  # None: of a lab that did not keep it
    planned(directory, definition | {BASE_HASH: begun})
    if begun not in (None, configs.base_hash):
        raise ConfigError(
            f"base_config: {sweep.base.name} comes to another config than when the search in {directory.path} was "
            "begun; undo that, or give another --dir"
        )


def check_search(sweep: SweepFile, configs: TrialConfigs) -> dict[str, Any]:
    """Return a setting at random; a space of which no run could have any, as far as a few draws tell, is refused."""
    for key, chosen in search_space(sweep.space).items():
        if chosen.kind == "normal":
            raise ConfigError(f"sweep.{key}: normal cannot be tuned (it has no ends): take uniform")
    first = sweep.options["sample_seed"]
    for seed in range(first, first + _DRAWS):
        with suppress(ConfigError):
            return _draw(sweep, configs, seed)
    return _draw(sweep, configs, first)


def _draw(sweep: SweepFile, configs: TrialConfigs, seed: int) -> dict[str, Any]:
    (values,) = plan(sweep.space, method="random", seed=seed, known=configs.known)
    configs.text(values)
    return values
