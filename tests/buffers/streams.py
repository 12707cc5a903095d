"""Random streams of env steps with all that can go wrong in them, and the plain list they are checked against."""

import numpy as np
import torch

from rl_lab.core import tree_map


class Source:
    """`lanes` environments whose observations show a picture (a stack of frames), a number of their own, or both.

    `reference[step][lane]` is the transition of the step-th vector step that was taken (not skipped): a dict of
    tensors, with `time`, which runs on over skipped steps.
    """

    def __init__(self, seed, lanes, *, stack=0, channels=1, size=4, kind="dict", end_share=0.15, still_share=0.2):
        self.rng = np.random.default_rng(seed)
        self.lanes, self.stack, self.kind = lanes, stack, kind
        self.frame_shape = (channels, size, size)
        self.end_share, self.still_share = end_share, still_share
        self.padding = self.rng.choice(["repeat", "zeros", "random"])
        self.time = 0
        self.reference = []
        self.is_first = np.ones(lanes, dtype=bool)
        self.frames = [self._first_stack() for _ in range(lanes)]
        self.codes = self.rng.integers(0, 1 << 20, lanes).astype(np.float32)

    def _frame(self):
        return self.rng.integers(0, 256, self.frame_shape, dtype=np.uint8)

    def _first_stack(self):
        if self.padding == "random":
            return [self._frame() for _ in range(max(1, self.stack))]
        fill = self._frame()
        other = fill if self.padding == "repeat" else np.zeros_like(fill)
        return [other] * (max(1, self.stack) - 1) + [fill]

    def _observation(self, lane):
        picture = np.concatenate(self.frames[lane])
        vector = np.array([self.codes[lane], lane, -self.codes[lane]], dtype=np.float32)
        if self.kind == "picture":
            return torch.from_numpy(picture)
        if self.kind == "vector":
            return torch.from_numpy(vector)
        return {"camera.rgb": torch.from_numpy(picture), "state": {"code": torch.from_numpy(vector)}}

    def _step(self):
        rows = []
        for lane in range(self.lanes):
            row = {"observations": self._observation(lane), "is_first": torch.tensor(bool(self.is_first[lane]))}
            last = self.frames[lane][-1]
            new = last if self.rng.random() < self.still_share else self._frame()
            self.frames[lane] = [*self.frames[lane][1:], new]
            self.codes[lane] += self.rng.integers(1, 1000)
            end = self.rng.random()
            row |= {
                "actions": torch.tensor(self.rng.normal(size=2), dtype=torch.float32),
                "rewards": torch.tensor(float(self.rng.integers(-8, 9))),
                "terminated": torch.tensor(end < self.end_share / 2),
                "truncated": torch.tensor(self.end_share / 2 <= end < self.end_share),
                "final_observations": self._observation(lane),
                "noise": torch.tensor(int(self.rng.integers(1 << 40))),  # what `act` added
                "infos": {"is_intervention": torch.tensor(float(self.rng.random() < 0.3))},
            }
            self.is_first[lane] = end < self.end_share
            if self.is_first[lane]:
                self.frames[lane] = self._first_stack()
                self.codes[lane] += 5000
            rows.append(row)
        return rows

    def skip(self, steps):
        """Let time pass without telling anybody: the stream has a cut here."""
        for _ in range(steps):
            self._step()
        self.time += steps

    def take(self, steps):
        """Return the next steps as a trajectory [steps, lanes, ...]."""
        rows = []
        for _ in range(steps):
            rows.append(self._step())
            self.reference.append([{**row, "time": self.time} for row in rows[-1]])
            self.time += 1
        by_step = [tree_map(lambda *leaves: torch.stack(leaves), *row) for row in rows]
        return tree_map(lambda *leaves: torch.stack(leaves), *by_step)


def pieces(rng, trajectory):
    """Yield a trajectory cut at random places."""
    total, begin = len(trajectory["rewards"]), 0
    while begin < total:
        end = min(total, begin + int(rng.integers(1, 8)))
        yield tree_map(lambda leaf, b=begin, e=end: leaf[b:e], trajectory)
        begin = end


def naive_transition(reference, step, lane, *, n_step, gamma):
    """Return what a batch must say of a step: a loop that stops at an end, at a cut and at the newest step."""
    rewards, k = 0.0, 0
    while True:
        row = reference[step + k][lane]
        rewards += gamma**k * float(row["rewards"])
        k += 1
        if row["terminated"] or row["truncated"] or k == n_step or step + k == len(reference):
            break
        if reference[step + k][lane]["time"] != row["time"] + 1:
            break
    first = reference[step][lane]
    return {
        "observations": first["observations"],
        "actions": first["actions"],
        "noise": first["noise"],
        "infos": first["infos"],
        "rewards": torch.tensor(rewards),
        "next_observations": row["final_observations"],
        "terminated": row["terminated"],
        "truncated": row["truncated"],
        "discounts": torch.tensor(gamma**k * (not row["terminated"])),
    }


def assert_equal(found, expected, at=""):
    """Compare trees of tensors bit for bit, types included."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), at
        for key in expected:
            assert_equal(found[key], expected[key], f"{at}.{key}")
    else:
        assert found.dtype == expected.dtype, at
        assert torch.equal(found, expected), f"{at}: {found} is not {expected}"
