"""Hi-ORS: `train_rlpd.py algo=... task=... learner=true`, and the shell scripts around it."""

from __future__ import annotations

from typing import Any

from rl_lab.cli.shims.flags import Translation
from rl_lab.core.errors import UsageError, unknown_name

ROLES = ("learner", "actor")
KEYS = {
    "unique_identifier": "experiment.name",
    "checkpoint_path": "training.resume_path",
    "seed": "experiment.seed",
    "log_period": "logging.every_updates",
    "checkpoint_period": "training.checkpoint_updates",
    "eval_n_trajs": "training.num_eval_episodes",
}
WANDB = "logging.wandb=true"
CHOICES = {  # keys whose values have other names here
    "training.mixed_precision": {"bf16": "experiment.precision=bfloat16", "no": "experiment.precision=float32"},
    "logging.logger": {
        "wandb": WANDB,
        "tensorboard": "logging.tensorboard=true",
        "debug": "logging.wandb=false",
    },
}
BUFFER = {"batch_size": "batch_size", "replay_buffer_capacity": "capacity"}  # keys of the experiment's buffer
NO_EFFECT = {
    "training.num_gpus": "a learner is one process on one GPU (more actors: transport.actors)",
    "training.deepspeed_config": "nothing is sharded",
    "training.gradient_accumulation_steps": "batch_size is that of an update",
    "random_steps": "training.phases say what comes first",
    "buffer_period": "the buffer is in every checkpoint",
    "eval_checkpoint_step": "checkpoint_path names a run or one of its checkpoints",
    "logging.entity": "it is whose login W&B has",
}
PROJECT = "logging.project"  # of W&B
OF_A_RUN = (*KEYS, *CHOICES, *BUFFER, *NO_EFFECT, PROJECT)
OF_A_TASK = (*OF_A_RUN, "algo", "task")
KNOWN = (*OF_A_TASK, *ROLES, "ip")
EXPERIMENTS = {  # of an algo and a task; any other is called algo_task
    ("rlpd", "dobot_pnp"): "rlpd_pick_and_place",
    ("sac_pi0", "dobot_pnp"): "sac_pi0_pick_and_place",
    ("reject_sampling_pi0", "dobot_pnp"): "hiors_pick_and_place_pixels",
    ("sft_pi0", "dobot_pnp"): "sft_pick_and_place_pixels",
    ("data_collection", "dobot_pnp"): "collect_pick_and_place",
}
REWARD = "reward_classifier_insertion"
HERE, PORT = "127.0.0.1", 5588
ONE_ROBOT = "environment.num_envs=1"
TRIALS = "100"  # of its evaluations
SCRIPTS = {  # what they run
    "run_actor.sh": ("actor=true", "algo=sac_pi0"),
    "run_learner.sh": ("learner=true", "algo=sac_pi0"),
    "run_actor_data_collection.sh": ("actor=true", "algo=data_collection"),
    "run_learner_data_collection.sh": ("learner=true", "algo=data_collection"),
    "run_actor_reject_sampling.sh": ("actor=true", "algo=reject_sampling_pi0"),
    "run_learner_reject_sampling.sh": ("learner=true", "algo=reject_sampling_pi0"),
    "run_learner_sft.sh": ("learner=true", "algo=sft_pi0"),
    "run_actor_eval.sh": ("actor=true", "algo=eval_pi0"),
}


def train_rlpd(program: str, given: list[str]) -> Translation:
    """Translate `train_rlpd.py key=value ...` to an actor or a learner."""
    said = _read(program, given, KNOWN)
    roles = [role for role in ROLES if said.get(role) == "true"]
    if len(roles) != 1:
        raise UsageError(f"{program}: one of learner=true and actor=true is needed")
    if said.get("algo") == "eval_pi0":
        run = [said["checkpoint_path"]] if "checkpoint_path" in said else []
        return Translation(["evaluate", *run, "--episodes", said.get("eval_n_trajs", TRIALS)], _notes(said))
    place = ["transport.kind=network", f"transport.address={said.get('ip', HERE)}:{PORT}", ONE_ROBOT]
    return _run(roles[0], _experiment(said), place, said)


def script(program: str, given: list[str]) -> Translation:
    """Translate `bash run_actor.sh` and its like."""
    return train_rlpd(program, [*SCRIPTS[program], *given])


def start(program: str, given: list[str]) -> Translation:
    """Translate `bash start_dobot.sh`: a learner and an actor on this machine."""
    said = _read(program, given, OF_A_TASK)
    return _run("start", _experiment(said), [ONE_ROBOT], said)


def reward(program: str, given: list[str]) -> Translation:
    """Translate `bash train_reward.sh`."""
    said = _read(program, given, OF_A_RUN)
    translation = _run("train", REWARD, [], said)
    translation.notes.append("the lab's reward classifier is that of the insertion task")
    return translation


def _read(program: str, given: list[str], known: tuple[str, ...]) -> dict[str, str]:
    """Return the keys that are given, all of them known."""
    said: dict[str, str] = {}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{program}: cannot read {word!r}: key=value was expected")
        if key not in known:
            raise UsageError(unknown_name(f"key of {program}", key, known))
        said[key] = value
    return said


def _experiment(said: dict[str, str]) -> str:
    algo, task = said.get("algo", "sac_pi0"), said.get("task", "dobot_pnp")
    return EXPERIMENTS.get((algo, task), f"{algo}_{task}")


def _run(command: str, experiment: str, place: list[str], said: dict[str, str]) -> Translation:
    """Return a command with the experiment and all keys that mean something to it."""
    words = [command, f"+experiment={experiment}", *place]
    words += [f"{KEYS[key]}={value}" for key, value in said.items() if key in KEYS]
    for key in (key for key in said if key in CHOICES):
        if said[key] not in CHOICES[key]:
            raise UsageError(unknown_name(key, said[key], CHOICES[key]))
        words.append(CHOICES[key][said[key]])
    if WANDB in words and PROJECT in said:
        words[words.index(WANDB)] = f"logging.wandb={said[PROJECT]}"
    words += [f"{_buffer_key(experiment, BUFFER[key])}={value}" for key, value in said.items() if key in BUFFER]
    return Translation(words, _notes(said))


def _notes(said: dict[str, str]) -> list[str]:
    return [f"{key} has no effect: {why}" for key, why in NO_EFFECT.items() if key in said]


def _buffer_key(experiment: str, name: str) -> str:
    """Return the config key of this name in the experiment's buffers; of several the outermost, which others follow."""
    from omegaconf import OmegaConf

    from rl_lab.config.compose import compose

    buffers: Any = OmegaConf.to_container(compose([f"+experiment={experiment}"]).buffers, resolve=False)
    left = [("buffers", buffers)]
    while left:
        path, block = left.pop(0)
        if isinstance(block, dict):
            if name in block:
                return f"{path}.{name}"
            left += [(f"{path}.{key}", value) for key, value in block.items()]
    raise UsageError(f"the buffers of {experiment} have no {name}")
