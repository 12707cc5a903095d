"""The YAML of a sweep: a base config and what varies. A file may build on another one, or be an experiment itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from yaml import MarkedYAMLError, YAMLError

from rl_lab.config import monorepo
from rl_lab.config.block import Block
from rl_lab.config.compose import one_line
from rl_lab.config.trees import group_files
from rl_lab.config.typed_values import coerce_model
from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.ranges import Count, Natural, UnitInterval
from rl_lab.tuning.space import Values, read_space


class PopulationConfig(Block):
    """Population based training: the worst become copies of the best, with other values."""

    every_steps: Count = Field(description="Env steps between two comparisons of all members.")
    share: float = Field(default=0.25, gt=0, le=0.5, description="Of the members, the worst, that are replaced.")
    factor: float = Field(default=1.2, gt=1, description="A number is multiplied with, or divided by.")
    resample: UnitInterval = Field(default=0.25, description="Probability that a value is drawn anew instead.")


class HalvingConfig(Block):
    """Successive halving: only the best go on, for longer."""

    first_steps: Count = Field(description="Env steps before the first comparison of all members.")
    keep: float = Field(default=1 / 3, gt=0, lt=1, description="Of the members, the best, that go on.")


class TuneConfig(Block):
    """How `lab tune` searches."""

    trials: Count = Field(default=20, description="Different settings to try; members of a population.")
    metric: str = Field(default="eval/return", description="Metric of the runs that is looked at.")
    goal: Literal["maximize", "minimize"] = Field(default="maximize", description="Which way is better.")
    score: Literal["last", "best", "mean"] = Field(
        default="last", description="What of a run's rows counts: the last value, the best one, or their mean."
    )
    sampler: Literal["tpe", "cma_es", "random"] = Field(default="tpe", description="Who proposes settings.")
    pruner: Literal["none", "median", "halving", "hyperband"] = Field(
        default="median", description="Who ends trials early, by their values on the way."
    )
    startup_trials: Natural = Field(default=5, description="Trials before the pruner says anything.")
    storage: str = Field(default="journal", description="journal (a file beside the trials) or sqlite:///...")
    population: PopulationConfig | None = Field(default=None, description="Population based training, in rounds.")
    halving: HalvingConfig | None = Field(default=None, description="Successive halving, in rounds.")


ROUNDS = ("population", "halving")  # searches in which all members are compared at the same env steps


class SweepConfig(Block):
    """All keys of a sweep's file."""

    base_config: str | None = Field(default=None, description="Experiment, by name or file; or another sweep's file.")
    sweep: dict[str, Any] = Field(default={}, description="key: list, distribution, expression or one value.")
    method: Literal["grid", "random"] = Field(default="grid", description="All combinations of lists, or some.")
    num_samples: Count = Field(default=1, description="How often the grid is gone through; random: combinations.")
    seeds: list[Natural] | Natural = Field(default=[], description="Seeds of every setting: a list, or how many.")
    sample_seed: Natural = Field(default=0, description="Of the draws.")
    parallel_jobs: Count | None = Field(default=None, description="Trials at once; null: as many as cores or GPUs.")
    gpus_per_trial: Natural | None = Field(
        default=None, description="GPUs that a trial has to itself; null: one, shared if there are more trials at once."
    )
    cpus_per_trial: Count = Field(default=1, description="Cores that a trial is counted with.")
    overrides: list[str] = Field(default=[], description="key=value for every trial, as on the command line.")
    tune: TuneConfig | None = Field(default=None, description="How `lab tune` searches.")


@dataclass(frozen=True)
class Base:
    """The experiment that all trials begin with."""

    name: str
    tree: Path | None = None  # config tree that holds it, beside the packaged one
    content: dict[str, Any] | None = None  # of a file that lies in no tree


@dataclass(frozen=True)
class SweepFile:
    """A sweep as its file, and those it builds on, say."""

    name: str
    base: Base
    space: dict[str, Values]
    options: dict[str, Any]  # of SweepConfig, as validated
    raw: dict[str, Any]  # what decides its trials, to be compared with what was begun
    notes: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of every setting; none: that of the experiment."""
        given = self.options["seeds"]
        return list(range(1, given + 1)) if isinstance(given, int) else list(given)

    @property
    def tune(self) -> dict[str, Any]:
        """Return the options of the search."""
        return self.options["tune"] or TuneConfig().model_dump()


def read_sweep(path: str | Path) -> SweepFile:
    """Read a sweep's file, or a packaged one by its name, and all that it builds on."""
    file, notes = Path(path), list[str]()
    if not file.exists():
        known = group_files("sweep")
        if str(path) not in known and not file.suffix:
            raise ConfigError(f"{unknown_name('sweep', path, known)}, and no file has this name")
        file = known.get(str(path), file)
    own, base = _chain(file, [], notes)
    options = coerce_model("", own, SweepConfig)
    _reject_two_searches(own.get("tune") or {})
    space = read_space(options["sweep"])
    for name in (
        "parallel_jobs",
        "gpus_per_trial",
        "cpus_per_trial",
        "tune",
        "base_config",
    ):  # decide no trial of a sweep
        own.pop(name, None)
    raw = {**own, "base": {"name": base.name, "content": base.content}}
    sweep = SweepFile(file.stem, base, _in_lab_words(space, base), options, raw, notes)
    _check_seeds(own.get("seeds"), sweep.seeds)
    if not space and not sweep.seeds:
        raise ConfigError(f"{path}: nothing varies (zero trials): give a sweep block, or seeds")
    return sweep


def _check_seeds(given: object, seeds: list[int]) -> None:
    if given is not None and not seeds:
        raise ConfigError(f"seeds: {given!r} makes zero trials: leave it out, or give a list or how many")
    if len(set(seeds)) < len(seeds):
        twice = next(seed for place, seed in enumerate(seeds) if seed in seeds[:place])
        raise ConfigError(f"seeds: {twice} is given twice, which makes equal trials")


def _reject_two_searches(tune: Mapping[str, Any]) -> None:
    """Refuse options of a study beside those of a search in rounds, which would not be listened to."""
    rounds = [key for key in ROUNDS if tune.get(key) is not None]
    others = [*rounds[1:], *(key for key in ("sampler", "pruner", "startup_trials", "storage") if key in tune)]
    if rounds and others:
        raise ConfigError(f"tune.{others[0]}: does not go with tune.{rounds[0]}")


def _chain(file: Path, above: list[Path], notes: list[str]) -> tuple[dict[str, Any], Base]:
    """Return the keys of a sweep's file over those that it builds on, and the experiment below all of them."""
    place = file.resolve()
    if place in above:
        names = " -> ".join(each.name for each in [*above[above.index(place) :], place])
        raise ConfigError(f"base_config: the files build on each other in a circle: {names}")
    tree = load_yaml(file)
    own = {key: tree.pop(key) for key in SweepConfig.model_fields if key in tree}
    base = own.get("base_config")
    if base is None:
        if not tree:
            raise ConfigError(f"{file}: base_config is missing (an experiment's name or file)")
        return own, Base(file.stem, content=tree)
    if tree:
        raise ConfigError(f"{file}: " + unknown_name("key", next(iter(tree)), SweepConfig.model_fields))
    if not isinstance(base, str):
        raise ConfigError(f"{file}: base_config must be a name or a file, not {base!r}")
    found = _find(base, file.parent)
    if found is None:
        return own, _packaged(base, file, notes)
    if _is_sweep(found):
        below, experiment = _chain(found, [*above, place], notes)
        return _over(own, below), experiment
    if found.parent.name == "experiment":
        return own, Base(found.stem, found.resolve().parent.parent)
    content = load_yaml(found)
    return own, Base(found.stem, content={monorepo.KEY: content} if monorepo.is_file_of_it(content) else content)


def _over(own: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Join two files: keys of the upper one win, in the sweep block one by one."""
    sweeps = [block for block in (below.get("sweep"), own.get("sweep")) if isinstance(block, Mapping)]
    joined = {key: value for block in sweeps for key, value in block.items()}
    return {**below, **own, **({"sweep": joined} if sweeps else {})}


def _find(base: str, folder: Path) -> Path | None:
    """Return the file that is meant: beside the sweep's own, or from where the command is given."""
    return next((path for path in (folder / base, Path(base)) if path.is_file()), None)


def _packaged(base: str, file: Path, notes: list[str]) -> Base:
    name, known = Path(base).stem if base.endswith((".yaml", ".yml")) else base, group_files("experiment")
    if name not in known:
        raise ConfigError(f"{file}: base_config: " + unknown_name("experiment or file", base, known))
    if name != base:
        notes.append(f"{base} is not there: the lab's own experiment {name} is taken")
    return Base(name)


def _is_sweep(file: Path) -> bool:
    tree = load_yaml(file)
    return "base_config" in tree or "sweep" in tree


def load_yaml(file: Path) -> dict[str, Any]:
    """Return a YAML mapping with numbers such as 3e-4 as numbers; keys that are given twice are refused."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"cannot read {file}{where}: {error.problem}") from error
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {one_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"cannot read {file}: expected key: value lines")
    return {str(key): value for key, value in tree.items()}


# Keys of the mono-repo's sweeps, where the base is an experiment of the lab.
WORDS = {"algorithm.lr": "optimizers.policy.lr", "algorithm.clip_ratio": "algorithm.clip_range"}


def _in_lab_words(space: dict[str, Values], base: Base) -> dict[str, Values]:
    """Return the space with the mono-repo's words for keys as the lab's; of a base in its words they are the base's."""
    if monorepo.KEY in (base.content or {}):
        is_its = {key: key.split(".")[0] in monorepo.BLOCKS for key in space}
        return {f"{monorepo.KEY}.{key}" if is_its[key] else key: values for key, values in space.items()}
    renamed: dict[str, Values] = {}
    for key, values in space.items():
        name = f"components.{key.removeprefix('network.')}" if key.startswith("network.") else WORDS.get(key, key)
        if name in renamed or (name != key and name in space):
            raise ConfigError(f"sweep: conflicting sweep keys {key!r} and {name!r}: they mean the same")
        renamed[name] = values
    return renamed
