"""How fast SAC, TD3, DQN could be on a CPU: the matrix products of one update alone, beside the whole compiled update.

The products are those that an eager update asks for (sizes as in `model_free_gpu.py`), replayed one after another on
operands of the same layout: by torch, by oneDNN and by NumPy, of which the quickest counts. The environment alone is
beside them. Each time is the shortest of many short windows, which other work on the machine disturbs least. `floor_us`
is what an env step would take if nothing but products and environment were there: no activation, no Adam, no sampling.

    python benchmarks/model_free_floor.py [--threads 1 2] [--tasks dqn_cartpole] [--name try]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import gymnasium
import torch
from harness import markdown_table, run_json, write_results
from model_free_gpu import TASKS, prepare
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WINDOW_S = 0.004
WINDOWS = 100
ENVIRONMENTS = {"sac_halfcheetah": "HalfCheetah-v5", "td3_halfcheetah": "HalfCheetah-v5", "dqn_cartpole": "CartPole-v1"}
OVERRIDES = {  # as in `model_free_speed.py`
    "dqn_cartpole": ("algorithm.double=false", "buffers.replay.n_step=1", "++algorithm.max_grad_norm=10.0")
}
UPDATES_PER_STEP = {"dqn_cartpole": 0.1}  # 1 elsewhere
UPDATES_PER_ROUND = {"td3_halfcheetah": 2}  # every other update of TD3 moves the policy
aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


class Operand(NamedTuple):
    """How a matrix, or a batch of them, lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def made(self) -> Tensor:
        """Return such a tensor of random numbers."""
        numbers = torch.randn(self.shape)
        if 0 in self.stride:  # expanded: rows share their memory
            return numbers
        return torch.empty_strided(self.shape, self.stride).copy_(numbers)


class Products(TorchDispatchMode):
    """Counts the matrix products that are asked for while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[Operand, Operand]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the two factors and go on."""
        if function in PRODUCTS:
            left, right = (Operand(tuple(factor.shape), factor.stride()) for factor in args[-2:])
            self.seen[left, right] += 1
        return function(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--name", default="model_free_floor", help="of the result files")
    parser.add_argument("--row", choices=TASKS, help="print the row of this task in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.row is not None:
        print(json.dumps(measure(arguments.row)))
        return
    rows = []
    for threads, task in product(arguments.threads, arguments.tasks):  # all libraries read their threads at the start
        rows.append(run_json([sys.executable, __file__, "--row", task], OMP_NUM_THREADS=str(threads)))
        print(rows[-1], flush=True)
    write_results(arguments.name, rows)
    print(f"\n{markdown_table(rows)}")


def measure(task: str) -> dict[str, Any]:
    """Return the row of a task."""
    threads, count = torch.get_num_threads(), UPDATES_PER_ROUND.get(task, 1)
    overrides = (f"experiment.num_threads={threads}", *OVERRIDES.get(task, ()))
    eager, _, _ = prepare(task, "eager", "cpu", *overrides)
    with Products() as products:
        repeated(eager, count)
    compiled, _, _ = prepare(task, "compiled", "cpu", *overrides)
    update_us = shortest_us(lambda: repeated(compiled, count)) / count
    products_us = sum(times * quickest_us(*factors) for factors, times in products.seen.items()) / count
    multiplications = sum(times * left_by_right(*factors) for factors, times in products.seen.items())
    env_us = environment_us(ENVIRONMENTS[task])
    return {
        "task": task,
        "threads": threads,
        "products": sum(products.seen.values()) / count,
        "mflop": round(2 * multiplications / count / 1e6, 1),
        "products_us": round(products_us, 1),
        "update_us": round(update_us, 1),
        "share": round(products_us / update_us, 2),
        "env_us": round(env_us, 1),
        "floor_us": round(env_us + UPDATES_PER_STEP.get(task, 1.0) * products_us, 1),
    }


def repeated(function: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        function()


def left_by_right(left: Operand, right: Operand) -> int:
    """Return the multiplications of a product."""
    return torch.Size(left.shape).numel() * right.shape[-1]


def quickest_us(left: Operand, right: Operand) -> float:
    """Return the microseconds of a product by the library that is quickest at it."""
    a, b = left.made(), right.made()
    ways: list[Callable[[], Any]] = [lambda: a @ b]
    linear = torch.ops.mkldnn._linear_pointwise.default
    pairs = list(zip(a, b, strict=True)) if a.ndim == 3 else [(a, b)]
    if torch.backends.mkldnn.is_available():
        rows = [(x.contiguous(), y.t()) for x, y in pairs]
        ways.append(lambda: [linear(x, y, None, "none", [], "") for x, y in rows])
    arrays = [(x.numpy(), y.numpy()) for x, y in pairs]
    ways.append(lambda: [x.dot(y) for x, y in arrays])
    return min(shortest_us(way) for way in ways)


def environment_us(name: str) -> float:
    """Return the microseconds of a step with random actions, resets included."""
    env = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(50)]

    def steps() -> None:
        for action in actions:
            if env.step(action)[2]:
                env.reset()

    return shortest_us(steps) / len(actions)


def shortest_us(function: Callable[[], Any]) -> float:
    """Return the microseconds of a call in the shortest of many windows."""
    repeated(function, 3)
    started = time.perf_counter()
    repeated(function, 3)
    calls = max(1, int(3 * WINDOW_S / (time.perf_counter() - started)))
    windows = []
    for _ in range(WINDOWS):
        started = time.perf_counter()
        repeated(function, calls)
        windows.append(time.perf_counter() - started)
    return min(windows) / calls * 1e6


if __name__ == "__main__":
    main()
