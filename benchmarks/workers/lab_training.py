"""Algorithms of the lab, with the settings of the task instead of those of the experiment file."""

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

ENVIRONMENTS = {"CartPole-v1": "cartpole", "HalfCheetah-v5": "halfcheetah", "Pendulum-v1": "pendulum"}


def shared(task: Task) -> list[str]:
    hook = "update_policy" if task.algorithm == "ppo" else "update_agent"
    return [
        f"+experiment={task.algorithm}_{ENVIRONMENTS[task.env_id]}",
        f"experiment.seed={task.seed}",
        f"experiment.num_threads={task.threads}",
        f"experiment.compile={task.compile}",
        f"experiment.precision={task.precision}",
        "experiment.device=cpu",
        f"environment.num_envs={task.num_envs}",
        "training.total_timesteps=1_000_000_000",
        f"training.phases.0.workflow_hooks=[{{collect: {collect_steps(task)}}}, {hook}]",
        "training.eval_frequency=null",
        "training.checkpoint_frequency=null",
        "training.checkpoint_minutes=null",
        "logging.terminal=false",
        "logging.tensorboard=false",
        *(f"components.{name}.hidden_dims={task.hidden}" for name in NETWORKS[task.algorithm]),
        *(f"++optimizers.{name}={adam(task.learning_rate)}" for name in OPTIMIZERS[task.algorithm]),
    ]


def adam(learning_rate: float) -> str:
    return f"{{_target_: torch.optim.Adam, _partial_: true, lr: {learning_rate}, fused: true}}"


def ppo(task: Task) -> list[str]:
    settings = task.settings
    return [
        f"algorithm.num_epochs={settings['num_epochs']}",
        f"algorithm.num_minibatches={task.num_envs * settings['num_steps'] // task.batch_size}",
        f"algorithm.normalize_observations={settings['use_normalization']}",
        f"algorithm.normalize_rewards={settings['use_normalization']}",
        "algorithm.learning_rate_schedule=constant",
        "algorithm.value_clip_range=null",
        "algorithm.target_kl=null",
        "algorithm.normalize_advantages=minibatch",
    ]


def off_policy(task: Task) -> list[str]:
    settings = task.settings
    return [
        f"training.phases.0.train_ratio={1 / settings['steps_per_update']}",
        f"++algorithm.random_steps={task.learning_starts}",
        f"++algorithm.gamma={settings['gamma']}",
        f"buffers.replay.capacity={settings['buffer_size']}",
        f"buffers.replay.batch_size={task.batch_size}",
        f"buffers.replay.min_size={task.learning_starts + settings['steps_per_update']}",  # as Stable-Baselines3
    ]


def sac(task: Task) -> list[str]:
    return [*off_policy(task), f"++algorithm.tau={task.settings['tau']}", "++algorithm.target_entropy=auto"]


def td3(task: Task) -> list[str]:
    settings = task.settings
    return [
        *off_policy(task),
        f"++algorithm.tau={settings['tau']}",
        f"++algorithm.policy_delay={settings['policy_delay']}",
        f"++algorithm.target_noise={settings['target_noise']}",
        f"++algorithm.target_noise_clip={settings['target_noise_clip']}",
        f"++algorithm.noise_std={settings['exploration_noise']}",
    ]


def dqn(task: Task) -> list[str]:
    settings = task.settings
    return [
        *off_policy(task),
        "++algorithm.tau=1.0",
        "++algorithm.double=false",  # as the peers: plain targets of one step
        "++buffers.replay.n_step=1",
        "components.critic.layer_norm=false",
        "++algorithm.learning_rate_schedule=constant",
        f"++algorithm.target_update_every={settings['target_update_steps'] // settings['steps_per_update']}",  # updates
        *(f"++algorithm.epsilon_{when}={settings['epsilon']}" for when in ("start", "end")),
        f"++algorithm.max_grad_norm={settings['max_grad_norm']}",
    ]


NETWORKS = {"ppo": ("actor", "critic"), "sac": ("actor", "critic"), "td3": ("actor", "critic"), "dqn": ("critic",)}
OPTIMIZERS = {"ppo": ("policy",), "sac": ("actor", "critic", "alpha"), "td3": ("actor", "critic"), "dqn": ("critic",)}
OVERRIDES = {"ppo": ppo, "sac": sac, "td3": td3, "dqn": dqn}


def collect_steps(task: Task) -> int:
    """Return the vector steps of an iteration."""
    return task.settings["num_steps" if task.algorithm == "ppo" else "steps_per_update"]


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
        composed = compose([*shared(task), *OVERRIDES[task.algorithm](task)])
        job = new_job(composed, Targets(AllowList()), f"{folder}/run")
        with opened(job) as orchestrator:
            window = Window(task)
            stop_after(window, orchestrator.scheduler, collect_steps(task))
            orchestrator.run()
    window.report("lab", rl_lab.__version__)


if __name__ == "__main__":
    main()
