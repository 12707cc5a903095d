"""PPO of the lab, with the settings of the task instead of those of the experiment file."""

from __future__ import annotations

import tempfile

from window import Task, Window, read_task

import rl_lab
from rl_lab.cli.running import new_job, opened
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import COLLECT
from rl_lab.orchestration.phase_scheduler import Action, PhaseScheduler

EXPERIMENTS = {"CartPole-v1": "ppo_cartpole", "HalfCheetah-v5": "ppo_halfcheetah"}


def overrides(task: Task) -> list[str]:
    """Return the command line that makes the experiment this task: what Stable-Baselines3 does by default."""
    num_minibatches = task.num_envs * task.num_steps // task.minibatch_size
    return [
        f"+experiment={EXPERIMENTS[task.env_id]}",
        f"experiment.seed={task.seed}",
        f"experiment.num_threads={task.threads}",
        "experiment.device=cpu",
        f"environment.num_envs={task.num_envs}",
        f"algorithm.num_epochs={task.num_epochs}",
        f"algorithm.num_minibatches={num_minibatches}",
        f"algorithm.normalize_observations={task.use_normalization}",
        f"algorithm.normalize_rewards={task.use_normalization}",
        "algorithm.learning_rate_schedule=constant",
        "algorithm.value_clip_range=null",
        "algorithm.target_kl=null",
        "algorithm.normalize_advantages=minibatch",
        f"optimizers.policy.lr={task.learning_rate}",
        *(f"components.{name}.hidden_dims={list(task.hidden)}" for name in ("actor", "critic")),
        "training.total_timesteps=1_000_000_000",
        f"training.phases.0.workflow_hooks=[{{collect: {task.num_steps}}}, update_policy]",
        "training.eval_frequency=null",
        "training.checkpoint_frequency=null",
        "training.checkpoint_minutes=null",
        "logging.terminal=false",
        "logging.tensorboard=false",
    ]


def stop_after(window: Window, scheduler: PhaseScheduler, num_steps: int) -> None:
    """Report the start of every iteration to the window, and end the run with it."""
    next_action = scheduler.next_action

    def measured() -> Action | None:
        action = next_action()
        begins = action is not None and action.hook == COLLECT and action.repeats == num_steps
        return None if begins and window.is_over(scheduler.counters.env_steps) else action

    scheduler.next_action = measured  # type: ignore[method-assign]


def main() -> None:
    task = read_task()
    with tempfile.TemporaryDirectory() as folder:
        job = new_job(compose(overrides(task)), Targets(AllowList()), f"{folder}/run")
        with opened(job) as orchestrator:
            window = Window(task.warmup_s, task.window_s)
            stop_after(window, orchestrator.scheduler, task.num_steps)
            orchestrator.run()
    window.report("lab", rl_lab.__version__)


if __name__ == "__main__":
    main()
