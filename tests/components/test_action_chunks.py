"""Chunks of a buffer, and their execution against a loop that follows every environment by itself."""

import pytest
import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.components.action_chunks import RecedingHorizon, read_chunks
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Named, Optimizers, RngStreams, WorkflowContext, tree_map
from tests.buffers.coded_stream import stream

DICT = {"code": Box((2,)), "picture": Box((1, 2, 2), torch.uint8)}


def context_of(spec, static=lambda function: function):
    empty = {name: Named(name, {}) for name in ("components", "controllers", "buffers")}
    device = torch.device("cpu")
    return WorkflowContext({}, device, spec, 1, optimizers=Optimizers({}), rng=RngStreams(0), static=static, **empty)


def planner(sizes, chunk):
    """A plan tells what was seen when it was made, and which of its actions each one is."""

    def plan(seen):
        sizes.append(len(seen["code"]))
        codes = torch.cat([seen["code"].flatten(1), seen["picture"].flatten(1)[:, ::4].float()], 1)  # [n, 3 history]
        count = torch.arange(chunk).view(1, chunk, 1).expand(len(codes), chunk, 1)
        return torch.cat([codes[:, None].expand(-1, chunk, -1), count], -1)

    return plan


@pytest.mark.parametrize(("history", "num_actions", "chunk"), [(1, 1, 1), (2, 3, 4), (3, 4, 4)])
def test_every_environment_follows_its_own_plans_from_its_own_past(history, num_actions, chunk):
    num_envs, steps, sizes = 5, 40, []
    spec = EnvSpec("e", DICT, Box((3 * history + 1,)))
    horizon = RecedingHorizon(planner(sizes, chunk), history=history, num_actions=num_actions, context=context_of(spec))
    generator = torch.Generator().manual_seed(history)
    is_first = torch.rand(steps, num_envs, generator=generator) < 0.15
    is_first[0] = True
    codes = torch.randn(steps, num_envs, 2, generator=generator)
    pictures = torch.randint(0, 256, (steps, num_envs, 1, 2, 2), dtype=torch.uint8, generator=generator)
    carry, found = horizon.initial_carry(num_envs), []
    for t in range(steps):
        actions, carry = horizon({"code": codes[t], "picture": pictures[t]}, carry, is_first[t])
        found.append(actions)
    due = torch.zeros(steps, num_envs, dtype=torch.bool)
    for env in range(num_envs):
        begin, planned = 0, 0
        for t in range(steps):
            if is_first[t, env]:
                begin = planned = t
            if (t - planned) % num_actions == 0:
                planned, due[t, env] = t, True
            past = [max(begin, planned - k) for k in range(history - 1, -1, -1)]
            wanted = [codes[k, env] for k in past] + [pictures[k, env, 0, 0, :1].float() for k in past]
            assert torch.equal(found[t][env], torch.cat([*wanted, torch.tensor([float(t - planned)])]))
    counts = [int(count) for count in due.sum(1) if count]
    assert sizes == [min(num_envs, 2 ** (count - 1).bit_length()) for count in counts]


def test_lengths_of_executed_chunks_are_drawn_for_each_plan():
    num_envs, steps, chunk = 4, 1200, 6
    spec = EnvSpec("e", DICT, Box((4,)))
    horizon = RecedingHorizon(planner([], chunk), history=1, num_actions=5, least_actions=2, context=context_of(spec))
    torch.manual_seed(0)
    carry, lengths = horizon.initial_carry(num_envs), []
    picture, planned = torch.zeros(num_envs, 1, 2, 2, dtype=torch.uint8), [0] * num_envs
    for t in range(steps):
        code = torch.full((num_envs, 2), float(t))
        actions, carry = horizon(
            {"code": code, "picture": picture}, carry, torch.tensor([t == 0] * num_envs), varied=True
        )
        for env, (seen, _, _, count) in enumerate(actions.tolist()):
            if seen == t and t > 0:  # a new plan: the one before it was followed so far
                lengths.append(t - planned[env])
            if seen == t:
                planned[env] = t
            assert (seen, count) == (planned[env], t - planned[env])
    assert set(lengths) == {2, 3, 4, 5}
    for length in (2, 3, 4, 5):
        assert lengths.count(length) / len(lengths) == pytest.approx(0.25, abs=0.05)


def test_a_plan_that_was_not_followed_is_over():
    spec = EnvSpec("e", DICT, Box((4,)))
    horizon = RecedingHorizon(planner([], 5), history=1, num_actions=5, least_actions=4, context=context_of(spec))
    obs = {"code": torch.zeros(3, 2), "picture": torch.zeros(3, 1, 2, 2, dtype=torch.uint8)}
    torch.manual_seed(1)
    said, carry = horizon(obs, horizon.initial_carry(3), torch.ones(3, dtype=torch.bool), varied=True)
    done = said.clone()
    done[2, 3] += 1.0
    left = carry["left"].tolist()
    assert horizon.interrupted(carry, said)["left"].tolist() == left
    carry = horizon.interrupted(carry, done)
    assert carry["left"].tolist() == [*left[:2], 0]
    said, carry = horizon({**obs, "code": torch.ones(3, 2)}, carry, torch.zeros(3, dtype=torch.bool))
    assert said[:, 0].tolist() == [0.0, 0.0, 1.0]  # what was seen when the plan was made
    assert said[:, 3].tolist() == [1.0, 1.0, 0.0]


def test_each_size_of_a_group_is_one_static_function():
    made = []
    spec = EnvSpec("e", DICT, Box((4,)))
    context = context_of(spec, lambda function: made.append(1) or function)
    horizon = RecedingHorizon(planner([], 9), history=1, num_actions=9, context=context)
    carry = horizon.initial_carry(6)
    obs = {"code": torch.zeros(6, 2), "picture": torch.zeros(6, 1, 2, 2, dtype=torch.uint8)}
    for first in (6, 1, 2, 3, 4, 6, 1):
        _, carry = horizon(obs, carry, torch.arange(6) < first)
    assert len(made) == 4  # groups of 1, 2, 4 and 6


def test_a_buffer_gives_chunks_and_others_are_one_line():
    spec = EnvSpec("e", Box((2,)), Discrete(5))
    buffer = EpisodeBuffer(100, 7, chunk_length=4, history=2, seed=1)
    buffer.add(stream(60, 1, 2))
    batch = buffer.sample()
    chunks = read_chunks(batch, spec, history=2, chunk_length=4)
    assert {key: tuple(leaf.shape) for key, leaf in chunks.items()} == {
        "observations": (7, 2, 2), "actions": (7, 4), "is_pad": (7, 4)
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^the workflow learns chunks of 8 actions, its buffer has chunk_length=4$"):
        read_chunks(batch, spec, history=2, chunk_length=8)
    with pytest.raises(ConfigError, match=r"^the workflow reads 3 observations at once, its buffer has history=2$"):
        read_chunks(batch, spec, history=3, chunk_length=4)
    plain = EpisodeBuffer(100, 7, seed=1)
    plain.add(stream(60, 1, 2))
    with pytest.raises(ConfigError, match=r"has chunk_length=None$"):
        read_chunks(plain.sample(), spec, history=1, chunk_length=1)
    with pytest.raises(ConfigError, match=r"has history=None$"):
        read_chunks(plain.sample() | {"is_pad": torch.zeros(7, 1)}, spec, history=1, chunk_length=1)


def test_limits_are_those_of_the_steps_that_are_held():
    buffer = EpisodeBuffer(40, 4, seed=1)
    trajectory = stream(90, 1, 2)
    trajectory["observations"] = {
        "code": trajectory["observations"],
        "picture": torch.zeros(90, 1, 1, 2, 2, dtype=torch.uint8),
    }
    trajectory["final_observations"] = tree_map(torch.zeros_like, trajectory["observations"])
    trajectory["actions"] = trajectory["actions"].float()[..., None] + 3.0  # never 0, as the rows of ends are
    buffer.add(trajectory)
    seen = {float(code) for _ in range(200) for code in buffer.sample()["observations"]["code"][:, 0]}
    assert len(seen) == buffer.size
    low, high = buffer.limits("observations")
    assert low["picture"] is None
    assert low["code"].tolist() == [min(seen), -max(seen)]
    assert high["code"].tolist() == [max(seen), -min(seen)]
    assert buffer.limits("actions")[0].item() >= 3.0
