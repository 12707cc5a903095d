"""Whether a second run went the way of the first: by the hash chain, the rows of metrics and the checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rl_lab.core.buffer import Segment
from rl_lab.core.errors import CheckpointError, RunDirectoryError
from rl_lab.tracking.chain_comparison import compare_steps, compare_updates
from rl_lab.tracking.checkpoint import CheckpointStore, Entry
from rl_lab.tracking.divergence import Divergence
from rl_lab.tracking.fingerprint import GROUPS, fingerprint, tree_hash
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.run_directory import RunDirectory

_STREAMS = ("environment", "buffers", "rng", "parameters", "optimizers", "counters")  # in the order of cause and effect
_GROUPS = {"collect": "environment", "buffer": "buffers", "eval": "evaluation"}  # of metrics; others are the learner's


@dataclass(frozen=True)
class Verdict:
    """How much was compared, up to which env step, and where the runs part."""

    vector_steps: int  # of the hash chain
    updates: int  # of the hash chain
    rows: int
    checkpoints: int
    step: int
    divergence: Divergence | None


def compare_runs(original: RunDirectory, replica: RunDirectory, steps: int | None = None) -> Verdict:
    """Compare what two runs left behind, as far as both have come, or up to `steps`; the earliest difference counts."""
    chains = [compare(original, replica, steps) for compare in (compare_steps, compare_updates)]
    pairs, missing = _row_pairs(original, replica, steps)
    shared = _shared_checkpoints(original, replica, steps)
    if not pairs and not shared and missing is None and not any(chain.links for chain in chains):
        limit = "" if steps is None else f" up to env step {steps}"
        raise RunDirectoryError(f"nothing to compare: {original.path} has no row and no shared checkpoint{limit}")
    found = [chain.divergence for chain in chains]  # at the same env step what is first here was first
    found += [missing, next((_row_difference(*pair) for pair in pairs if pair[0] != pair[1]), None)]
    found += [_checkpoint_difference(original, replica, *each) for each in shared]
    parts = [difference for difference in found if difference is not None]
    first = min(parts, key=lambda each: each.step, default=None)
    places = [row["step"] for row, _ in pairs] + [entry.counters.get("env_steps", 0) for entry, _ in shared]
    step = max([*places, *(chain.env_steps for chain in chains)])
    return Verdict(chains[0].links, chains[1].links, len(pairs), len(shared), step, first)


def _row_pairs(
    original: RunDirectory, replica: RunDirectory, steps: int | None
) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], Divergence | None]:
    """Return the rows of both up to `steps`, or as far as the original came, and where one has more than the other."""
    first, second = ([row for row in read_rows(run.metrics_file) if "step" in row] for run in (original, replica))
    last = first[-1]["step"] if first else 0
    is_within = steps is not None and steps < last  # the original went on behind it: nothing was cut short there
    are_whole = is_within or {original.read_status(), replica.read_status()} == {"done"}
    if steps is not None:
        first, second = ([row for row in rows if row["step"] <= min(steps, last)] for rows in (first, second))
    missing = None
    if are_whole and len(first) != len(second):
        longer = max(first, second, key=len)[min(len(first), len(second)) :]
        missing = Divergence(longer[0]["step"], "counters", f"{len(first)} rows and then {len(second)}")
    return list(zip(first, second, strict=False)), missing


def _row_difference(first: dict[str, Any], second: dict[str, Any]) -> Divergence:
    """Return what is first in the order of cause and effect; a row that only one has differs in all it has."""
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    order = ("counters", *_STREAMS[:3], "parameters", "evaluation")
    named = sorted(keys, key=lambda key: (order.index(_stream(key)), key))
    key = named[0]
    return Divergence(first["step"], _stream(key), f"{key} was {first.get(key)!r} and is {second.get(key)!r}")


def _stream(key: str) -> str:
    if "/" not in key:
        return "counters"
    return _GROUPS.get(key.split("/")[0], "parameters")


def _shared_checkpoints(original: RunDirectory, replica: RunDirectory, steps: int | None) -> list[tuple[Entry, Entry]]:
    """Return the checkpoints of both at the same point, oldest first."""
    mine, theirs = (CheckpointStore(run.checkpoints).entries() for run in (original, replica))
    by_point = {tuple(sorted(entry.counters.items())): entry for entry in theirs}
    wanted = [entry for entry in mine if steps is None or entry.counters.get("env_steps", 0) <= steps]
    pairs = [(entry, by_point.get(tuple(sorted(entry.counters.items())))) for entry in wanted]
    return [(entry, other) for entry, other in pairs if other is not None]


def _checkpoint_difference(
    original: RunDirectory, replica: RunDirectory, first: Entry, second: Entry
) -> Divergence | None:
    step = first.counters.get("env_steps", 0)
    try:
        before, now = fingerprint(original, first.path), fingerprint(replica, second.path)
    except CheckpointError as error:
        return Divergence(step, "checkpoint", str(error))
    dropped = ("buffers",) if original.read_manifest().get("cleaned") else ()
    wrong = [stream for stream in _STREAMS if before[stream] != now[stream] and stream not in dropped]
    if not wrong:
        return None
    was, is_now = (CheckpointStore.load(entry.path).state for entry in (first, second))
    places = (_first_leaf(was.get(key), is_now.get(key), key) for key in GROUPS[wrong[0]])
    place = next(filter(None, places), "what another process of the run holds")
    return Divergence(step, wrong[0], f"{place} (checkpoint {first.path.name} differs in {', '.join(wrong)})")


def _first_leaf(first: Any, second: Any, path: str) -> str | None:
    """Return where two state trees first differ, such as `workflow.policy.weight[3]`."""
    if isinstance(first, Segment) and isinstance(second, Segment):
        first, second = first.tensor, second.tensor
    if tree_hash(first) == tree_hash(second):
        return None
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        parts = [(f"{path}.{key}", first[key], second[key]) for key in first]
    elif isinstance(first, list | tuple) and type(first) is type(second) and len(first) == len(second):
        parts = [(f"{path}[{place}]", *pair) for place, pair in enumerate(zip(first, second, strict=True))]
    elif isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
        differ = (first != second).reshape(-1).nonzero()
        return f"{path}[{int(differ[0])}]" if len(differ) else path
    else:
        return path
    return next((place for name, one, two in parts if (place := _first_leaf(one, two, name))), path)
