"""The fast CarRacing beside gymnasium's CarRacing-v3: the same rewards, nearly the same picture, many more steps.

First both are stepped side by side on 20 tracks with the same actions: rewards, ends and infos must be equal at every
step, and the pictures are compared. Then they are timed on one core in interleaved rounds (stock, fast, stock, ...),
because a shared machine drifts: whole episodes of 1000 steps with their reset, the same track and actions for all, and
the ratio within each round, of which the median is the result. Seconds are those that the core worked for the process;
`core used` is their share of the time that passed, 1 on an idle machine.

    python benchmarks/car_racing.py                                              # about 4 minutes
    python benchmarks/car_racing.py --tracks 2 --steps 100 --rounds 1 --name try     # does it work at all?
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from harness import markdown_table, versions, write_results

from rl_lab.environments.car_racing import make_env

VARIANTS: dict[str, dict[str, Any]] = {
    "fast 96x96": {"size": 96},
    "fast 64x64": {"size": 64},
    "fast 64x64 gray": {"size": 64, "grayscale": True},
}
FALL_STEPS = 50  # in which the camera falls towards the car
Row = dict[str, Any]


def main() -> None:
    args = parse_arguments()
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    warnings.simplefilter("ignore", DeprecationWarning)  # Box2D and pygame
    agreement = compare(args.tracks, args.steps)
    print(markdown_table([agreement]), flush=True)
    pin_to_one_core()
    rows = [row for number in range(args.rounds) for row in measure_round(number, args.steps)]
    simulators = versions(["box2d", "pygame-ce"])
    path = write_results(args.name, rows, agreement=agreement, summary=summary(rows), simulator_versions=simulators)
    print(f"\n{markdown_table(rows)}\n\n{markdown_table(summary(rows))}\n\n{path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracks", type=int, default=20, help="to compare on")
    parser.add_argument("--steps", type=int, default=1000, help="of an episode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="car_racing", help="of the result files")
    return parser.parse_args()


def pin_to_one_core() -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def make_stock() -> gymnasium.Env[Any, Any]:
    """Return gymnasium's environment as it registers it, without the checker that looks at every step."""
    return gymnasium.make("CarRacing-v3", disable_env_checker=True)


class Driver:
    """Steers an environment along its track with an unsteady hand; it is slow, and never part of what is timed."""

    def __init__(self, env: Any, seed: int) -> None:
        self._base = env.unwrapped
        self._rng = np.random.default_rng(seed)
        self._track = np.array(self._base.track)[:, 2:4]

    def act(self) -> np.ndarray:
        """Return the action for where the car is now."""
        hull = self._base.car.hull
        nearest = int(((self._track - hull.position) ** 2).sum(axis=1).argmin())
        x, y = self._track[(nearest + 5) % len(self._track)] - hull.position
        cos, sin = math.cos(hull.angle), math.sin(hull.angle)
        turn = math.atan2(cos * x + sin * y, cos * y - sin * x)
        steering = np.clip(2.0 * turn + self._rng.normal(0.0, 0.3), -1.0, 1.0)
        gas = 0.6 * (hull.linearVelocity.length < 45.0)
        brake = 0.3 * (self._rng.random() < 0.1)
        return np.array([steering, gas, brake], np.float32)


def compare(num_tracks: int, num_steps: int) -> Row:
    """Step both on the same tracks: half are driven along, half at random; raises when an outcome differs."""
    fast, stock = make_env("CarRacing-fast"), make_stock()
    falling: list[float] = []
    later: list[float] = []
    tiles = 0
    fast.action_space.seed(0)
    for track in range(num_tracks):
        seed = track if track < (num_tracks + 1) // 2 else None  # the others go on with the random stream
        check_picture(fast.reset(seed=seed)[0], stock.reset(seed=seed)[0], falling)
        driver = Driver(fast, track)
        for step in range(num_steps):
            action = driver.act() if track % 2 == 0 else fast.action_space.sample()
            (picture, *outcome), (expected, *other) = fast.step(action), stock.step(action)
            if outcome != other:
                raise RuntimeError(f"track {track}, step {step}: {outcome} instead of {other}")
            check_picture(picture, expected, falling if step < FALL_STEPS else later)
            if outcome[1] or outcome[2]:
                break
        tiles += fast.unwrapped.tile_visited_count  # type: ignore[attr-defined]
    return {
        "tracks": num_tracks,
        "steps": len(falling) + len(later) - num_tracks,
        "tiles visited": tiles,
        "outcomes equal": True,
        "mean absolute pixel difference of 255": float(np.mean(falling + later)),
        "in the first second": float(np.mean(falling)),
        "worst picture": float(np.max(falling + later)),
    }


def check_picture(picture: np.ndarray, expected: np.ndarray, differences: list[float]) -> None:
    differences.append(float(np.abs(picture.astype(np.int16) - expected).mean()))


def measure_round(number: int, num_steps: int) -> list[Row]:
    """Time an episode of each on the same track with the same actions."""
    actions = recorded_actions(number, num_steps)
    envs = {"stock 96x96": make_stock()} | {name: make_env("CarRacing-fast", **kw) for name, kw in VARIANTS.items()}
    rows: list[Row] = []
    for name, env in envs.items():
        episodes = 1 if "stock" in name else 5  # of which the first one warms up
        times = [time_episode(env, number, actions) for _ in range(episodes)][-max(episodes - 1, 1) :]
        reset_s, core_s, wall_s = (sum(column) / len(times) for column in zip(*times, strict=True))
        row = {"round": number, "environment": name, "steps per s": len(actions) / core_s}
        row["ratio"] = row["steps per s"] / rows[0]["steps per s"] if rows else 1.0
        row["reset ms"] = 1000.0 * reset_s
        row["step ms"] = 1000.0 * (core_s - reset_s) / len(actions)
        row["core used"] = core_s / wall_s
        rows.append(row)
        print(f"round {number}: {name} {row['steps per s']:.0f} steps/s, ratio {row['ratio']:.1f}", flush=True)
        env.close()
    return rows


def recorded_actions(seed: int, num_steps: int) -> list[np.ndarray]:
    """Return the actions of a driver on one track, until the episode ends."""
    env = make_env("CarRacing-fast", size=32)
    env.reset(seed=seed)
    driver, actions = Driver(env, seed), []
    for _ in range(num_steps):
        actions.append(driver.act())
        if any(env.step(actions[-1])[2:4]):
            break
    return actions


def time_episode(env: gymnasium.Env[Any, Any], seed: int, actions: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """Return the core's seconds for the reset, those for reset and steps, and how long that took."""
    wall_start, start = time.perf_counter(), time.process_time()
    env.reset(seed=seed)
    reset_end = time.process_time()
    for action in actions:
        env.step(action)
    end = time.process_time()
    return reset_end - start, end - start, time.perf_counter() - wall_start


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the medians over the rounds."""
    names = list(dict.fromkeys(row["environment"] for row in rows))
    columns = ("steps per s", "ratio", "reset ms", "step ms", "core used")
    grouped = {name: [row for row in rows if row["environment"] == name] for name in names}
    return [
        {"environment": name} | {column: median(row[column] for row in group) for column in columns}
        for name, group in grouped.items()
    ]


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
