"""LeanRL's SAC, TD3 or DQN by its own script: env steps per second of the loop, and updates per second without it.

The script runs unchanged until enough was seen: what it would log tells how far it is. Then its own functions are
called in the order of its loop, with batches of its own buffer. `<root>/site`, where there is one, has what it imports.
Stand-ins take the place of what only reports (wandb; tqdm where it is missing) and of a name that NumPy 2 dropped. The
scripts are of 2024: tensordict 0.6, torchrl 0.6 and, for episodes that end, gymnasium 0.29.

    python benchmarks/workers/leanrl_training.py ROOT sac captured --seconds 8 --device cuda
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPTS = {
    "sac": "sac_continuous_action_torchcompile.py",
    "td3": "td3_continuous_action_torchcompile.py",
    "dqn": "dqn_torchcompile.py",
}
ENDLESS = "EndlessHalfCheetah-v4"  # NumPy from 2.4 on does not turn the return of an episode into a float as sac does
ENVIRONMENTS = {"sac": ENDLESS, "td3": ENDLESS, "dqn": "CartPole-v1"}
FLAGS = {"eager": (), "compiled": ("--compile",), "captured": ("--compile", "--cudagraphs")}
LEARNING_STARTS = 1_000  # env steps; less than the scripts', and nothing of it is measured
LEAST_LOGS = 4  # one per 100 env steps; the first ones follow compilations


class Enough(Exception):
    """The script has run for long enough."""


class Log:
    """Takes the place of wandb: notes when it is called, and ends the script in time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.seen: list[tuple[int, float]] = []

    def __call__(self, values: dict[str, Any], step: int) -> None:
        """Note the step."""
        self.seen.append((step, time.perf_counter()))
        if len(self.seen) >= LEAST_LOGS and self.seen[-1][1] - self.seen[1][1] >= self._seconds:
            raise Enough

    def rate(self) -> float:
        """Return env steps per second."""
        (first_step, first_at), (last_step, last_at) = self.seen[1], self.seen[-1]
        return (last_step - first_step) / (last_at - first_at)


class Bar:
    """Takes the place of a progress bar."""

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = steps

    def __iter__(self) -> Any:
        return iter(self._steps)

    def set_description(self, _: str) -> None:
        """Show nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="clone of github.com/pytorch-labs/LeanRL")
    parser.add_argument("algorithm", choices=SCRIPTS)
    parser.add_argument("way", choices=FLAGS)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each window")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    print(json.dumps({"library": "leanrl", "way": arguments.way} | measure(arguments)))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    site = arguments.root.resolve() / "site"
    sys.path[:0] = [str(site)] * site.is_dir()
    log = Log(arguments.seconds)
    stand_ins = stand_in(log)
    script = arguments.root.resolve() / "leanrl" / SCRIPTS[arguments.algorithm]
    cuda = () if arguments.device.startswith("cuda") else ("--no-cuda",)
    environment = ("--env-id", ENVIRONMENTS[arguments.algorithm])
    sys.argv = [str(script), "--learning-starts", str(LEARNING_STARTS), *environment, *FLAGS[arguments.way], *cuda]
    register_endless()
    names = vars(as_main(script))
    with suppress(Enough):
        exec(compile(script.read_text(), str(script), "exec"), names)
    update = UPDATES[arguments.algorithm](names)
    for count in range(50):
        update(count)
    return {
        "env_steps_per_s": round(log.rate(), 1),
        "updates_per_s": round(rate(update, arguments.seconds), 1),
        "environment": ENVIRONMENTS[arguments.algorithm],
        "stand_ins": stand_ins,
        "versions": {name: metadata.version(name) for name in ("tensordict", "torchrl", "gymnasium", "torch", "numpy")},
    }


def as_main(script: Path) -> ModuleType:
    """Return a module in the place of this one: torch's compiler looks for the script's names there."""
    module = ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["worker"], sys.modules["__main__"] = sys.modules["__main__"], module
    return module


def stand_in(log: Log) -> list[str]:
    """Put stand-ins where there is nothing, and always for wandb, which would call home; return their names."""
    import numpy as np

    made = {"wandb": {"init": lambda **_: None, "log": log}}
    if importlib.util.find_spec("tqdm") is None:
        made["tqdm"] = {"tqdm": Bar}
    for name, content in made.items():
        module = importlib.util.module_from_spec(ModuleSpec(name, None))
        vars(module).update(content)
        sys.modules[name] = module
    if "bool8" in vars(np):
        return list(made)
    np.bool8 = np.bool_  # gymnasium 0.29 asks for it
    return [*made, "numpy.bool8"]


def register_endless() -> None:
    import gymnasium

    entry_point = gymnasium.spec("HalfCheetah-v4").entry_point
    gymnasium.register(ENDLESS, entry_point=entry_point, max_episode_steps=10**9)


def sac(names: dict[str, Any]) -> Callable[[int], None]:
    """Return what the script's loop does to learn at its step `count`."""
    args, buffer = names["args"], names["rb"]

    def update(count: int) -> None:
        data = buffer.sample(args.batch_size)
        names["update_main"](data)
        if count % args.policy_frequency == 0:
            for _ in range(args.policy_frequency):
                names["update_pol"](data)
                names["alpha"].copy_(names["log_alpha"].detach().exp())
        names["qnet_target"].lerp_(names["qnet_params"].data, args.tau)

    return update


def td3(names: dict[str, Any]) -> Callable[[int], None]:
    """Return what the script's loop does to learn at its step `count`."""
    args, buffer = names["args"], names["rb"]

    def update(count: int) -> None:
        data = buffer.sample(args.batch_size)
        names["update_main"](data)
        if count % args.policy_frequency == 0:
            names["update_pol"](data)
            names["qnet_target_params"].lerp_(names["qnet_params"].data, args.tau)
            names["target_actor_params"].lerp_(names["actor_params"].data, args.tau)

    return update


def dqn(names: dict[str, Any]) -> Callable[[int], None]:
    """Return what the script's loop does to learn at its update `count`."""
    args, buffer = names["args"], names["rb"]

    def update(count: int) -> None:
        names["update"](buffer.sample(args.batch_size))
        if count * args.train_frequency % args.target_network_frequency == 0:
            names["target_params"].lerp_(names["params_vals"], args.tau)

    return update


UPDATES = {"sac": sac, "td3": td3, "dqn": dqn}


def rate(update: Callable[[int], None], seconds: float) -> float:
    import torch

    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(20):
            update(count)
            count += 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
