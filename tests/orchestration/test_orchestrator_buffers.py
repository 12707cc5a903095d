"""A replay buffer in the loop: its segments in checkpoints, its numbers in the rows, and never a sample too early."""

import json
from uuid import uuid4

import pytest
import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import Buffer, Segment, hook
from rl_lab.environments.counting import ENV, EPISODE, STEP
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.hash_chain import UPDATE
from rl_lab.tracking.run_directory import RunDirectory
from tests.orchestration.parts import Counter
from tests.orchestration.test_orchestrator import NUM_ENVS, build, rows

SLOT = 4  # vector steps
PHASES = [
    {"name": "warmup", "duration_steps": 24, "hooks": [{"collect": 2}, "update_policy"]},
    {"name": "train", "duration_updates": 8, "hooks": [{"collect": 3}, "update_policy", "evaluate"]},
]


class SlotBuffer(Buffer):
    """Keeps all rewards, in slots of four steps; one that was written to gets a new key."""

    def __init__(self, needed=15, seed=3):
        self.needed, self.rng, self.asked = needed, torch.Generator().manual_seed(seed), 0
        self.rewards, self.keys = torch.zeros(0, NUM_ENVS), {}

    @property
    def size(self):
        return self.rewards.numel()

    def add(self, trajectory):
        first = len(self.rewards) // SLOT
        self.rewards = torch.cat((self.rewards, trajectory["rewards"]))
        for slot in range(first, -(-len(self.rewards) // SLOT)):
            self.keys.pop(slot, None)

    def is_ready(self):
        return self.size >= self.needed

    def sample(self):
        assert self.is_ready(), "sampled too early"
        index = torch.randint(len(self.rewards), (8,), generator=self.rng)
        return {"rewards": self.rewards[index]}

    def statistics(self):
        self.asked += 1
        return {"size": float(self.size), "total": float(self.rewards.sum())}

    def get_state(self):
        slots = self.rewards.split(SLOT) if self.size else ()
        parts = [Segment(self.keys.setdefault(i, uuid4().hex), part) for i, part in enumerate(slots)]
        return {"slots": parts, "rng": self.rng.get_state()}

    def set_state(self, state):
        self.keys = {slot: part.key for slot, part in enumerate(state["slots"])}
        self.rewards = torch.cat([self.rewards, *(part.tensor for part in state["slots"])])
        self.rng.set_state(state["rng"])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path, buffer = tmp_path_factory.mktemp("replay") / "run", SlotBuffer()
    orchestrator = build(
        path, phases=PHASES, buffers={"replay": buffer}, cadence=CheckpointCadence(steps=5, minutes=1e-9)
    )
    orchestrator.run()
    return path, buffer, orchestrator


def test_a_restore_from_every_checkpoint_ends_in_the_same_bits(unbroken, tmp_path):
    path, _, first = unbroken
    store, expected = first.checkpoints, fingerprint(RunDirectory.open(path))
    for entry in store.entries()[:-1:6]:
        target = tmp_path / entry.path.name
        again = build(target, seed=99, phases=PHASES, buffers={"replay": SlotBuffer(seed=99)})
        for name in ("metrics.jsonl", "events.jsonl"):
            (target / name).write_bytes((path / name).read_bytes())
        again.restore(store.load(entry.path).state)
        again.run()
        assert rows(target) == rows(path)
        assert fingerprint(RunDirectory.open(target)) == expected


def test_whole_slots_are_written_once(unbroken):
    path, buffer, _ = unbroken
    checkpoints = sorted((path / "checkpoints").glob("0*"))
    oldest, newest = buffer.keys[0], buffer.keys[max(buffer.keys)]
    holders = [checkpoint / f"segment-{oldest}" for checkpoint in checkpoints]
    present = [holder for holder in holders if holder.exists()]
    assert len(present) > 20
    assert len({holder.stat().st_ino for holder in present}) == 1
    assert sum((checkpoint / f"segment-{newest}").exists() for checkpoint in checkpoints) < 5


def test_rows_tell_how_buffers_stand(unbroken):
    path, buffer, _ = unbroken
    parsed = [json.loads(line) for line in rows(path).splitlines()]
    means = [row for row in parsed if "eval/return" not in row]
    assert len(means) > 2
    assert [row["buffer/replay/size"] for row in means] == [row["step"] for row in means]
    assert means[-1]["buffer/replay/total"] == float(buffer.rewards.sum())
    assert not any(key.startswith("buffer/") for row in parsed if "eval/return" in row for key in row)
    assert buffer.asked == len(means)  # only when a row is written


def test_no_update_samples_before_the_buffer_is_ready(tmp_path):
    """Every cycle of the warm-up brings six env steps; with 15 needed the first two updates are skipped."""
    orchestrator = build(tmp_path / "run", phases=PHASES[:1], buffers={"replay": SlotBuffer()}, workflow=Counter())
    orchestrator.run()
    assert (orchestrator.counters.env_steps, orchestrator.counters.updates) == (24, 2)


class Patient(Counter):
    """Updates at every third call; at the others there is nothing to do yet."""

    @hook
    def update_policy(self, batch, *, phase):
        metrics = super().update_policy(batch, phase=phase)
        return metrics if len(self.calls) % 3 == 0 else None


def test_an_update_with_nothing_to_do_yet_is_not_counted(tmp_path):
    phases = [{"name": "p", "duration_updates": 2, "hooks": [{"collect": 2}, "update_policy"]}]
    buffers, path = {"replay": SlotBuffer(needed=1)}, tmp_path / "run"
    orchestrator = build(path, phases=phases, buffers=buffers, workflow=Patient())
    orchestrator.run()
    assert (orchestrator.counters.updates, orchestrator.counters.cycles) == (2, 6)
    assert orchestrator.workflow.calls == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert (path / "updates.chain").stat().st_size == 2 * UPDATE.size


class Frugal(Counter):
    def num_rows(self, hook):
        return {"update_policy": 3}[hook]


class Asked(SlotBuffer):
    def draw(self, num_rows=None):
        return {"rewards": torch.full((num_rows, 1), float(num_rows))}


def test_a_buffer_hears_how_many_rows_an_update_reads(tmp_path):
    buffers = {"replay": Asked(needed=1)}
    orchestrator = build(tmp_path / "run", phases=PHASES[:1], buffers=buffers, workflow=Frugal())
    orchestrator.run()  # an update of none would raise
    assert orchestrator.counters.updates == 4


class Recording(ReplayBuffer):
    def __init__(self):
        super().__init__(1_000, batch_size=5, num_envs=NUM_ENVS)
        self.added = []

    def add(self, trajectory):
        super().add(trajectory)
        self.added.append(trajectory)


def test_environment_carry_and_buffer_go_on_over_phases(tmp_path):
    """Seed, pretrain, train: the steps are those of one phase that collects them all."""
    seed = {"name": "seed", "duration_steps": 24, "hooks": [{"collect": 4}]}
    pretrain = {"name": "pretrain", "duration_updates": 7, "hooks": ["update_policy"]}
    train = {"name": "train", "duration_steps": 24, "hooks": [{"collect": 4}, "update_policy"]}
    recorded = []
    for name, phases in (("one", [{**train, "duration_steps": 48}]), ("three", [seed, pretrain, train])):
        buffer = Recording()
        orchestrator = build(tmp_path / name, phases=phases, buffers={"replay": buffer}, cadence=CheckpointCadence())
        orchestrator.run()
        added = {key: torch.cat([part[key] for part in buffer.added]) for key in ("observations", "count")}
        recorded.append((added["count"], added["observations"][..., [ENV, EPISODE, STEP]]))
        assert buffer.size == 48
    assert len(orchestrator.workflow.calls) == 7 + 2
    for one, three in zip(*recorded, strict=True):  # what the carry counts, and what the environment does
        assert torch.equal(one, three)
