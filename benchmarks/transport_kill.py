"""Actors and learner are killed with -9 while steps flow: each step reaches the learner's results once, in order.

Three actors send numbered steps over mutual TLS, through a proxy that cuts the network and slows it down; some of the
time their disk takes no more. The learner writes what it receives to a file and saves a checkpoint now and then: the
cursor and the file's size. After a kill the next learner goes back to the last checkpoint, as a training run would.

    python benchmarks/transport_kill.py
    python benchmarks/transport_kill.py --steps 3000 --kills 6 --name try
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import markdown_table, write_results
from workers.tcp_proxy import Proxy

from rl_lab.distributed.transport.certificates import create_authority, issue
from rl_lab.distributed.transport.interface import NoRoom
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender

ACTORS = ("robot-0", "robot-1", "robot-2")
PACE_S = 0.002  # of one step
DEADLINE_S = 1800.0
RECORD = np.dtype([("actor", "u4"), ("seq", "u4"), ("number", "u4")])
LEARNER_EVERY = 3  # every third kill is the learner's


def step(number: int) -> dict[str, Any]:
    """Return a step of about 2 kB that says its number."""
    return {"observations": torch.full((1, 512), number, dtype=torch.int32), "rewards": torch.tensor([float(number)])}


def act(block: dict[str, Any], total: int, seed: int) -> None:
    """Send the steps that are not recorded yet; at a random moment the disk is full for half a second."""
    rng, refusals = random.Random(seed), 0
    full_at = time.monotonic() + rng.uniform(0.2, 3.0)
    folder = Path(block["directory"])
    with open_sender(TransportConfig.read(block), step(0)) as sender:
        while (number := sender.status().next_seq) < total:
            now = time.monotonic()
            if full_at < now < full_at + 0.5:
                limit_files(newest_size(folder / "spool") + 1000)
            elif now >= full_at + 0.5:
                limit_files(resource.RLIM_INFINITY)
            try:
                sender.send(step(number), timeout_s=0.1)
            except NoRoom as error:
                refusals += 1
                with open(folder / "refusals", "a") as file:
                    file.write(f"{error}\n") if refusals == 1 else None
            time.sleep(PACE_S)
        limit_files(resource.RLIM_INFINITY)
        while not sender.flush(1.0):
            pass


def limit_files(num_bytes: int) -> None:
    """Let no file of this process grow beyond this."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def newest_size(folder: Path) -> int:
    """Return the size of a spool's newest segment."""
    paths = sorted(folder.glob("*.segment"))
    return paths[-1].stat().st_size if paths else 0


def learn(block: dict[str, Any], results: str) -> None:
    """Append what is received to a file for ever; the checkpoint is the cursor and the file's size."""
    checkpoint = Path(f"{results}.checkpoint")
    with open_receiver(TransportConfig.read(block), step(0)) as receiver, open(results, "ab") as file:
        if checkpoint.exists():
            log, following, size = checkpoint.read_text().split()
            receiver.set_state({"log": log, "next": int(following)})
            file.truncate(int(size))
        version = 0
        while True:
            received = receiver.receive(200, 0.2)
            rows = [(ACTORS.index(actor), seq, int(tree["rewards"])) for actor, _, seq, tree in received]
            wrong = [entry for entry in received if not bool((entry.step["observations"] == entry.seq).all())]
            if wrong:
                raise RuntimeError(f"a step changed: {wrong[0].actor} {wrong[0].seq}")
            file.write(np.array(rows, RECORD).tobytes())
            file.flush()
            if random.random() < 0.3:
                state = receiver.get_state()
                text = f"{state['log']} {state['next']} {os.fstat(file.fileno()).st_size}"
                Path(f"{results}.new").write_text(text)
                os.replace(f"{results}.new", checkpoint)
                receiver.release(state)
                version = receiver.publish({"w": torch.full((50_000,), float(version))})


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        row = run(Path(folder), args)
    write_results(args.name, [row], seeds=[args.seed])
    print(markdown_table([row]))
    if row["lost"] or row["duplicated"] or row["out of order"] or row["kills"] < args.kills:
        sys.exit("error: steps did not arrive as they were sent")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000, help="of all actors together")
    parser.add_argument("--kills", type=int, default=60, help="of actors and learner")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--name", default="transport_kill", help="of the result files")
    return parser.parse_args()


def run(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Start all, kill them one after another as the steps come in, and count what arrived."""
    rng, start, kills, cuts = random.Random(args.seed), time.monotonic(), Counter[str](), 0
    each = -(-args.steps // len(ACTORS))
    results, (learner, actors, proxy) = folder / "results", set_up(folder, rng)
    running = {"learner": launch(learn, learner, str(results))}
    running |= {name: launch(act, actors[name], each, rng.randrange(1 << 30)) for name in ACTORS}
    marks = sorted(rng.uniform(0.01, 0.9) * each * len(ACTORS) for _ in range(args.kills))
    while (done := arrived(results)) < each * len(ACTORS):
        if time.monotonic() - start > DEADLINE_S:
            break
        if kills.total() < len(marks) and done >= marks[kills.total()]:
            alive = [name for name in ACTORS if running[name].is_alive()]
            name = "learner" if kills.total() % LEARNER_EVERY == 0 or not alive else rng.choice(alive)
            time.sleep(rng.uniform(0.0, 0.2))
            if kill(running[name]):
                kills[name] += 1
            running[name] = launch(*again(name, learner, actors, results, each, rng))
            proxy.delay_s = rng.choice((0.0, 0.0, 0.02))
            if kills.total() % 5 == 0:
                proxy.cut(rng.uniform(0.2, 1.5))
                cuts += 1
        for name in ACTORS:
            if running[name].exitcode not in (None, 0):
                raise RuntimeError(f"{name} ended by itself with {running[name].exitcode}")
        if running["learner"].exitcode is not None:
            raise RuntimeError(f"the learner ended by itself with {running['learner'].exitcode}")
        time.sleep(0.02)
    wall_s = time.monotonic() - start
    time.sleep(2.0)  # for what should not come any more
    for process in running.values():
        kill(process)
    refused = sum(len((folder / name / "refusals").read_text().splitlines()) for name in ACTORS
                  if (folder / name / "refusals").exists())  # fmt: skip
    return {
        "actors": len(ACTORS),
        "steps": each * len(ACTORS),
        "kills": kills.total(),
        "of the learner": kills["learner"],
        "network cuts": cuts,
        "times a disk was full": refused,
        **judge(results, each),
        "wall_s": round(wall_s, 1),
    }


def set_up(folder: Path, rng: random.Random) -> tuple[dict[str, Any], dict[str, dict[str, Any]], Proxy]:
    """Return the blocks of the learner and the actors, and the proxy between them."""
    create_authority(folder / "certs", 1)
    issue(folder / "certs", "learner", "learner", 1)
    for name in ACTORS:
        issue(folder / "certs", name, "actor", 1)
    port = rng.randrange(20_000, 30_000)
    proxy = Proxy(("127.0.0.1", port))
    shared = {"kind": "network", "limits": {"hellos_per_s": 20.0}}
    learner = shared | {"address": f"127.0.0.1:{port}", "directory": str(folder / "learner")}
    learner["certificate"] = str(folder / "certs" / "learner.pem")
    actors = {
        name: shared
        | {"address": f"127.0.0.1:{proxy.port}", "directory": str(folder / name), "actor": name}
        | {"certificate": str(folder / "certs" / f"{name}.pem")}
        for name in ACTORS
    }
    return learner, actors, proxy


def again(name: str, learner: Any, actors: Any, results: Path, each: int, rng: random.Random) -> tuple[Any, ...]:
    """Return what to launch in the place of a process that was killed."""
    if name == "learner":
        return learn, learner, str(results)
    return act, actors[name], each, rng.randrange(1 << 30)


def launch(target: Any, *arguments: Any) -> Any:
    process = LAB.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def kill(process: Any) -> bool:
    """Kill a process and return whether it was alive."""
    was_alive = process.is_alive()
    process.kill()
    process.join()
    return was_alive


def arrived(results: Path) -> int:
    return results.stat().st_size // RECORD.itemsize if results.exists() else 0


def judge(results: Path, each: int) -> dict[str, int]:
    """Return how many steps are missing, there twice, or not in order."""
    rows = np.frombuffer(results.read_bytes(), RECORD)
    lost = duplicated = disordered = 0
    for number in range(len(ACTORS)):
        seqs = rows["seq"][rows["actor"] == number].astype(np.int64)
        lost += each - len(np.intersect1d(seqs, np.arange(each)))
        duplicated += len(seqs) - len(np.unique(seqs))
        disordered += int((np.diff(seqs) <= 0).sum())
    disordered += int((rows["seq"] != rows["number"]).sum())
    return {"lost": lost, "duplicated": duplicated, "out of order": disordered}


LAB = multiprocessing.get_context("forkserver")  # a process that has imported everything forks actors and learners
LAB.set_forkserver_preload(["torch", "rl_lab.distributed.transport.open"])

if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
