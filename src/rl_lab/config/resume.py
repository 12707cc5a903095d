"""How a run goes on: from which checkpoint, with which config, and what is taken from it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_lab.config.budget import apply_caps
from rl_lab.config.changes import Change, check_exact, check_fork
from rl_lab.config.compose import one_line
from rl_lab.config.debugging import imply_debug, is_debug
from rl_lab.config.freeze import migrate, thaw
from rl_lab.config.overrides import parse_overrides, spelled_out
from rl_lab.config.resolvers import register_resolvers
from rl_lab.config.schema import ResumeMode
from rl_lab.core.errors import CheckpointError, ConfigError, RunDirectoryError
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.orchestration.hand_off import fitting
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.tracking.checkpoint import CheckpointStore, Loaded
from rl_lab.tracking.checkpoint_migrations import untranslated
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.manifest import versions
from rl_lab.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from rl_lab.config.build import Parts  # which reads the config of a teacher's run here

COMPOSED = "composed.yaml"  # the config with its interpolations, beside the resolved config.yaml
GOES_ON = ("exact", "fork")  # modes that take all of a checkpoint
NUMERIC = ("rl_lab", "torch", "numpy", "gymnasium", "mujoco", "ale-py")  # whose versions change numbers
DROPPED: dict[ResumeMode, str] = {
    "exact": "nothing",
    "fork": "options of optimisers and what alerts remember",
    "warm_start": "optimisers, counters, phases, buffers, environment and random state",
    "warm_start_optimizer": "counters, phases, buffers, environment and random state",
}


@dataclass(frozen=True)
class Start:
    """Where a run starts from when it does not start anew."""

    source: RunDirectory
    mode: ResumeMode
    checkpoint: Path | None = None  # None: the newest whole one
    parts: tuple[str, ...] | None = None  # modules whose weights are taken; None: all
    changes: list[Change] = field(default_factory=list)


def config_files(parts: Parts) -> dict[str, str]:
    """Return the resolved config and, beside it, the one with its interpolations, by file name."""
    return {
        "config.yaml": yaml.safe_dump(thaw(parts.config), sort_keys=False),
        COMPOSED: OmegaConf.to_yaml(parts.composed),
    }


def read_config(run: RunDirectory) -> dict[str, Any]:
    """Return the resolved config of a run in today's layout."""
    register_resolvers()
    return migrate(load_yaml(run.read_config(), run.config_file), str(run.config_file))


def load_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a run's config file holds, with its interpolations."""
    try:
        tree = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise RunDirectoryError(f"{path} is damaged: {one_line(error)}") from error
    if not isinstance(tree, dict):
        raise RunDirectoryError(f"{path} is damaged: expected a YAML mapping")
    return {str(key): value for key, value in tree.items()}


def recompose(run: RunDirectory, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the composed config of a run with `key=value` overrides applied; what depends on them follows."""
    register_resolvers()
    composed = run.path / COMPOSED
    tree = load_yaml(composed.read_text(), composed) if composed.is_file() else read_config(run)
    config = OmegaConf.create(migrate(tree, str(run.path)))
    assert isinstance(config, DictConfig)
    was_debug, given = is_debug(config), spelled_out(overrides)
    parsed = parse_overrides(given)
    for text, override in zip(given, parsed, strict=True):
        _apply(config, text, override)
    if is_debug(config) and not was_debug:
        imply_debug(config, {override.key_or_group for override in parsed})
        apply_caps(config)
    return config


def _apply(config: DictConfig, text: str, override: Override) -> None:
    if override.is_delete() or override.is_sweep_override():
        raise ConfigError(f"{text}: a resumed run takes key=value only")
    try:
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    except (OmegaConfBaseException, IndexError, ValueError) as error:
        raise ConfigError(f"{text}: {one_line(error)}") from error


def find_start(path: Path | str, mode: ResumeMode, parts: Sequence[str] | None = None) -> Start:
    """Read `training.resume_path`: a run directory (its newest checkpoint) or one checkpoint of a run."""
    place = Path(path).expanduser().absolute()
    if parts is not None and mode != "warm_start":
        raise ConfigError(f"training.resume_parts: goes with training.resume_mode=warm_start, not {mode}")
    chosen = None if parts is None else tuple(parts)
    if (place / "MANIFEST.json").is_file():
        return Start(RunDirectory.open(place.parent.parent), mode, place, chosen)
    return Start(RunDirectory.open(place), mode, parts=chosen)


def check_start(start: Start, parts: Parts) -> Start:
    """Refuse early: nothing to start from, and where more than weights is taken another computation or lost state."""
    reject_cleaned(start.source, start.mode)
    if start.checkpoint is None and not has_checkpoints(start.source):
        raise CheckpointError(f"no checkpoint in {start.source.checkpoints}: nothing was saved before it ended")
    if start.mode not in GOES_ON:
        return start
    manifest = start.source.read_manifest()
    if not restores_exactly(parts) or manifest.get("exact_resume") is False:
        raise CheckpointError(
            f"environment {parts.env.spec.id!r} cannot be restored exactly (exact_resume: false); "
            "start from the weights with mode warm_start or warm_start_optimizer"
        )
    made_on, device = manifest.get("device"), str(parts.context.device)
    if parts.context.ranks.is_first and made_on not in (None, device):  # others have GPUs of their own
        raise CheckpointError(
            f"experiment.device: the run was made on {made_on!r} and is exact only there, not on {device!r}"
        )
    _reject_older(start)
    check = check_exact if start.mode == "exact" else check_fork
    changes = check(read_config(start.source), parts.config)
    return Start(start.source, start.mode, start.checkpoint, changes=changes)


def reject_cleaned(run: RunDirectory, mode: ResumeMode = "exact") -> None:
    """Refuse a run of which `lab runs clean` has dropped what this start needs: its metrics must not begin anew."""
    extent = (run.read_manifest().get("cleaned") or {}).get("extent")
    if extent == "checkpoints":
        raise CheckpointError(f"{run.path} was cleaned: its checkpoints are gone; `lab train --from-run` begins anew")
    if extent == "buffers" and mode in GOES_ON:
        raise CheckpointError(
            f"{run.path} was cleaned: its buffers are gone and it cannot be resumed exactly; "
            "start from the weights with mode warm_start or warm_start_optimizer"
        )


def reject_lost(run: RunDirectory, wanted: Start | None) -> None:
    """Refuse a run whose checkpoints are gone: it would begin anew and drop the metrics and events it has.

    Args:
        run: A run without a checkpoint.
        wanted: What its config says that it begins with.
    """
    is_done = run.read_status() == "done" and (run.summary_file.is_file() or run.metrics_file.is_file())
    if is_done or _had_checkpoints(run, wanted):
        state = "is done" if is_done else "had some"
        raise CheckpointError(
            f"no checkpoint in {run.checkpoints}, but the run {state}: it cannot go on, and nothing was changed; "
            "`lab train --from-run` begins anew"
        )


def _had_checkpoints(run: RunDirectory, wanted: Start | None) -> bool:
    """Return whether the events name a checkpoint of the run's own; a fork begins with those of its source."""
    had = False
    for event in read_rows(run.events_file):
        if event.get("kind") == "checkpoint":
            had = True
        elif event.get("kind") == "resume":
            is_inside = run.checkpoints in Path(str(event.get("checkpoint"))).parents
            had = is_inside or (event.get("mode") == "exact" and wanted is None)  # it may have been moved since
    return had


def restores_exactly(parts: Parts) -> bool:
    """Return whether what the run collects in comes back as it was; what actors have sent is in a log."""
    return parts.env.spec.exact_resume or parts.config["transport"]["kind"] in ("host", "network")


def exactness(parts: Parts) -> bool | Literal["state"]:
    """Return whether a resume is exact: to the bit, not at all, or the state alone, from where steps differ."""
    is_restored = restores_exactly(parts)
    return "state" if is_restored and not parts.env.spec.exact_steps else is_restored


def _reject_older(start: Start) -> None:
    """Refuse a checkpoint of which more than the weights cannot be brought into today's layout."""
    entries = CheckpointStore(start.source.checkpoints).entries()
    wanted = [each for each in entries if start.checkpoint is None or each.path.name == start.checkpoint.name]
    if wanted and (lost := untranslated(wanted[-1].schema_version)):
        raise CheckpointError(
            f"checkpoint {wanted[-1].path} was made by an older lab and cannot be resumed exactly ({lost} cannot be "
            "brought into today's layout); start from the weights with mode warm_start or warm_start_optimizer, or "
            "train anew"
        )


def has_checkpoints(run: RunDirectory) -> bool:
    """Return whether anything was ever saved; a run that died before begins anew."""
    return any(path.is_dir() and path.name.isdigit() for path in run.checkpoints.glob("*"))


def load_start(start: Start, ranks: Ranks = ALONE) -> Loaded:
    """Read and verify the checkpoint a run starts from; who takes all of it needs what each rank had of its own."""
    goes_on = start.mode in GOES_ON
    if start.checkpoint is not None:
        return CheckpointStore.load(start.checkpoint, ranks if goes_on else ALONE)
    if goes_on or ranks.size == 1:
        return CheckpointStore(start.source.checkpoints, ranks=ranks).load_newest()
    newest = CheckpointStore(start.source.checkpoints).load_newest()
    return CheckpointStore.load(ranks.first(str(newest.path)))._replace(damaged=newest.damaged)


def load_fitting(start: Start, parts: Parts) -> Loaded | None:
    """Return the checkpoint that a warm start takes weights of, once they fit; other starts were compared by config."""
    if start.mode in GOES_ON:
        return None
    loaded = load_start(start, parts.context.ranks)
    fitting(parts.workflow, loaded.state["workflow"], start.parts)
    return loaded


def version_changes(run: RunDirectory) -> list[str]:
    """Return what has another version now than when the run began, as `package old -> new`."""
    before, now = run.read_manifest().get("versions", {}), versions()
    return [
        f"{name} {before[name]} -> {now.get(name, 'none')}"
        for name in NUMERIC
        if name in before and before[name] != now.get(name)
    ]


def restore(orchestrator: Orchestrator, run: RunDirectory, start: Start, loaded: Loaded) -> None:
    """Bring the checkpoint into the orchestrator and note in the run's events where it came from."""
    is_own = start.source.path == run.path
    if start.mode in GOES_ON and not is_own and orchestrator.context.ranks.is_first:
        for name in ("metrics_file", "events_file", "step_chain_file", "update_chain_file"):
            if (file := vars(start.source)[name]).is_file():
                shutil.copyfile(file, vars(run)[name])
    orchestrator.restore(loaded.state, start.mode, is_own=is_own, parts=start.parts)
    if start.mode == "exact" and (changed := ", ".join(version_changes(start.source))):
        orchestrator.tracker.event(
            "versions", message=f"{changed}: a run goes on to the bit only with the versions it began with"
        )
    for damaged in loaded.damaged:
        orchestrator.tracker.event("damaged_checkpoint", message=f"skipped a damaged checkpoint: {damaged}")
    orchestrator.tracker.event(
        "resume",
        message=f"{start.mode} from {loaded.path} (dropped: {DROPPED[start.mode]})",
        checkpoint=str(loaded.path),
        mode=start.mode,
        changes=[str(change) for change in start.changes],
        **loaded.manifest["counters"],
    )
