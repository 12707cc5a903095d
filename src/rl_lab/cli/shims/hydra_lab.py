"""RL Lab as it was: `scripts/train.py +experiment=NAME ...` is `lab train`, with other names of some experiments."""

from __future__ import annotations

from rl_lab.cli.shims.flags import Translation

EXPERIMENTS = {
    "og_wm_carracing": "world_models_car_racing",
    "og_wm_cartpole": "world_models_cartpole",
    "tdmpc_cartpole": "tdmpc2_cartpole",
}
CHOICE = "+experiment="
WHOLE = ["--package", "_global_"]  # which is all of the config, as without it


def train(program: str, given: list[str]) -> Translation:
    """Translate `train.py +experiment=NAME key=value ...`."""
    command, notes = ["train"], []
    for word in given:
        name = word.removeprefix(CHOICE) if word.startswith(CHOICE) else ""
        if name in EXPERIMENTS:
            notes.append(f"{name} is {EXPERIMENTS[name]} here")
        command.append(f"{CHOICE}{EXPERIMENTS[name]}" if name in EXPERIMENTS else word)
    for index in range(len(command) - 1):
        if command[index : index + 2] == WHOLE:
            command = command[:index] + command[index + 2 :]
            break
    return Translation(command, notes)
