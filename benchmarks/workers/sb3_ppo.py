"""PPO of Stable-Baselines3, or of SBX when called from `sbx_ppo.py`: the two share everything but the class."""

from __future__ import annotations

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from window import Window, read_task


class StopAfterWindow(BaseCallback):
    """Reports the start of every rollout to the window."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self._is_over = False

    def _on_rollout_start(self) -> None:
        self._is_over = self._window.is_over(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._is_over


def measure(algorithm: type, library: str, version: str, **policy: object) -> None:
    """Train for the window with the settings of the task, and print the speed."""
    task = read_task()
    torch.set_num_threads(task.threads)
    env = make_vec_env(task.env_id, n_envs=task.num_envs, seed=task.seed)
    if task.use_normalization:
        env = VecNormalize(env)
    layers = list(task.hidden)
    model = algorithm(
        "MlpPolicy",
        env,
        learning_rate=task.learning_rate,
        n_steps=task.num_steps,
        batch_size=task.minibatch_size,
        n_epochs=task.num_epochs,
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, **policy},
        seed=task.seed,
        device="cpu",
    )
    window = Window(task.warmup_s, task.window_s)
    model.learn(10**9, callback=StopAfterWindow(window))
    window.report(library, version)


if __name__ == "__main__":
    measure(stable_baselines3.PPO, "sb3", stable_baselines3.__version__, activation_fn=torch.nn.Tanh)
