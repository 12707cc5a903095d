"""Algorithms of Stable-Baselines3, or of SBX when called from `sbx_training.py`: they share all but the classes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from window import Task, Window, read_task


class StopAfterWindow(BaseCallback):
    """Reports the start of every rollout to the window; off policy, a rollout is what one update follows."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self._is_over = False

    def _on_rollout_start(self) -> None:
        self._is_over = self._window.is_over(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._is_over


def ppo(task: Task, env: VecEnv) -> dict[str, Any]:
    return {"n_steps": task.settings["num_steps"], "n_epochs": task.settings["num_epochs"]}


def off_policy(task: Task) -> dict[str, Any]:
    return {
        "buffer_size": task.settings["buffer_size"],
        "learning_starts": task.learning_starts,
        "train_freq": task.settings["steps_per_update"],
        "gradient_steps": 1,
        "gamma": task.settings["gamma"],
    }


def sac(task: Task, env: VecEnv) -> dict[str, Any]:
    return {**off_policy(task), "tau": task.settings["tau"], "ent_coef": "auto"}


def td3(task: Task, env: VecEnv) -> dict[str, Any]:
    size = env.action_space.shape
    return {
        **off_policy(task),
        "tau": task.settings["tau"],
        "policy_delay": task.settings["policy_delay"],
        "target_policy_noise": task.settings["target_noise"],
        "target_noise_clip": task.settings["target_noise_clip"],
        "action_noise": NormalActionNoise(np.zeros(size), np.full(size, task.settings["exploration_noise"])),
    }


def dqn(task: Task, env: VecEnv) -> dict[str, Any]:
    epsilon = task.settings["epsilon"]
    return {
        **off_policy(task),
        "tau": 1.0,
        "target_update_interval": task.settings["target_update_steps"],
        "exploration_initial_eps": epsilon,
        "exploration_final_eps": epsilon,
    }


ARGUMENTS = {"ppo": ppo, "sac": sac, "td3": td3, "dqn": dqn}


def measure(library: ModuleType, name: str, *, relu: Any, tanh: Any, can_clip: bool) -> None:
    """Train for the window with the settings of the task, and print the speed."""
    task = read_task()
    torch.set_num_threads(task.threads)
    env = make_vec_env(task.env_id, n_envs=task.num_envs, seed=task.seed)
    if task.settings.get("use_normalization"):
        env = VecNormalize(env)
    arguments = ARGUMENTS[task.algorithm](task, env)
    if can_clip and "max_grad_norm" in task.settings:
        arguments["max_grad_norm"] = task.settings["max_grad_norm"]
    model = vars(library)[task.algorithm.upper()](
        "MlpPolicy",
        env,
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
        policy_kwargs={"net_arch": task.hidden, "activation_fn": tanh if task.algorithm == "ppo" else relu},
        seed=task.seed,
        device="cpu",
        **arguments,
    )
    window = Window(task)
    model.learn(10**9, callback=StopAfterWindow(window))
    window.report(name, library.__version__)


if __name__ == "__main__":
    measure(stable_baselines3, "sb3", relu=torch.nn.ReLU, tanh=torch.nn.Tanh, can_clip=True)
