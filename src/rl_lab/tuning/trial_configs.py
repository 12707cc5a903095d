"""From the values of a trial to an experiment of its own: one YAML that says everything and runs with `lab train`."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from rl_lab.config.compose import compose, resolve
from rl_lab.config.overrides import parse_overrides
from rl_lab.config.targets import Targets
from rl_lab.config.trees import ConfigDir
from rl_lab.config.validate import validate
from rl_lab.core.errors import ConfigError
from rl_lab.core.trees import tree_leaves
from rl_lab.tuning.sweep_file import SweepFile

OWNED = ("experiment.root", "training.resume_path", "training.resume_mode", "training.resume_parts")
HEADER = "# @package _global_\n"


class TrialConfigs:
    """Composes the trials of a sweep, as `lab train +experiment=BASE key=value ...` would."""

    def __init__(self, sweep: SweepFile, trees: Sequence[Path], overrides: Sequence[str], targets: Targets) -> None:
        self._sweep, self._trees, self._targets = sweep, trees, targets
        self._overrides = [*sweep.options["overrides"], *overrides]
        _reject_conflicts(sweep, self._overrides)

    @cached_property
    def known(self) -> dict[str, Any]:
        """Return the keys of the base config and their values."""
        return dict(tree_leaves(self._composed({})))

    @cached_property
    def base_hash(self) -> str:
        """Return a hash of the base config, whatever files and overrides it comes from."""
        return hashlib.sha256(json.dumps(self._composed({}), sort_keys=True, default=str).encode()).hexdigest()

    def text(self, values: Mapping[str, Any]) -> str:
        """Return a trial's experiment; one that no run can have is refused."""
        return HEADER + yaml.safe_dump(self._composed(values), sort_keys=False, allow_unicode=True)

    def _composed(self, values: Mapping[str, Any]) -> Any:
        words = [f"{key}={hydra_value(value)}" for key, value in values.items()]
        config = compose([f"+experiment={_stem(self._sweep)}", *self._overrides, *words], self._trees or None)
        tags = [*OmegaConf.select(config, "experiment.tags"), self._sweep.name]
        OmegaConf.update(config, "experiment.tags", list(dict.fromkeys(tags)))
        self._check(config)
        return OmegaConf.to_container(config, resolve=False)

    def _check(self, config: DictConfig) -> None:
        known = validate(resolve(config), self._targets)
        if not known["training"]["phases"]:
            raise ConfigError("training.phases: none are given")


@contextmanager
def open_configs(
    sweep: SweepFile, targets: Targets, config_dir: ConfigDir = None, overrides: Sequence[str] = ()
) -> Iterator[TrialConfigs]:
    """Yield the composer; an experiment that lies in no config tree gets one for the time being."""
    given = [] if config_dir is None else [config_dir] if isinstance(config_dir, str | Path) else list(config_dir)
    trees = [*([] if sweep.base.tree is None else [sweep.base.tree]), *(Path(each) for each in given)]
    with tempfile.TemporaryDirectory() as folder:
        if sweep.base.content is not None:
            file = Path(folder) / "experiment" / f"{_stem(sweep)}.yaml"
            file.parent.mkdir()
            named = {"name": sweep.base.name} | (sweep.base.content.get("experiment") or {})
            content = sweep.base.content | {"experiment": named}
            file.write_text(HEADER + yaml.safe_dump(content, sort_keys=False))
            trees.insert(0, Path(folder))
        yield TrialConfigs(sweep, trees, overrides, targets)


def _stem(sweep: SweepFile) -> str:
    """Return the name under which the base is composed: a file that lies in no tree may be called as a packaged one."""
    return sweep.base.name if sweep.base.content is None else f"base_of_sweep_{sweep.name}"


def _reject_conflicts(sweep: SweepFile, overrides: Sequence[str]) -> None:
    """Refuse keys that are said in two places, and those which a sweep sets itself."""
    fixed = {parsed.key_or_group for parsed in parse_overrides(overrides)}
    seeds = ["experiment.seed"] if sweep.seeds else []
    for key in sweep.space:
        if key in OWNED:
            raise ConfigError(f"sweep.{key}: a sweep sets it itself")
        if key in seeds:
            raise ConfigError(f"conflicting sweep keys: 'sweep.{key}' and 'seeds' are both given")
    if both := sorted(fixed & {*sweep.space, *seeds}):
        raise ConfigError(f"conflicting sweep keys: {both[0]!r} is also given as an override")


def hydra_value(value: Any) -> str:
    """Return a value as Hydra's command line reads it."""
    if isinstance(value, str):
        return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'") + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(part) for part in value) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
