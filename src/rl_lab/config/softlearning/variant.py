"""A whole variant, as Softlearning's examples make it and as its runs keep it in `params.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rl_lab.config.foreign import Options, Placed, as_block
from rl_lab.config.softlearning.options import Part, Surroundings, Translator, translate_node
from rl_lab.core.errors import ConfigError, unknown_name

PLACES = {  # where its nodes stand in the lab
    "algorithm_params": "workflow",
    "policy_params": "components.actor",
    "Q_params": "components.critic",
    "replay_pool_params": "buffers.replay",
}
OTHERS = ("environment_params", "sampler_params", "exploration_policy_params", "run_params", "git_sha")
PRESETS = {"SAC": "sac", "SQL": "sql"}
TENSOR_DOMAINS = {"MultiGoal": "multigoal"}  # batches of tensors in the lab, with configs of their own


def place(variant: Mapping[str, Any]) -> Placed:
    """Return where its parts stand in the lab."""
    for key in variant:
        if key not in PLACES and key not in OTHERS:
            raise ConfigError(unknown_name("key of variant", key, (*PLACES, *OTHERS)))
    algorithm = as_block("variant.algorithm_params", variant.get("algorithm_params"))
    name = str(algorithm.get("class_name"))
    if name not in PRESETS:
        raise ConfigError(unknown_name("variant.algorithm_params.class_name", name, PRESETS))
    values = {path: as_block(f"variant.{key}", variant[key]) for key, path in PLACES.items() if key in variant}
    environment, domain = _environment(variant)
    values |= environment | _run(variant, algorithm)
    if "exploration_policy_params" in variant:
        path = "variant.exploration_policy_params"
        translate_node(path, variant["exploration_policy_params"], EXPLORATION, Surroundings())
    groups = [f"+preset={PRESETS[name]}"]
    if domain:
        groups.append(f"+environment={TENSOR_DOMAINS.get(domain, 'gymnasium')}")
    return Placed(groups, re.sub(r"\W+", "_", f"{name}_{domain}".strip("_").lower()), values)


def _environment(variant: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the environment's values and its domain; both are empty when the variant has none."""
    if "environment_params" not in variant:
        return {}, ""
    both = Options("variant.environment_params", variant["environment_params"])
    training = both.need("training")
    if (evaluation := both.take("evaluation")) not in (None, training):
        raise ConfigError(f"{both.path}.evaluation: must be that of training here, not {evaluation!r}")
    both.finish()
    options = Options(f"{both.path}.training", training)
    universe, domain, task = (options.word(key) for key in ("universe", "domain", "task"))
    kwargs = dict(as_block(f"{options.path}.kwargs", options.take("kwargs")))
    options.finish()
    limit = _path_length(variant)
    if domain in TENSOR_DOMAINS:
        return {"environment.num_envs": 1, **({"environment.max_episode_steps": limit} if limit else {})}, domain
    if "pixel_wrapper_kwargs" in kwargs:
        kwargs |= _pixels(f"{options.path}.kwargs.pixel_wrapper_kwargs", kwargs.pop("pixel_wrapper_kwargs"), universe)
    if limit is not None:
        kwargs["max_episode_steps"] = limit
    name = f"{universe}/{domain}/{task}"
    return {"environment.name": name, "environment.num_envs": 1, "environment.env_kwargs": kwargs}, domain


def _pixels(path: str, given: Any, universe: str) -> dict[str, Any]:
    """Return the options of dm_control's pictures."""
    if universe != "dm_control":
        raise ConfigError(f"{path}: only dm_control draws pixels by an option here, not {universe!r}")
    options = Options(path, given)
    render = Options(f"{path}.render_kwargs", options.take("render_kwargs"))
    size = [render.take("height", 84), render.take("width", 84)]
    camera = render.take("camera_id", 0)
    observations = "pixels" if options.take("pixels_only", True) else "pixels+state"
    render.finish()
    options.finish()
    return {"observations": observations, "size": size[0] if size[0] == size[1] else size, "camera_id": camera}


def _path_length(variant: Mapping[str, Any]) -> int | None:
    if "sampler_params" not in variant:
        return None
    part = translate_node("variant.sampler_params", variant["sampler_params"], SAMPLERS, Surroundings())
    limit: int | None = part.node["max_path_length"]
    return limit


def _run(variant: Mapping[str, Any], algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seed, and how often is saved: Softlearning counts epochs."""
    options = Options("variant.run_params", variant.get("run_params"))
    options.ignore("host_name", "checkpoint_at_end", "checkpoint_replay_pool")
    said = {}
    if (seed := options.take("seed")) is not None:
        said["experiment.seed"] = seed
    if epochs := options.number("checkpoint_frequency"):
        config = Options("variant.algorithm_params.config", algorithm.get("config"))
        said["training.checkpoint_frequency"] = epochs * config.number("epoch_length", 1_000)
    options.finish()
    return said


def _simple_sampler(options: Options, around: Surroundings) -> Part:
    options.ignore("store_last_n_paths")
    return Part({"max_path_length": options.number("max_path_length", low=1)})


def _uniform_policy(options: Options, around: Surroundings) -> Part:
    """Accept it: the workflow draws the warm-up uniformly by itself."""
    options.ignore("observation_keys", "name")
    return Part({})


SAMPLERS: dict[str, Translator] = {"SimpleSampler": _simple_sampler}
EXPLORATION: dict[str, Translator] = {"ContinuousUniformPolicy": _uniform_policy}
