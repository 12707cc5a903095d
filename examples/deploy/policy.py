"""Runs an exported policy with ONNX Runtime: no torch, nothing of the lab.

    python examples/deploy/policy.py DIRECTORY

verifies the export in DIRECTORY and prints what the policy needs and how long a call takes. In a robot's program:

    policy = Policy("DIRECTORY")
    policy.reset()                                  # at the start of every episode
    action = policy.act({"observation": numbers})   # once per control step
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


class Policy:
    """Observations -> action; the recurrent state and whether an episode begins are kept here."""

    def __init__(self, directory: str | Path, seed: int = 0) -> None:
        folder = Path(directory)
        self.about = json.loads((folder / "policy.json").read_text())
        path = folder / self.about["files"]["onnx"]["file"]
        if hashlib.sha256(path.read_bytes()).hexdigest() != self.about["files"]["onnx"]["sha256"]:
            raise ValueError(f"{path} is not the file that policy.json tells about")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # small networks are slower on several
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {port["name"]: port for port in self.about["inputs"]}
        self.outputs = [port["name"] for port in self.about["outputs"]]
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode: the state is forgotten."""
        self.is_first = True
        self.state = {n: np.zeros(p["shape"], np.float32) for n, p in self.inputs.items() if p["kind"] == "state"}

    def act(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the actions by name, for observations by name."""
        given = {name: self._input(name, observation) for name in self.inputs}
        found = dict(zip(self.outputs, self.session.run(self.outputs, given), strict=True))
        self.state = {name: found[f"next_{name}"] for name in self.state}
        self.is_first = False
        return {name: value[0] for name, value in found.items() if name.startswith("action")}

    def _input(self, name: str, observation: dict[str, np.ndarray]) -> np.ndarray:
        port = self.inputs[name]
        if port["kind"] == "state":
            return self.state[name]
        if port["kind"] == "is_first":
            return np.array([self.is_first], np.float32)
        if port["kind"] == "noise":
            draws = {"uniform": self.rng.random, "exponential": self.rng.standard_exponential}
            draw = draws.get(port["distribution"], self.rng.standard_normal)
            return draw(size=port["shape"]).astype(np.float32)
        if name not in observation:
            raise KeyError(f"the policy reads {name!r} of shape {port['shape'][1:]}")
        return np.asarray(observation[name], np.float32).reshape(port["shape"])

    def verify(self, directory: str | Path) -> float:
        """Return how far the answers to the golden calls are from those of the lab."""
        golden = np.load(Path(directory) / self.about["golden"]["file"], allow_pickle=False)
        worst = 0.0
        for index in range(len(golden[f"outputs/{self.outputs[0]}"])):
            given = {name: golden[f"inputs/{name}"][index] for name in self.inputs}
            for name, value in zip(self.outputs, self.session.run(self.outputs, given), strict=True):
                wanted = golden[f"outputs/{name}"][index].astype(np.float64)
                worst = max(worst, float(np.max(np.abs(value - wanted) / np.maximum(1.0, np.abs(wanted)))))
        return worst


def main(directory: str) -> None:
    """Verify an export and say what it needs."""
    policy = Policy(directory)
    difference = policy.verify(directory)
    if difference >= policy.about["tolerance"]:
        sys.exit(f"error: golden outputs differ by {difference:.1e}")
    example = {n: np.zeros(p["shape"]) for n, p in policy.inputs.items() if p["kind"] == "observation"}
    policy.act(example)
    started = time.perf_counter()
    for _ in range(100):
        policy.act(example)
    each = (time.perf_counter() - started) / 100
    print(f"{policy.about['workflow']} for {policy.about['environment']['id']}, golden calls off by {difference:.1e}")
    print(f"reads {', '.join(policy.inputs)}; writes {', '.join(policy.outputs)}; {1e6 * each:.0f} us a call")


if __name__ == "__main__":
    main(sys.argv[1])
