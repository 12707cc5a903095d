"""Learning curves of Stable-Baselines3, to tell what a task gives from what an algorithm misses.

Runs in the peer's own environment and trains with the settings of `sac_hopper` and its like: two layers of 256, batches
of 256, 10,000 random steps (TD3: 25,000, and noise of 0.1), one update per step; greedy evaluation episodes. Rows go to
`results/<name>.csv`.

    .peers/sb3/bin/python benchmarks/workers/sb3_scores.py --env Hopper-v5 --seeds 1 2 3 --steps 100_000
    .peers/sb3/bin/python benchmarks/workers/sb3_scores.py --algorithm TD3 --env HalfCheetah-v5 --steps 300_000
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

EVALUATION_SEED = 1_000_003


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--algorithm", default="SAC", choices=["SAC", "TD3"])
    options.add_argument("--env", default="Hopper-v5")
    options.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options.add_argument("--steps", type=int, default=100_000)
    options.add_argument("--every", type=int, default=10_000, help="env steps between two evaluations")
    options.add_argument("--episodes", type=int, default=10)
    options.add_argument("--parallel", type=int, default=2)
    options.add_argument("--name", default="sb3_scores")
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Manager() as manager, multiprocessing.Pool(args.parallel) as pool:
        queue = manager.Queue()
        pending = [pool.apply_async(partial(train, args, seed, queue)) for seed in args.seeds]
        for _ in range(len(args.seeds) * (args.steps // args.every)):
            rows.append(queue.get())
            print(rows[-1], flush=True)
            ordered = sorted(rows, key=lambda row: (row["seed"], row["step"]))
            write_results(args.name, ordered, peer=f"stable-baselines3 {stable_baselines3.__version__}")
        for each in pending:
            each.get()


def train(args: argparse.Namespace, seed: int, queue: Any) -> None:
    """Train one seed and report an evaluation every so often."""
    torch.set_num_threads(1)
    environment = gymnasium.make(args.env)
    own: dict[str, Any] = {"learning_starts": 10_000}
    if args.algorithm == "TD3":
        dim = environment.action_space.shape[0]
        own = {"learning_starts": 25_000, "action_noise": NormalActionNoise(np.zeros(dim), np.full(dim, 0.1))}
    model = vars(stable_baselines3)[args.algorithm](
        "MlpPolicy",
        environment,
        seed=seed,
        device="cpu",
        learning_rate=3e-4,
        batch_size=256,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256]},
        **own,
    )
    for step in range(args.every, args.steps + 1, args.every):
        model.learn(args.every, reset_num_timesteps=False)
        evaluation = stable_baselines3.common.env_util.make_vec_env(args.env, seed=EVALUATION_SEED)
        value, spread = evaluate_policy(model, evaluation, n_eval_episodes=args.episodes)
        named = {"algorithm": args.algorithm, "env": args.env, "seed": seed, "step": step}
        queue.put({**named, "eval/return": float(value), "spread": float(spread)})


if __name__ == "__main__":
    main()
