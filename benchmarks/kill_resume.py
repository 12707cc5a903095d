"""Kill -9 at random moments, resume each time: the run ends bit for bit where an undisturbed one does.

One run is left alone. A second one, in another directory, is killed again and again: while it starts or restores,
while it trains, and while it writes a checkpoint (the moment `checkpoints/.tmp-*` appears). Each time `lab resume` goes
on. In the end every hash of `lab runs fingerprint` and every byte of `metrics.jsonl` must be equal; the exit code says
whether they are.

    python benchmarks/kill_resume.py                                                 # 30 kills each, MLP and recurrent
    python benchmarks/kill_resume.py --experiment ppo_cartpole --kills 5 --overrides training.total_timesteps=20_000
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import LAB, ROOT, markdown_table, run, run_json, write_results

MOMENTS = ("start", "training", "checkpoint")  # what a kill aims at
DEADLINE_S = 120.0  # a process that shows nothing for so long hangs


class Victim:
    """A run in `directory` that is started, or resumed, and killed."""

    def __init__(self, directory: Path, train: list[str], rng: random.Random) -> None:
        self.directory, self._train, self._rng = directory, train, rng
        self.checkpoints = directory / "checkpoints"
        self.aimed, self.hit = Counter[str](), Counter[str]()

    def start(self) -> subprocess.Popen[bytes]:
        """Resume what is there; a run killed before it had written its config starts anew."""
        command = [*LAB, "resume", str(self.directory), "--json"]
        if not (self.directory / "config.yaml").exists():
            shutil.rmtree(self.directory, ignore_errors=True)
            command = self._train
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill_once(self, moment: str, startup_s: float, delay_s: float) -> bool:
        """Start, wait for the moment and kill. Returns False when the run came to its end before."""
        before, old_leftovers = self._touched(), self._leftovers()
        process = self.start()
        if moment == "start":
            is_alive = self._wait(process, seconds(self._rng.uniform(0.1, startup_s)))
        else:
            is_alive = self._wait(process, lambda: self._touched() != before)  # it has begun, or is restored
            is_alive = is_alive and self._wait(process, seconds(self._rng.uniform(0, delay_s)))
            if moment == "checkpoint":
                is_alive = is_alive and self._wait(process, lambda: bool(self._leftovers()))
        process.kill()
        is_alive = process.wait() < 0 and is_alive
        if is_alive:
            self.aimed[moment] += 1
            self.hit["checkpoint write" if self._leftovers() - old_leftovers else "elsewhere"] += 1
        return is_alive

    def finish(self) -> None:
        """Let the run come to its end."""
        process = self.start()
        _, errors = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the last resume failed: {errors.decode()[-1000:]}")

    def env_steps(self) -> int:
        """Return how far the newest whole checkpoint is."""
        manifests = sorted(self.checkpoints.glob("[0-9]*/MANIFEST.json"))
        return json.loads(manifests[-1].read_text())["counters"]["env_steps"] if manifests else 0

    def _touched(self) -> int:
        """Return when the run last told of an event: it does so when it begins and when it is restored."""
        file = self.directory / "events.jsonl"
        return file.stat().st_mtime_ns if file.exists() else 0

    def _leftovers(self) -> set[str]:
        """Return what is being written; after a kill: what was."""
        return {path.name for path in self.checkpoints.glob(".tmp-*")}

    def _wait(self, process: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> bool:
        """Wait until it is time. Returns False when the process ended before; one that failed raises."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_time():
            if process.poll() is not None:
                if process.returncode != 0:
                    assert process.stderr is not None
                    raise RuntimeError(f"a resumed run failed: {process.stderr.read().decode()[-1000:]}")
                return False
            if time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"the run showed no progress for {DEADLINE_S:.0f} s")
            time.sleep(0.0002)
        return True


def seconds(duration: float) -> Callable[[], bool]:
    """Return a function that says whether the duration is over."""
    end = time.monotonic() + duration
    return lambda: time.monotonic() >= end


def main() -> None:
    args = parse_arguments()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for experiment in args.experiment:
            rows.append(compare(experiment, Path(args.keep or folder), args))
            print(json.dumps(rows[-1], indent=1), flush=True)
            write_results(args.name, rows, seeds=[args.seed], overrides=args.overrides)
    print(markdown_table(rows))
    if not all(row["equal"] and row["kills"] >= args.kills for row in rows):
        sys.exit("error: not every run was equal after all its kills")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", nargs="+", default=["ppo_cartpole", "ppo_cartpole_recurrent"])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--checkpoint-frequency", type=int, default=1000, help="env steps")
    parser.add_argument("--seed", type=int, default=1, help="of the run and of the moments")
    parser.add_argument("--overrides", nargs="*", default=[], help="for both runs, such as budget=tiny")
    parser.add_argument("--keep", metavar="DIR", help="leave the runs there")
    parser.add_argument("--name", default="kill_resume", help="of the result files")
    return parser.parse_args()


def compare(experiment: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run the experiment twice, once undisturbed, and return what became of the second."""
    fixed = [f"experiment.seed={args.seed}", "experiment.num_threads=1"]
    fixed += [f"training.checkpoint_frequency={args.checkpoint_frequency}", *args.overrides]
    train = [*LAB, "train", f"+experiment={experiment}", *fixed, "--json", "--run-dir"]
    reference, killed = folder / f"{experiment}_reference", folder / f"{experiment}_killed"
    for directory in (reference, killed):
        shutil.rmtree(directory, ignore_errors=True)
    wall_s = run([*train, str(reference)]).wall_s
    victim = Victim(killed, [*train, str(killed)], random.Random(args.seed))
    kill_all(victim, args.kills, wall_s, reference)
    victim.finish()
    streams = differences(reference, killed)
    return {
        "experiment": experiment,
        "env_steps": victim.env_steps(),
        "kills": victim.hit.total(),
        **{f"aimed at {moment}": victim.aimed[moment] for moment in MOMENTS},
        "hit a checkpoint write": victim.hit["checkpoint write"],
        **{name: "equal" if is_equal else "DIFFERENT" for name, is_equal in streams.items()},
        "equal": all(streams.values()),
    }


def kill_all(victim: Victim, kills: int, wall_s: float, reference: Path) -> None:
    """Spread the kills over the run: the delays are drawn from what an undisturbed run took."""
    training_s = last_line(reference / "perf.jsonl")["perf/elapsed_s"]
    total = last_line(reference / "metrics.jsonl")["step"]
    moments = [MOMENTS[index % len(MOMENTS)] for index in range(kills)]
    random.Random(kills).shuffle(moments)
    for count, moment in enumerate(moments):
        left_s = training_s * (1 - victim.env_steps() / total)
        to_come = len(moments[count:]) - moments[count:].count("start")  # one at the start costs no time of training
        is_alive = victim.kill_once(moment, max(wall_s - training_s, 0.5), 1.4 * left_s / max(to_come, 1))
        if not is_alive:
            print(f"the run ended after {count} kills: give it more env steps", file=sys.stderr)
            return
        print(f"kill {count + 1}: at {moment}, newest checkpoint at {victim.env_steps()} env steps", flush=True)


def last_line(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text().splitlines()[-1])


def differences(reference: Path, killed: Path) -> dict[str, bool]:
    """Return for every stream whether it is the same in both runs."""
    hashes = [run_json([*LAB, "runs", "fingerprint", str(path), "--json"]) for path in (reference, killed)]
    streams = {name: hashes[0][name] == hashes[1][name] for name in hashes[0]}
    files = [(path / "metrics.jsonl").read_bytes() for path in (reference, killed)]
    return streams | {"metrics.jsonl": files[0] == files[1]}


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
