"""From a command line as it stands in the original's manual to the shim that knows it."""

from __future__ import annotations

from pathlib import Path

from rl_lab.cli.shims import engineai, hiors, hydra_lab, monorepo, recordings, softlearning
from rl_lab.cli.shims.flags import Shim, Translation
from rl_lab.core.errors import UsageError, unknown_name

INTERPRETERS = ("python", "python3", "bash", "sh")
PROGRAMS: dict[str, Shim] = {
    "play.py": engineai.play,
    "export_policy.py": engineai.export,
    "evaluate.py": monorepo.evaluate,
    "sweep.py": monorepo.sweep,
    "analyze.py": monorepo.analyze,
    "rlrepo": monorepo.rlrepo,
    "softlearning": softlearning.console,
    "examples.development.simulate_policy": softlearning.simulate,
    "simulate_policy.py": softlearning.simulate,
    "train_rlpd.py": hiors.train_rlpd,
    **dict.fromkeys(hiors.SCRIPTS, hiors.script),
    "start_dobot.sh": hiors.start,
    **dict.fromkeys(("train_reward.sh", "train_reward_classifier.py"), hiors.reward),
    **dict.fromkeys(("lerobot.scripts.visualize_dataset", "visualize_dataset.py"), recordings.visualize),
    "merge_video.py": recordings.merge_video,
}
TRAIN = "train.py"  # of three systems: its flags tell which


def translate(words: list[str]) -> Translation:
    """Return the `lab` command of a command line, with or without its `python`, `python -m`, `bash` or `torchrun`."""
    left, processes = list(words), 1
    if left and left[0] == "torchrun":
        left, processes = _torchrun(left[1:])
    elif left and left[0] in INTERPRETERS:
        left = left[2:] if left[1:2] == ["-m"] else left[1:]
    if not left:
        raise UsageError("no command line is given, such as: python scripts/train.py --exp_name rotunbot_flat_ppo")
    program, given = Path(left[0]).name, left[1:]
    found = _trainer(given) if program == TRAIN else PROGRAMS.get(program)
    if found is None:
        raise UsageError(unknown_name("program", program, (TRAIN, *PROGRAMS)))
    translation = found(program, given)
    if processes > 1:
        translation.command.append(f"experiment.devices={processes}")
    return translation


def _trainer(given: list[str]) -> Shim:
    """Return whose `train.py` has these flags."""
    flags = {word.partition("=")[0].replace("_", "-") for word in given}
    if "--exp-name" in flags:
        return engineai.train
    return monorepo.train if flags & {"--config", "--resume"} else hydra_lab.train


def _torchrun(given: list[str]) -> tuple[list[str], int]:
    """Return what is behind torchrun's own flags, and how many processes it starts."""
    count, left = "1", list(given)
    while left and left[0].startswith("--"):
        name, equals, value = left.pop(0).partition("=")
        name = name.replace("-", "_").removeprefix("__")
        if name != "standalone" and not equals:
            value = left.pop(0) if left else ""
        if name == "nproc_per_node":
            count = value
        elif name not in ("standalone", "nnodes") or (name == "nnodes" and value != "1"):
            raise UsageError("torchrun: only --standalone, --nnodes=1 and --nproc_per_node=N are known here")
    if not count.isdigit() or int(count) < 1:
        raise UsageError(f"torchrun: --nproc_per_node must be a number, not {count!r}")
    return left, int(count)
