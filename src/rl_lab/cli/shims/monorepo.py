"""The modular mono-repo: `train.py --config`, `evaluate.py`, `sweep.py`, `analyze.py` and `python -m rlrepo`."""

from __future__ import annotations

from pathlib import Path

from rl_lab.cli.shims.flags import OWN, SWITCH, Flag, Given, Translation, no_effect, read_flags, words
from rl_lab.core.errors import UsageError, unknown_name

METRICS = {"reward": "eval/return", "return": "eval/return"}  # names of the mono-repo
LOSSES = {"loss": "train/*loss"}  # where several metrics may be meant
TRAIN = {
    "config": OWN,
    "resume": OWN,
    "seed": Flag(option="--seed"),
    "device": Flag(key="experiment.device"),
    "total_timesteps": Flag(key="training.total_timesteps"),
    "name": Flag(key="experiment.name"),
    "debug": words("debug=true"),
    "dry-run": words("--cfg", "job"),
    "log-level": no_effect("there is one level"),
}
EVALUATE = {
    "checkpoint": Flag(option="--checkpoint"),
    "episodes": Flag(option="--episodes"),
    "num-episodes": Flag(option="--episodes"),
    "seed": Flag(option="--seed"),
    "config": no_effect("a run has its own config"),
}
SWEEP = {"config": OWN, "resume": no_effect("a sweep goes on where it stopped", takes=False)}
COMPARE = {"metrics": OWN, "root": Flag(option="--root")}
LIST = {"filter": OWN, "sort": OWN, "root": Flag(option="--root")}
EXPORT = {"format": Flag(option="--format"), "root": Flag(option="--root")}
CLEANUP = {
    "keep-best": Flag(option="--keep-best"),
    "keep-recent": Flag(option="--keep-recent"),
    "dry-run": SWITCH,
    "yes": words("--yes"),
    "root": Flag(option="--root"),
}
RLREPO = ("list", "compare", "export", "cleanup")


def train(program: str, given: list[str]) -> Translation:
    """Translate `train.py --config FILE` and `train.py --resume RUN`."""
    read = read_flags(program, given, TRAIN)
    read.no_others()
    if read.has("resume"):
        return Translation(["resume", read.need("resume"), *read.translated], read.notes)
    return Translation(["train", *_experiment(read), *read.translated], read.notes)


def _experiment(read: Given) -> list[str]:
    """Return what a config file stands for: in the lab's words, in the mono-repo's, or the lab's own of its name."""
    from rl_lab.config.trees import group_files

    file = read.need("config")
    path, known = Path(file), group_files("experiment")
    if path.is_file() and path.parent.name == "experiment":
        return [f"+experiment={path.stem}", "--config-dir", str(path.parent.parent)]
    if path.is_file():
        return [f"monorepo={file}"]
    if path.stem not in known:
        raise UsageError(f"--config {file}: no such file, and {unknown_name('experiment', path.stem, known)}")
    read.notes.append(f"{file} is not there: the lab's own experiment {path.stem} is taken")
    return [f"+experiment={path.stem}"]


def evaluate(program: str, given: list[str]) -> Translation:
    """Translate `evaluate.py [RUN] ...`."""
    read = read_flags(program, given, EVALUATE)
    return Translation(["evaluate", *read.others[:1], *read.translated], read.notes)


def sweep(program: str, given: list[str]) -> Translation:
    """Translate `sweep.py --config FILE`; where there is no such file, the lab's own of its name."""
    from rl_lab.config.trees import group_files

    read = read_flags(program, given, SWEEP)
    read.no_others()
    file, known = read.need("config"), group_files("sweep")
    path = Path(file)
    if path.is_file():
        return Translation(["sweep", file], read.notes)
    if path.stem not in known:
        raise UsageError(f"--config {file}: no such file, and {unknown_name('sweep', path.stem, known)}")
    read.notes.append(f"{file} is not there: the lab's own sweep {path.stem} is taken")
    return Translation(["sweep", path.stem], read.notes)


def analyze(program: str, given: list[str]) -> Translation:
    """Translate `analyze.py RUN...`."""
    return _compare(program, given)


def rlrepo(program: str, given: list[str]) -> Translation:
    """Translate `python -m rlrepo list|compare|export|cleanup ...`."""
    name = given[0] if given else ""
    if name not in RLREPO:
        raise UsageError(unknown_name(f"command of {program}", name, RLREPO))
    program, rest = f"{program} {name}", given[1:]
    if name == "compare":
        return _compare(program, rest)
    if name == "list":
        read = read_flags(program, rest, LIST)
        filters = [] if not read.has("filter") else [read.need("filter")]
        order = [] if not read.has("sort") else ["--sort", _metric(read.need("sort"))]
        return Translation(["runs", "list", *filters, *read.others, *order, *read.translated], read.notes)
    if name == "export":
        read = read_flags(program, rest, EXPORT)
        return Translation(["runs", "export", *read.others, *read.translated], read.notes)
    read = read_flags(program, rest, CLEANUP)
    read.no_others()
    if not read.has("dry-run") and not read.has("yes"):
        read.notes.append("nothing is deleted without --yes")
    return Translation(["runs", "clean", *read.translated], read.notes)


def _compare(program: str, given: list[str]) -> Translation:
    read = read_flags(program, given, COMPARE)
    names = [LOSSES.get(name) or _metric(name) for name in (read.get("metrics") or "").split(",") if name]
    chosen = [word for name in names for word in ("--metric", name)]
    return Translation(["runs", "compare", *read.others, *chosen, *read.translated], read.notes)


def _metric(name: str) -> str:
    return METRICS.get(name, name)
