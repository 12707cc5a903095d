"""Batches that are taken in parts: every workflow that can comes to what the whole batch comes to."""

import copy

import pytest
import torch

from rl_lab.components.accumulation import parts_of
from rl_lab.components.action_values import ValueRange
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.components.perception import CARRY
from rl_lab.components.recurrent import GRU
from rl_lab.core import Update, tree_leaves
from rl_lab.workflows.sac import SAC
from tests.workflows.off_policy import networks, phase, random_batch, start
from tests.workflows.test_behavior_cloning import CHOICES, make_bc
from tests.workflows.test_behavior_cloning import PHASE as CLONE
from tests.workflows.test_diffusion_policy import demonstrations, make_policy
from tests.workflows.test_diffusion_policy import phase as imitate
from tests.workflows.test_dqn import ATOMS, make_dqn
from tests.workflows.test_dqn import SPEC as CHOICE
from tests.workflows.test_reward_classifier import CAMERA, frames, make
from tests.workflows.test_reward_classifier import PHASE as FIT
from tests.workflows.test_rlpd import ARM, HANDS, arm_networks, make_rlpd
from tests.workflows.test_sac import DISCRETE
from tests.workflows.test_td3 import SPEC as BOX
from tests.workflows.test_td3 import make_td3

torch.set_num_threads(1)


def weighted(spec, size=32):
    """A batch whose rows weigh differently, some nothing at all."""
    weights = torch.linspace(0.1, 1.0, size)
    weights[3:9] = 0.0
    return random_batch(spec, size) | {"weights": weights}


def sequences(spec, size=7, length=5):
    """Sequences [B, T, ...] of arrivals; episodes begin within some of them."""
    flat = random_batch(spec, size * length)
    batch = {key: flat[key].view(size, length, *flat[key].shape[1:]) for key in ("observations", "actions", "rewards")}
    is_first = torch.zeros(size, length, dtype=torch.bool)
    is_first[2, 3] = is_first[5, 1] = is_first[5, 2] = True
    carry = torch.randn(size, length, 8, generator=torch.Generator().manual_seed(4))
    return batch | {"is_first": is_first, "is_terminal": torch.zeros_like(is_first), CARRY: carry}


def recurrent(spec):
    return lambda: {"actor": MLP(8, (16,), "relu"), "critic": EnsembleMLP(8, (16,), 2), "memory": GRU(3, 8)}


def make_discrete(components=None, **options):
    return start(SAC(**options), DISCRETE, components or (lambda: networks(DISCRETE)))


def dqn_memory():
    return {"critic": MLP(8, (16,), "relu"), "memory": GRU(3, 8)}


def bc_memory():
    return {"actor": MLP(8, (16,), "relu"), "memory": GRU(3, 8)}


STATISTICS = {"normalize_observations": True}
CASES = {
    "dqn": (make_dqn, {"double": True, **STATISTICS}, weighted(CHOICE), phase()),
    "c51 and munchausen": (
        make_dqn,
        {"munchausen": True, "distribution": "categorical", "value_range": ATOMS},
        random_batch(CHOICE),
        phase(),
    ),
    "recurrent dqn": (make_dqn, {"components": dqn_memory, **STATISTICS}, sequences(CHOICE), phase()),
    "td3": (make_td3, {"target_noise": 0.0, "policy_delay": 1, **STATISTICS}, weighted(BOX), phase()),
    "distributional td3": (
        make_td3,
        {"target_noise": 0.0, "policy_delay": 1, "value_range": ValueRange(-4.0, 4.0, 9)},
        random_batch(BOX),
        phase(),
    ),
    "discrete sac": (make_discrete, STATISTICS, weighted(DISCRETE), phase()),
    "recurrent sac": (make_discrete, {"components": recurrent(DISCRETE)}, sequences(DISCRETE), phase()),
    "behaviour cloning": (make_bc, {"numbers": "squared", **STATISTICS}, random_batch(BOX), CLONE),
    "choices that weigh": (lambda **options: make_bc(CHOICES, **options), {}, weighted(CHOICES), CLONE),
    "a memory that clones": (
        lambda **options: make_bc(BOX, bc_memory, **options),
        STATISTICS,
        {key: sequences(BOX)[key] for key in ("observations", "actions", "is_first", CARRY)},
        CLONE,
    ),
    "reward classifier": (make, {}, frames(), FIT),
    "a camera's classifier": (lambda **options: make(CAMERA, **options), {}, frames(CAMERA), FIT),
}


def updated(kind, options, batch, now, accumulation):
    """Return a workflow after three updates, and what the last one reported."""
    workflow = kind(**options, accumulation=accumulation)
    (update,) = [getattr(workflow, name) for name, info in workflow.hooks().items() if info.is_update]
    for _ in range(3):
        found = update(batch, phase=now)
    return workflow, found


def compare(one, other):
    for (name, a), (_, b) in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if name.endswith("maps.bias"):  # a softmax over places cancels it: its gradient is rounding
            continue
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_parts_come_to_what_the_whole_comes_to(case):
    kind, options, batch, now = CASES[case]
    whole, expected = updated(kind, options, batch, now, 1)
    parted, found = updated(kind, options, batch, now, 3)
    assert len({part["actions" if "actions" in batch else "labels"].shape[0] for part in parts_of(batch, 3)}) == 2
    compare(whole.state_dict(), parted.state_dict())
    if isinstance(expected, Update):  # and the priorities lie in the order of the rows
        compare(expected.write_back, found.write_back)
        expected, found = expected.metrics, found.metrics
    compare(expected, found)
    assert parted.get_state()["accumulation"] == 3


def test_the_hands_learn_from_the_whole_batch(monkeypatch):
    """What is drawn differs by parts, so nothing is drawn: the target critics are asked about the mode."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    options = {"hands": HANDS, "components": arm_networks, "subset_size": None, "critic_to_actor_ratio": 1}
    batch = random_batch(ARM)
    batch["actions"][:, [1, 3]] = batch["actions"][:, [1, 3]].sign()
    kind = lambda **given: make_rlpd(ARM, **given)  # noqa: E731
    whole, expected = updated(kind, options, batch, phase(), 1)
    parted, found = updated(kind, options, batch, phase(), 5)
    compare(whole.state_dict(), parted.state_dict())
    compare(expected, found)
    assert found["grasp_loss"] > 0.0


@pytest.mark.parametrize("mask", [False, True])
def test_chunks_in_parts_against_a_loop(mask):
    """The diffusion policy draws levels and noise for each part, so the loop does too."""
    buffer = demonstrations()
    workflow = make_policy(buffer=buffer, accumulation=3, mask_padding=mask, warmup_updates=0, average_power=0.0)
    plain = make_policy(buffer=demonstrations(), mask_padding=mask, warmup_updates=0)
    batch = buffer.sample()
    plain._fit_ranges(imitate())
    real = (~batch["is_pad"]).float()
    torch.manual_seed(2)
    total = 0.0
    for rows in (slice(0, 6), slice(6, 11), slice(11, 16)):
        seen = plain.observation_range(batch["observations"][rows])
        loss = plain.policy.loss(seen, plain.action_range(batch["actions"][rows]), real[rows] if mask else None)
        loss = loss * (real[rows].sum() / real.sum() if mask else (rows.stop - rows.start) / 16)
        loss.backward()  # adds up
        total += loss.item()
    plain.learner.optimizer.step()
    torch.manual_seed(2)
    metrics = workflow.update_policy(batch, phase=imitate())
    assert metrics["loss"].item() == pytest.approx(total, rel=1e-4)
    compare(plain.policy.state_dict(), workflow.policy.state_dict())


def test_an_update_that_waits_for_its_turn_is_split_as_well():
    """The first update moves the critics alone; what comes to be split is also the one that moves the policy."""
    options, batch = {"target_noise": 0.0, "policy_delay": 2}, random_batch(BOX)
    split, always = make_td3(**options), make_td3(**options, accumulation=2)
    assert split.split_further() is None  # nothing was learned from yet
    for workflow in (split, always):
        workflow.update_agent(batch, phase=phase())
    assert split.split_further() == 2
    always.load_state_dict(split.state_dict())
    always.critics.optimizer.load_state_dict(copy.deepcopy(split.critics.optimizer.state_dict()))
    for _ in range(3):
        found, expected = (workflow.update_agent(batch, phase=phase()) for workflow in (split, always))
        compare(found, expected)
    compare(split.state_dict(), always.state_dict())


def test_parts_are_all_rows_once():
    batch = {"a": torch.arange(11), "b": {"c": torch.arange(11) * 2, "none": None}}
    parts = parts_of(batch, 4)
    assert [len(part["a"]) for part in parts] == [3, 3, 3, 2]
    assert torch.equal(torch.cat([part["a"] for part in parts]), batch["a"])
    assert torch.equal(torch.cat([part["b"]["c"] for part in parts]), batch["b"]["c"])
    assert parts_of(batch, 1)[0] is batch
    assert [len(part["a"]) for part in parts_of(batch, 20)] == [1] * 11  # none is empty: its loss would be no number
