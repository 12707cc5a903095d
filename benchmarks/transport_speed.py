"""Steps/s, MB/s and latency of the transport on one machine: in memory, over a socket file, over TCP and mutual TLS.

The actor is a process of its own, for `memory` a thread. Latency is from before `send` to after `receive` of single
steps at 50 Hz; every step was forced to two files by then, except in memory. Weights are one tensor of 64 MiB, from
`publish` to the actor and a step back.

    python benchmarks/transport_speed.py
    python benchmarks/transport_speed.py --seconds 1 --name try
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import markdown_table, write_results

from rl_lab.distributed.transport.certificates import create_authority, issue
from rl_lab.distributed.transport.interface import Receiver, Sender
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender

WAYS = ("memory", "host", "network", "network, TLS")
SIZES = {"256 B": 62, "60 kB": 15_000}  # float32 numbers beside the time
WEIGHTS = {"w": torch.zeros(1 << 24)}
RATE_HZ = 50.0


def step(size: int) -> dict[str, torch.Tensor]:
    """Return a step that says when it was made."""
    return {"time": torch.tensor(time.time(), dtype=torch.float64), "observations": torch.zeros(size)}


def act(sender: Sender, size: int, seconds: float) -> None:
    """Send single steps at a steady rate, then as many as go, then wait for weights."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sender.send(step(size))
        time.sleep(1 / RATE_HZ)
    sender.send(step(size) | {"time": torch.tensor(-1.0, dtype=torch.float64)})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sender.send(step(size))
    sender.send(step(size) | {"time": torch.tensor(-2.0, dtype=torch.float64)})
    while sender.newest_weights() is None:
        time.sleep(0.001)
    sender.send(step(size))
    sender.flush(60.0)


def act_alone(block: dict[str, Any], size: int, seconds: float) -> None:
    """Do so in a process of one's own."""
    with open_sender(TransportConfig.read(block), step(size)) as sender:
        act(sender, size, seconds)


def main() -> None:
    args = parse_arguments()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        create_authority(Path(folder), 1)
        issue(Path(folder), "learner", "learner", 1)
        issue(Path(folder), "actor", "actor", 1)
        for way in WAYS:
            for name, size in SIZES.items():
                rows.append(measure(way, name, size, Path(folder), args.seconds))
                print(rows[-1], flush=True)
    write_results(args.name, rows)
    print(markdown_table(rows))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--name", default="transport_speed", help="of the result files")
    return parser.parse_args()


def measure(way: str, name: str, size: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the row of one way and one size of step."""
    place = folder / f"{way}-{size}".replace(", ", "-")
    place.mkdir()
    kind = way.split(",")[0]
    address = {"memory": "", "host": str(place / "socket"), "network": "127.0.0.1:0"}[kind]
    block: dict[str, Any] = {"kind": kind, "address": address, "limits": {"steps_per_s": 1e9}}
    keys = {end: {"certificate": str(folder / f"{end}.pem")} if "TLS" in way else {} for end in ("learner", "actor")}
    learner = block | {"directory": str(place / "learner")} | keys["learner"]
    with open_receiver(TransportConfig.read(learner), step(size)) as receiver:
        if kind == "memory":
            sender = open_sender(TransportConfig.read(block), step(size), receiver)
            actor: Any = threading.Thread(target=act, args=(sender, size, seconds))
        else:
            reached = receiver.address if kind == "network" else address  # type: ignore[attr-defined]
            robot = block | {"address": reached, "directory": str(place / "actor")} | keys["actor"]
            actor = LAB.Process(target=act_alone, args=(robot, size, seconds))
        actor.start()
        latencies = [time.time() - sent for sent, _ in until(receiver, -1.0)]
        start, count = time.monotonic(), sum(1 for _ in until(receiver, -2.0))
        rate = count / (time.monotonic() - start)
        receiver.receive(1, 0.0)
        start = time.monotonic()
        receiver.publish(WEIGHTS)
        published_s = time.monotonic() - start
        while not receiver.receive(1, 1.0):
            pass
        weights_s = time.monotonic() - start
        actor.join()
    size_mb = (4 * size + 8) / 1e6
    return {
        "way": way,
        "step": name,
        "steps/s": round(rate),
        "MB/s": round(rate * size_mb, 1),
        "latency ms, median": round(1000 * float(np.median(latencies)), 2),
        "latency ms, 99 %": round(1000 * float(np.quantile(latencies, 0.99)), 2),
        "weights 64 MiB, s": round(weights_s, 2),
        "of that publishing": round(published_s, 2),
    }


def until(receiver: Receiver, mark: float) -> Any:
    """Yield (time, step) until the step whose time is the mark."""
    while True:
        for entry in receiver.receive(1000, 1.0):
            sent = float(entry.step["time"])
            if sent == mark:
                return
            yield sent, entry.step


LAB = multiprocessing.get_context("forkserver")
LAB.set_forkserver_preload(["torch", "rl_lab.distributed.transport.open"])

if __name__ == "__main__":
    main()
