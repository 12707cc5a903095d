"""Phases in which latents are stored and read, and candidates tried: what cannot work is refused before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_lab.core import ConfigError, WorkflowContext

READERS = ("update_memory", "update_controller", "record_dream")  # of stored latents
BELIEF = "belief"  # what act records of latents: as they were stored
CHANGERS = ("collect", "update_vae")  # after which these are not what the VAE would say now
DREAM_STEPS = "dream_steps"  # of a film; a key of a phase


def reject_phases(context: WorkflowContext) -> None:
    """Raise when a phase would try candidates that nobody credits, or read latents that nobody has stored."""
    is_encoded = False
    for phase in context.config.get("training", {}).get("phases", ()):
        names = _hook_names(phase)
        is_trying = {"collect", "update_controller"} <= set(names)
        _reject_options(phase, names, is_trying, context)
        for name in names if not is_trying else ():
            if name in READERS and not is_encoded:
                raise ConfigError(f"phase {phase['name']!r}: {name} reads latents, which `encode` must store before it")
            is_encoded = name == "encode" or (is_encoded and name not in CHANGERS)


def _hook_names(phase: Mapping[str, Any]) -> list[str]:
    """Return the hooks that a phase lists, in their order."""
    given = phase.get("workflow_hooks", phase.get("hooks")) or ()
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in given]


def _reject_options(phase: Mapping[str, Any], names: list[str], is_trying: bool, context: WorkflowContext) -> None:
    buffer, steps = phase.get("buffer"), phase.get(DREAM_STEPS, 1)
    if "encode" in names and buffer is None:
        choices = ", ".join(context.buffers)
        raise ConfigError(f"phase {phase['name']!r}: encode needs to know its buffer (choices: {choices})")
    node = _sampled(context.config.get("buffers", {}).get(buffer) or {})
    if "encode" in names and node and BELIEF not in (node.get("refreshed") or ()):
        raise ConfigError(f"buffers.{buffer}.refreshed: encode stores what it finds as {BELIEF!r}, which is not in it")
    if is_trying and buffer is not None and not context.buffers[buffer].is_on_policy:
        raise ConfigError(f"phase {phase['name']!r}: update_controller beside collect needs a rollout, not {buffer!r}")
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"{DREAM_STEPS} of phase {phase['name']!r} must be a whole number >= 1, not {steps!r}")


def _sampled(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the buffer that is sampled, of one that records it too."""
    return _sampled(node["into"]) if "into" in node else node
