"""Softlearning: `softlearning run_example_local examples.development ...` and `simulate_policy`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rl_lab.cli.shims.flags import OWN, SWITCH, Flag, Given, Translation, no_effect, read_flags
from rl_lab.core.errors import UsageError, unknown_name

EPOCH = 1_000  # env steps, in all of its examples
GYM = {  # its domains, and the ends of the names of the lab's experiments
    "Swimmer": "swimmer",
    "Hopper": "hopper",
    "Walker2d": "walker2d",
    "HalfCheetah": "halfcheetah",
    "Ant": "ant",
    "Humanoid": "humanoid",
    "HumanoidStandup": "humanoid_standup",
    "Reacher": "reacher",
    "Pendulum": "pendulum_softlearning",
    "MultiGoal": "multigoal",
}
DM_CONTROL = {"ball_in_cup": "cup"}  # domains of another name here
RELATIVES = {"gym": "halfcheetah", "dm_control": "dmc_walker_walk"}  # of tasks without an experiment
EXAMPLES = ("examples.development", "examples.multi_goal")
COMMANDS = {  # what it runs, and the `lab` command of it
    **{f"{verb}_example_{where}": "train" for verb in ("run", "launch") for where in ("local", "debug", "dry")},
    **{f"{verb}_example_cluster": "launch ray" for verb in ("run", "launch")},
    "launch_example_gce": "launch gce",
    "launch_example_ec2": "launch ec2",
}

RAY = "a run is one process here"
FLAGS = {
    "algorithm": OWN,
    "universe": OWN,
    "domain": OWN,
    "task": OWN,
    "policy": Flag(key="algorithm.policy"),
    "exp-name": Flag(key="experiment.name"),
    "local-dir": Flag(key="experiment.root"),
    "checkpoint-frequency": OWN,
    "video-save-frequency": OWN,
    "num-samples": OWN,
    "run-eagerly": OWN,
    "restore": Flag(key="training.resume_path"),
    "checkpoint-at-end": no_effect("there is always one at the end"),
    "checkpoint-replay-pool": no_effect("replay is in every checkpoint"),
    "gpus": no_effect("a GPU is used where there is one (experiment.device)"),
    "trial-gpus": no_effect("a GPU is used where there is one (experiment.device)"),
    **dict.fromkeys(("cpus", "trial-cpus"), no_effect(f"{RAY} (experiment.num_threads)")),
    **dict.fromkeys(("resources", "resources-per-trial", "trial-extra-cpus", "trial-extra-gpus"), no_effect(RAY)),
    **dict.fromkeys(("include-dashboard", "temp-dir", "server-port", "mode", "confirm-remote"), no_effect(RAY)),
    **dict.fromkeys(("max-failures", "fail-fast"), no_effect("lab resume continues a run")),
    **dict.fromkeys(("upload-dir", "trial-name-template"), no_effect("runs lie in experiment.root")),
}
PLACE = ("project", "image", "zone", "machine", "setup")  # of lab launch, which its cluster files said
CLUSTER = {
    **dict.fromkeys(
        ("config_file", "stop", "start", "screen", "tmux", "port-forward"),
        no_effect("the cluster is described by the options of lab launch"),
    ),
    "override-cluster-name": OWN,
    **dict.fromkeys(PLACE, OWN),
    "dry-run": SWITCH,
}
SIMULATE = {"max-path-length": OWN, "num-rollouts": OWN, "render-kwargs": OWN, "video-save-path": OWN}


def console(program: str, given: list[str]) -> Translation:
    """Translate `softlearning COMMAND EXAMPLE ...`."""
    name = given[0] if given else ""
    if name not in COMMANDS:
        raise UsageError(unknown_name(f"command of {program}", name, COMMANDS))
    launched = COMMANDS[name] != "train"
    read = read_flags(f"{program} {name}", given[1:], FLAGS | (CLUSTER if launched else {}))
    example = read.others[0] if len(read.others) == 1 else " ".join(read.others)
    if example not in EXAMPLES:
        raise UsageError(unknown_name("example", example, EXAMPLES))
    begin = [*COMMANDS[name].split(), *_place(read), "train"] if launched else ["train"]
    command = [*begin, *_task(read, example), *read.translated, *_amounts(read)]
    if name.endswith("_dry"):
        command += ["--cfg", "job"]
    if name.endswith("_debug"):
        command.append("debug=true")
    elif (read.get("run-eagerly") or "false").lower() in ("true", "1", "yes"):
        command.append("experiment.compile=eager")
    if name.endswith("_local") and (trials := read.number("num-samples", 1)) > 1:
        command += ["--seed", ",".join(str(seed) for seed in range(1, trials + 1))]
    return Translation(command, read.notes)


def _place(read: Given) -> list[str]:
    """Return the options of `lab launch`, which stand before its command."""
    options = {"override-cluster-name": "--name"} | {option: f"--{option}" for option in PLACE}
    said = [word for flag, option in options.items() if read.has(flag) for word in (option, read.need(flag))]
    return said + (["--dry-run"] if read.has("dry-run") else [])


def _task(read: Given, example: str) -> list[str]:
    """Return the experiment of a task, or of its nearest relative with the task in its place."""
    from rl_lab.config.trees import group_files

    is_multi_goal = example == "examples.multi_goal"
    algorithm = (read.get("algorithm") or ("SQL" if is_multi_goal else "SAC")).lower()
    if algorithm not in ("sac", "sql"):
        raise UsageError(unknown_name("--algorithm", algorithm.upper(), ("SAC", "SQL")))
    universe = read.get("universe") or "gym"
    if universe not in RELATIVES:
        raise UsageError(unknown_name("--universe", universe, RELATIVES))
    domain, task = ("MultiGoal", "Default-v0") if is_multi_goal else (read.need("domain"), read.need("task"))
    dm_control, gym = [f"dmc_{DM_CONTROL.get(domain, domain)}_{task}"], [GYM.get(domain), domain.lower()]
    known = group_files("experiment")
    candidates = [f"{algorithm}_{short}" for short in (gym if universe == "gym" else dm_control)]
    own = next((name for name in candidates if name in known), None)
    if own is not None and (universe != "gym" or _is_newest(domain, task, read.notes)):
        return [f"+experiment={own}"]
    relative = own or f"{algorithm}_{RELATIVES[universe]}"
    if relative not in known:
        raise UsageError(f"no experiment of {algorithm.upper()} on {universe} (there is one of: SAC)")
    name = re.sub(r"[^a-z0-9]+", "_", f"{algorithm}_{domain}_{task}".lower())
    named = [] if read.has("exp-name") else [f"experiment.name={name}"]
    return [f"+experiment={relative}", f"environment.name={universe}/{domain}/{task}", *named]


def _is_newest(domain: str, task: str, notes: list[str]) -> bool:
    """Return whether a task is the newest version of its domain, or a retired one, which that stands for."""
    from gymnasium.envs.registration import find_highest_version, registry

    from rl_lab.environments.universe import TENSOR_DOMAINS, translate

    if domain in TENSOR_DOMAINS:
        if task != "Default-v0":
            raise UsageError(unknown_name(f"--task of {domain}", task, ("Default-v0",)))
        return True
    name, newest = translate(f"gym/{domain}/{task}"), f"{domain}-v{find_highest_version(None, domain)}"
    if name not in registry:
        known = [each.removeprefix(f"{domain}-") for each in registry if each.startswith(f"{domain}-v")]
        raise UsageError(unknown_name(f"--task of {domain}", task, known))
    if name == newest != f"{domain}-{task}":
        notes.append(f"--task {task}: {newest} stands for that version")
    return name == newest


def _amounts(read: Given) -> list[str]:
    """Return what counts epochs there and env steps here."""
    said = []
    for flag, key in (
        ("checkpoint-frequency", "training.checkpoint_frequency"),
        ("video-save-frequency", "training.video_frequency"),
    ):
        if read.has(flag):
            epochs = read.number(flag, 0)
            said.append(f"{key}={epochs * EPOCH if epochs > 0 else 'null'}")
    return said


def simulate(program: str, given: list[str]) -> Translation:
    """Translate `simulate_policy CHECKPOINT ...`: a film where pictures are asked for, else an evaluation."""
    read = read_flags(program, given, SIMULATE)
    if len(read.others) != 1:
        raise UsageError(f"{program}: one checkpoint or run is needed, {len(read.others)} are given")
    run, checkpoint = _run_and_checkpoint(read.others[0])
    rollouts = read.number("num-rollouts", 10)
    if not (_has_pictures(read) or read.has("video-save-path")):
        return Translation(["evaluate", run, *checkpoint, "--episodes", str(rollouts)], read.notes)
    if read.has("video-save-path"):
        read.notes.append("--video-save-path has no effect: the film is in media/ of the run")
    steps = rollouts * read.number("max-path-length", 1_000)
    return Translation(["play", run, *checkpoint, "--video", "--record-length", str(steps)], read.notes)


def _has_pictures(read: Given) -> bool:
    text = read.get("render-kwargs") or "{}"
    try:
        kwargs = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{read.program}: --render-kwargs must be JSON, not {text!r}") from error
    if not isinstance(kwargs, dict):
        raise UsageError(f"{read.program}: --render-kwargs must be a JSON object, not {text!r}")
    if kwargs.get("mode") == "human":
        read.notes.append("a film instead of a window (lab play RUN opens one for robots)")
    return bool(kwargs.get("mode"))


def _run_and_checkpoint(place: str) -> tuple[str, list[str]]:
    """Return the run, and the option that names one of its checkpoints where the path does."""
    path = Path(place).expanduser()
    if path.parent.name == "checkpoints":
        return str(path.parent.parent), ["--checkpoint", str(path)]
    return str(path), []
