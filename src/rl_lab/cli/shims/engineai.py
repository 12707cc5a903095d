"""The EngineAI RL Workspace: `scripts/train.py`, `play.py` and `export_policy.py` with `--exp_name`."""

from __future__ import annotations

from rl_lab.cli.shims.flags import OWN, SWITCH, Flag, Given, Translation, no_effect, read_flags, words
from rl_lab.core.errors import UsageError, unknown_name

EXPERIMENTS = {
    "pm01_rough_ppo": "biped_pm01_rough_ppo",
    "pm01_flat_ppo": "biped_pm01_flat_ppo",
    "sa01_rough_ppo": "biped_sa01_rough_ppo",
    "a1_rough_ppo": "quadruped_rough_ppo",
    "a1_flat_ppo": "quadruped_flat_ppo",
    "a1_flat_ppo_amp": "quadruped_flat_ppo_amp",
    "anymal_b_rough_ppo": "quadruped_rough_ppo",
    "anymal_c_rough_ppo": "quadruped_rough_ppo",
    "anymal_c_flat_ppo": "quadruped_flat_ppo",
}
OTHER_ROBOTS = ("a1", "anymal")  # which the lab's quadruped stands for
LOGGERS = {"tensorboard": "logging.tensorboard=true", "wandb": "logging.wandb=true"}
NEWEST = "-1"
RECORD_INTERVAL = 50  # iterations; its default

CAMERA = "the camera follows the robot"
ISAAC = "there is no Isaac Gym"
SHARED = {
    "exp_name": OWN,
    "resume": SWITCH,
    "load_run": OWN,
    "checkpoint": OWN,
    "sub_exp_name": OWN,
    "headless": no_effect("a window is opened by lab play alone", takes=False),
    "current_files": no_effect("the installed code is used anyway (--run-code uses that of the run)", takes=False),
    "sim_device": no_effect("the simulation is where the policy is (--rl_device)"),
    "debug": no_effect("every run has a directory", takes=False),
    "upload_model": no_effect("nothing is uploaded", takes=False),
    **dict.fromkeys(("pipeline", "graphics_device_id", "num_subscenes", "slices"), no_effect(ISAAC)),
    **dict.fromkeys(("physx", "flex"), no_effect(ISAAC, takes=False)),
    **dict.fromkeys(("camera_offset", "camera_rotation"), no_effect(CAMERA)),
    **dict.fromkeys(("env_idx_record", "actor_idx_record", "rigid_body_idx_record"), no_effect(CAMERA)),
}
TRAIN = SHARED | {
    "run_exist": SWITCH,
    "run_name": OWN,
    "log_root": OWN,
    "num_envs": Flag(key="environment.num_envs"),
    "max_iterations": OWN,
    "seed": Flag(key="experiment.seed"),
    "rl_device": Flag(key="experiment.device"),
    "num_threads": Flag(key="environment.simulation.num_threads"),
    "logger": OWN,
    "video": SWITCH,
    "record_length": Flag(key="training.video_length"),
    "record_interval": OWN,
    "fps": no_effect("films are in real time"),
    "frame_size": no_effect("films of training are 320 x 240"),
    **dict.fromkeys(("rl_devices", "sim_devices"), no_effect("torchrun says how many processes there are")),
}
PLAY = SHARED | {
    "log_root": Flag(option="--root"),
    "run_name": no_effect("--load_run names the run"),
    "num_envs": Flag(option="--num-envs"),
    "seed": Flag(option="--seed"),
    "rl_device": Flag(option="--device"),
    "num_threads": no_effect("one thread is enough for one robot"),
    "video": words("--video"),
    "record_length": Flag(option="--record-length"),
    "record_interval": no_effect("one film is made"),
    "fps": Flag(option="--fps"),
    "frame_size": Flag(option="--frame-size"),
    "use_joystick": words("--joystick"),
    "joystick_scale": Flag(option="--joystick-scale"),
    "test_length": OWN,
}
EXPORT = SHARED | {
    "log_root": Flag(option="--root"),
    **dict.fromkeys(("num_envs", "seed", "rl_device"), no_effect("a policy is the same for all")),
}


def train(program: str, given: list[str]) -> Translation:
    """Translate `train.py --exp_name NAME [--resume]`."""
    read = read_flags(program, given, TRAIN)
    read.no_others()
    experiment = _experiment(read)
    translated = [*read.translated, *_logger(read), *_iterations(read, experiment)]
    root = read.get("log_root")
    if read.has("resume"):
        if read.get("checkpoint", NEWEST) != NEWEST:
            raise UsageError(
                f"{program}: --resume goes on from the newest checkpoint (training.resume_path=RUN/checkpoints/N "
                "begins a new run from another)"
            )
        place = [] if root is None else ["--root", root]
        return Translation(["resume", _run(read, experiment), *translated, *place], read.notes)
    if root is not None:
        translated.append(f"experiment.root={root}")
    if read.has("run_name"):
        translated.append(f"experiment.name={read.get('run_name')}")
    if read.has("sub_exp_name"):
        translated.append(f"experiment.tags=[{read.get('sub_exp_name')}]")
    if read.has("run_exist"):
        return Translation(["train", "--from-run", _run(read, experiment), *translated], read.notes)
    return Translation(["train", f"+experiment={experiment}", *translated], read.notes)


def play(program: str, given: list[str]) -> Translation:
    """Translate `play.py --exp_name NAME --resume`."""
    read = read_flags(program, given, PLAY)
    tested = [] if not read.has("test_length") else ["--testers", "all", "--test-length", read.need("test_length")]
    return _of_a_run("play", read, tested)


def export(program: str, given: list[str]) -> Translation:
    """Translate `export_policy.py --exp_name NAME --resume`: all formats that are installed."""
    return _of_a_run("export", read_flags(program, given, EXPORT), [])


def _of_a_run(command: str, read: Given, more: list[str]) -> Translation:
    read.no_others()
    chosen = str(read.get("checkpoint", NEWEST) or NEWEST)
    named = f"cycle:{chosen}" if chosen.isdecimal() else chosen  # an iteration there is a cycle here
    checkpoint = [] if chosen == NEWEST else ["--checkpoint", named]
    run = _run(read, _experiment(read))
    return Translation([command, run, *checkpoint, *read.translated, *more], read.notes)


def _experiment(read: Given) -> str:
    """Return the lab's experiment; one of the lab's own names stays what it is."""
    name = read.need("exp_name")
    if name.startswith(OTHER_ROBOTS):
        read.notes.append(f"{name}: the lab's quadruped has the numbers of a Go2")
    return EXPERIMENTS.get(name, name)


def _run(read: Given, experiment: str) -> str:
    """Return the run that is meant: the newest of the experiment, unless one is named."""
    named = read.get("load_run", NEWEST)
    return experiment if named in (None, NEWEST) else str(named)


def _logger(read: Given) -> list[str]:
    name = read.get("logger")
    if name is None:
        return []
    if name not in LOGGERS:
        raise UsageError(unknown_name("--logger", name, LOGGERS))
    return [LOGGERS[name]]


def _iterations(read: Given, experiment: str) -> list[str]:
    """Return what counts iterations there and env steps here: an iteration is a rollout of all worlds."""
    asked = {}
    if read.has("max_iterations"):
        asked["training.total_timesteps"] = read.number("max_iterations", 0)
    if read.has("video"):
        asked["training.video_frequency"] = read.number("record_interval", RECORD_INTERVAL)
    if not asked:
        return []
    size = iteration_steps(experiment, read.get("num_envs"))
    return [f"{key}={count * size}" for key, count in asked.items()]


def iteration_steps(experiment: str, num_envs: str | None) -> int:
    """Return the env steps of one rollout of an experiment."""
    from omegaconf import OmegaConf

    from rl_lab.config.compose import compose

    changed = [] if num_envs is None else [f"environment.num_envs={num_envs}"]
    config = compose([f"+experiment={experiment}", *changed])
    hooks = OmegaConf.select(config, "training.phases.0.workflow_hooks")
    collect = next((call["collect"] for call in hooks if OmegaConf.is_dict(call) and "collect" in call), 1)
    return int(collect) * int(config.environment.num_envs)
