"""What may differ between a run's config and the one it is resumed with."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rl_lab.config.alerts import AlertsConfig
from rl_lab.config.freeze import thaw
from rl_lab.config.transport import TransportConfig
from rl_lab.core.errors import ConfigError
from rl_lab.core.trees import tree_leaves

# On an exact resume the numbers up to here stay what they were; these decide only how long it goes on and what is kept.
MAY_GROW = ("training.total_timesteps", "training.phases.*.duration_*", "training.phases.*.steps",
            "training.phases.*.updates", "training.phases.*.cycles")  # fmt: skip
MAY_CHANGE = ("training.check_finite", "training.checkpoint_*", "training.keep_*", "training.video_*", "logging.*",
              "alerts.*", "experiment.tags*", "transport.address", "transport.directory", "transport.certificate",
              "transport.actor", "transport.max_lead", "transport.deadline_s", "transport.prefetch",
              "transport.spool_bytes", "transport.sync_every_step", "transport.limits.*")  # fmt: skip
# A fork goes on from all that was, with other numbers; what is made by them must still fit what it is given.
FORK_MAY_CHANGE = ("algorithm.*", "optimizers.*", "buffers.*")
# Where a run lies and what it started from is no part of what it computes.
NOT_COMPARED = ("experiment.root", "experiment.name", "training.resume_*", "budget.*", "schema_version",
                "training.teacher.run", "training.teacher.checkpoint")  # fmt: skip  # a checkpoint has its hash

# Options that runs of an older lab lack, and what they did without them.
NEWER = {
    "experiment.num_seeds": 1,
    "experiment.devices": 1,
    "experiment.debug": False,
    "experiment.fit_memory": False,
    "logging.hash_chain": "all",
    "training.video_frequency": None,
    "training.video_length": 200,
    **dict(tree_leaves({"transport": TransportConfig().model_dump(), "alerts": AlertsConfig().model_dump()})),
}


class Change(NamedTuple):
    """One key that differs."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return what differs, by dotted key; what is absent on one side is None there."""
    before, after = dict(tree_leaves(thaw(old))), dict(tree_leaves(thaw(new)))
    before = {key: value for key, value in NEWER.items() if key in after} | before
    keys = [*before, *(key for key in after if key not in before)]
    found = [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]
    return [change for change in found if not _matches(change.key, NOT_COMPARED)]


def check_exact(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the changes of an exact resume, or raise a ConfigError that lists those it does not allow."""
    return _check(old, new, "an exact resume", MAY_CHANGE)


def check_fork(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the changes of a fork, or raise a ConfigError that lists those it does not allow."""
    return _check(old, new, "a fork", (*FORK_MAY_CHANGE, *MAY_CHANGE))


def _check(old: Mapping[str, Any], new: Mapping[str, Any], who: str, may_change: tuple[str, ...]) -> list[Change]:
    found = changes(old, new)
    refused = [change for change in found if not _is_allowed(change, may_change)]
    if refused:
        listed = "; ".join(str(change) for change in refused)
        allowed = ", ".join((*(f"longer {pattern}" for pattern in MAY_GROW[:2]), *may_change))
        raise ConfigError(f"{who} cannot change {listed} (may change: {allowed}; or use a warm start)")
    return found


def _is_allowed(change: Change, may_change: tuple[str, ...]) -> bool:
    if _matches(change.key, may_change):
        return True
    is_number = isinstance(change.old, int | float) and isinstance(change.new, int | float)
    return _matches(change.key, MAY_GROW) and is_number and change.new > change.old


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)
