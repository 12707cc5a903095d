"""From YAML files and overrides to one config, by Hydra's compose API. Interpolations stay until the spec is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError

from rl_lab.config import monorepo
from rl_lab.config.budget import apply_caps
from rl_lab.config.circles import circle_error
from rl_lab.config.debugging import imply_debug
from rl_lab.config.overrides import addable, parse_overrides, spelled_out, unknown_option
from rl_lab.config.resolvers import DIMS, register_resolvers
from rl_lab.config.schema import defaults
from rl_lab.config.softlearning import translate as softlearning
from rl_lab.config.targets import Pending
from rl_lab.config.trees import ConfigDir, config_trees, group_files, group_names
from rl_lab.core.errors import ConfigError, enumerated, unknown_name


def compose(overrides: Sequence[str] = (), config_dir: ConfigDir = None) -> DictConfig:
    """Return the composed config with the budget's caps applied; not yet resolved, not yet validated."""
    register_resolvers()
    trees = config_trees(config_dir)
    chosen = addable(spelled_out(overrides), group_names(trees))
    said = [parsed for parsed in parse_overrides(chosen) if parsed.type is OverrideType.FORCE_ADD]  # no group's choice
    given = _compose(chosen, trees)
    for system in (monorepo, softlearning):  # configs in the words of other systems
        given = system.translate(given, lambda groups: _compose(groups, trees), said)
    config = OmegaConf.merge(OmegaConf.create(defaults()), given)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, False)
    if OmegaConf.is_missing(config.experiment, "name"):
        choices = enumerated(sorted(group_files("experiment", config_dir)), more="lab list experiments")
        raise ConfigError(f"experiment.name: missing; choose an experiment with +experiment=NAME (choices: {choices})")
    imply_debug(config, {parsed.key_or_group for parsed in parse_overrides(chosen)})
    return apply_caps(config)


def _compose(overrides: list[str], trees: Sequence[Path]) -> DictConfig:
    *user_trees, packaged = trees
    quoted = ["'file://" + str(tree).replace("'", "\\'") + "'" for tree in user_trees]
    searchpath = [f"hydra.searchpath=[{','.join(quoted)}]"] if user_trees else []
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(packaged), version_base="1.3"):
            return hydra_compose("config", overrides=[*searchpath, *overrides])
    except MissingConfigException as error:
        raise _missing_config(error, trees) from error
    except RecursionError:
        raise circle_error(parse_overrides(overrides), trees) from None
    except HydraException as error:
        return _compose_added(error, overrides, trees)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot merge the config: {one_line(error)}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name}, line {mark.line + 1}" if mark else "the config"
        raise ConfigError(f"cannot read {where}: {error.problem}") from error


def _compose_added(error: HydraException, overrides: list[str], trees: Sequence[Path]) -> DictConfig:
    """Append a group that no defaults list has yet (`experiment=NAME` without `+`), or tell what is wrong."""
    text = str(error)
    for index, override in enumerate(overrides):
        group = parse_overrides([override])[0].key_or_group
        if "No match in the defaults list" in text and f"'{group}'" in text and not override.startswith("+"):
            return _compose([*overrides[:index], f"+{override}", *overrides[index + 1 :]], trees)
    raise ConfigError(one_line(error)) from error


def _missing_config(error: MissingConfigException, trees: Sequence[Path]) -> ConfigError:
    """Turn `Could not find 'experiment/zz'` into the group's choices, the nearest first."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group or error.options is None:
        return ConfigError(unknown_name("config group", group or name, group_names(trees)))
    return unknown_option(group, name, error.options)


def one_line(error: BaseException) -> str:
    """Return the first line of a message; the rest tells of Hydra's insides."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def resolve(config: DictConfig, dims: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plain tree. Without `dims`, what depends on them is left as `Pending`."""
    filled = OmegaConf.merge(config, {DIMS: dict(dims)}) if dims is not None else config
    tree = {str(key): _plain(filled, key, str(key), dims is None) for key in filled if key != DIMS}
    return {key: {} if value is None else value for key, value in tree.items()}


def _plain(parent: Any, key: Any, path: str, may_wait: bool) -> Any:
    if OmegaConf.is_missing(parent, key):
        raise ConfigError(f"{path}: missing (give {path}=...)")
    try:
        value = parent[key]
    except InterpolationResolutionError as error:
        if may_wait and f"'{DIMS}" in str(error):
            return Pending(OmegaConf.to_container(parent, resolve=False)[key])  # type: ignore[index]
        raise ConfigError(f"{path}: {one_line(error)}") from error
    if OmegaConf.is_dict(value):
        return {str(name): _plain(value, name, f"{path}.{name}", may_wait) for name in value}
    if OmegaConf.is_list(value):
        return [_plain(value, index, f"{path}.{index}", may_wait) for index in range(len(value))]
    return value
