"""Softlearning's algorithms: workflows of the lab, and what it tells them of optimisers, batches and epochs."""

from __future__ import annotations

from typing import Any

from rl_lab.config.foreign import Options
from rl_lab.config.softlearning.options import Part, Surroundings, Translator
from rl_lab.core.errors import ConfigError

LEARNING_RATE = 3e-4
WARM_UP = ("num_warmup_samples", "n_initial_exploration_steps")  # the second in its older versions
NO_EFFECT = (
    *("plotter", "save_full_state", "eval_render_kwargs", "max_train_repeat_per_timestep"),
    "batch_size",  # it is among the surroundings
)


def sac(options: Options, around: Surroundings) -> Part:
    """Return SAC; its targets move at every update, and its policy climbs the mean of the critics (since 90247f2)."""
    options.only("target_update_interval", 1)
    said = _shared(options, around)
    entropy, rate = options.take("target_entropy", "auto"), options.number("alpha_lr", LEARNING_RATE)
    said |= {"algorithm.target_entropy": entropy, "algorithm.actor_reduction": "mean"}
    if entropy is not None:
        said["optimizers.alpha"] = adam(rate)
    return Part({"_target_": "rl_lab.workflows.sac.SAC"}, said)


def sql(options: Options, around: Surroundings) -> Part:
    """Return soft Q-learning."""
    options.only("train_Q", True)
    options.only("train_policy", True)
    options.ignore("use_saved_Q", "use_saved_policy")
    said = {
        **_shared(options, around),
        "algorithm.value_particles": options.take("value_n_particles", 16),
        "algorithm.kernel_particles": options.take("kernel_n_particles", 16),
        "algorithm.update_ratio": options.take("kernel_update_ratio", 0.5),
        "algorithm.target_update_every": options.take("target_update_interval", 1),
    }
    return Part({"_target_": "rl_lab.workflows.sql.SQL"}, said)


def _shared(options: Options, around: Surroundings) -> dict[str, Any]:
    """Return what both are told, at its places in the lab."""
    options.ignore(*NO_EFFECT)
    warm_up = max(options.number(key, 0) for key in WARM_UP)
    epoch, num_epochs = options.number("epoch_length", 1_000), options.number("n_epochs")
    repeats, every = options.number("n_train_repeat", 1), options.number("train_every_n_steps", 1, low=1)
    said = {
        "algorithm.gamma": options.take("discount", 0.99),
        "algorithm.tau": options.take("tau", 0.005),
        "algorithm.reward_scale": _reward_scale(options),
        "algorithm.random_steps": warm_up,
        f"buffers.{around.buffer}.batch_size": around.batch_size,
        # It collects the warm-up before its first update.
        f"buffers.{around.buffer}.min_size": max(options.number("min_pool_size", 1), warm_up, 1),
        "optimizers.actor": adam(options.number("policy_lr", LEARNING_RATE)),
        "optimizers.critic": adam(options.number("Q_lr", LEARNING_RATE)),
        "training.eval_frequency": epoch,
        "training.phases.0.train_ratio": repeats / every,
    }
    if num_epochs is not None:
        said["training.total_timesteps"] = num_epochs * epoch
    if evaluations := options.number("video_save_frequency"):  # a film with every so many of them
        said["training.video_frequency"] = evaluations * epoch
    if (episodes := options.take("eval_n_episodes")) is not None:
        said["training.num_eval_episodes"] = episodes
    if (is_greedy := options.flag("eval_deterministic")) is not None:
        said["training.eval_explore"] = not is_greedy
    return said


def _reward_scale(options: Options) -> Any:
    """Return the number; SQL's comes as a list of one."""
    scale = options.take("reward_scale", 1.0)
    if not isinstance(scale, list | tuple):
        return scale
    if len(scale) != 1:
        raise ConfigError(f"{options.path}.reward_scale: must be a number or a list of one, not {scale!r}")
    return scale[0]


def adam(rate: float) -> dict[str, Any]:
    """Return the node of an optimiser."""
    return {"_target_": "torch.optim.Adam", "_partial_": True, "lr": rate, "fused": True}


ALGORITHMS: dict[str, Translator] = {"SAC": sac, "SQL": sql}
