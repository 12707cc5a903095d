"""What a chunk of actions of a VLA takes, by size: with the prefix's cache and without, on a CPU or a GPU.

    python benchmarks/vla_latency.py                                             # results/vla_latency.csv, one core
    python benchmarks/vla_latency.py --device cuda --sizes 50m 300m 3b --train   # results/vla_latency_cuda.csv, a GPU

Weights are random. Three cameras, a prompt, 14 numbers of state, chunks of 50 actions, ten steps of Euler; on a CPU
milliseconds of processor time, on a GPU of wall time, also as one captured CUDA graph, in bfloat16. `--train` measures
steps of AdamW too, for each way of tuning. Published for pi0 on an RTX 4090: 73 ms (Black et al., 2024, table I).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from harness import markdown_table, write_results

from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.vla.pi0 import Pi0
from rl_lab.components.vla.tuning import Tuning
from rl_lab.components.vla.vla import VLA
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets

CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
NUMBERS, LENGTH = 14, 50  # of state and action; of a chunk
PROMPT = "put the objects in the box"
TUNINGS = ("expert", "lora", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1m", "5m", "50m"], help="of configs/components/vla_*.yaml")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--train", action="store_true", help="measure steps of training too")
    parser.add_argument("--batch", type=int, default=8, help="chunks of a training step")
    parser.add_argument("--name", help="of the results (vla_latency, vla_latency_cuda)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    rows: list[dict[str, Any]] = []
    name = arguments.name or ("vla_latency" if device.type == "cpu" else "vla_latency_cuda")
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    for size, tuning in product(arguments.sizes, (None, *TUNINGS) if arguments.train else (None,)):
        if tuning is None:
            rows += [acting_row(size, device, arguments.repeats)]
        else:
            rows += [training_row(size, device, tuning, arguments)]
        print(rows[-1], flush=True)
        write_results(name, rows, gpu=gpu, cameras=len(CAMERAS), length=LENGTH, repeats=arguments.repeats)
        gc.collect()  # one network at a time: with its optimiser the largest takes half of a GPU
        torch.cuda.empty_cache()
    print(markdown_table(rows))


def make_vla(size: str, device: torch.device, tuning: Tuning) -> VLA:
    """Return a bound VLA of a packaged size, with random weights."""
    network = "components.generator.network"
    config = compose(
        ["+experiment=sft_pick_and_place_pixels", f"components@{network}=vla_{size}", f"{network}.prompt={PROMPT}"]
    )
    node = dict(config["components"]["generator"]["network"])
    targets = Targets(AllowList())
    with device:
        vla = targets.instantiate(network, targets.check(network, {**node, "tuning": vars(tuning)}))
        vla.bind_observations(NUMBERS, pictures_of(vla))
        vla.bind(NUMBERS, LENGTH, NUMBERS, 1)
    return vla.to(device)


def pictures_of(vla: VLA) -> dict[str, tuple[int, ...]]:
    vision = vla.sizes.vision
    return {} if vision is None else dict.fromkeys(CAMERAS, (3, vision.picture_size, vision.picture_size))


def observations(vla: VLA, batch: int, device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    shapes = pictures_of(vla).items()
    pictures = {
        name: torch.randint(0, 256, (batch, 1, *shape), dtype=torch.uint8, device=device) for name, shape in shapes
    }
    return torch.rand(batch, 1, NUMBERS, device=device), pictures


def acting_row(size: str, device: torch.device, repeats: int) -> dict[str, Any]:
    """Return what one chunk takes: all of it, its prefix, and with the prefix computed anew at every step."""
    dtype = "float32" if device.type == "cpu" else "bfloat16"
    vla = make_vla(size, device, Tuning("expert", frozen_dtype=dtype))
    if dtype == "bfloat16":  # nothing learns here: the expert's weights need not be float32 either
        vla.model.paligemma_with_expert.to(torch.bfloat16)
    flow, seen = FlowMatching(vla), observations(vla, 1, device)
    noise = torch.randn(1, LENGTH, NUMBERS, device=device)

    def without_cache() -> torch.Tensor:
        noisy = noise
        for index in range(flow.num_sampling_steps):
            level = torch.full((1,), 1.0 - index / flow.num_sampling_steps, device=device)
            noisy = noisy - vla(noisy, level, vla.prepare(seen)) / flow.num_sampling_steps
        return noisy

    with torch.no_grad():
        chunk = measured(lambda: flow.sample(seen, noise), device, repeats)
        row = {
            "size": size,
            "weights_m": round(num_weights(vla) / 1e6, 1),
            "tokens": num_tokens(vla),
            "what": f"act, {dtype}",
            "ms": round(chunk, 1),
            "prefix_ms": round(measured(lambda: vla.prepare(seen), device, repeats), 1),
            "no_cache_ms": round(measured(without_cache, device, repeats), 1),
            "captured_ms": "",
            "gb": "",
        }
        if device.type == "cuda":
            row["captured_ms"] = round(measured(captured(lambda: flow.sample(seen, noise)), device, repeats), 1)
    return row


def training_row(size: str, device: torch.device, train: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a step of AdamW takes, and on a GPU the memory it needs."""
    dtype = "float32" if device.type == "cpu" else "bfloat16"
    vla = make_vla(size, device, Tuning(train, frozen_dtype=dtype))  # type: ignore[arg-type]
    flow, seen = FlowMatching(vla), observations(vla, arguments.batch, device)
    actions = torch.rand(arguments.batch, LENGTH, NUMBERS, device=device) * 2.0 - 1.0
    learns = [parameter for parameter in vla.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=2.5e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = flow.loss(seen, actions)
        loss.backward()
        optimizer.step()

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    taken = measured(step, device, arguments.repeats)
    gb = round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else ""
    learned = sum(parameter.numel() for parameter in learns) / 1e6
    label = f"train {train}, {learned:.1f} M learn, batch {arguments.batch}, {dtype}"
    facts = {"weights_m": round(num_weights(vla) / 1e6, 1), "tokens": num_tokens(vla), "what": label}
    empty = dict.fromkeys(("prefix_ms", "no_cache_ms", "captured_ms"), "")
    return {"size": size, **facts, "ms": round(taken, 1), **empty, "gb": gb}


def num_weights(vla: VLA) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Pi0(vla.sizes).parameters())


def num_tokens(vla: VLA) -> int:
    pictures = 0 if vla.sizes.vision is None else len(CAMERAS) * vla.sizes.vision.num_tokens
    return pictures + vla.words.shape[1] + 1 + LENGTH


def captured(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return what replays the kernels of a function as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def measured(function: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the milliseconds of the fastest call: of processor time on a CPU, which others share."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    best = float("inf")
    for _ in range(repeats + 1):  # the first one warms up
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = clock()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - start)
    return 1000.0 * best


if __name__ == "__main__":
    main()
