import struct
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.core import Counters
from rl_lab.tracking import hash_chain
from rl_lab.tracking.chain_comparison import UPDATES, compare_steps, compare_updates, last_chained_step
from rl_lab.tracking.hash_chain import HashChain
from rl_lab.tracking.run_directory import RunDirectory

NUM_ENVS = 2


def make(path):
    return RunDirectory.create(path.parent, "t", 0, path)


def trajectory(steps, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, NUM_ENVS)
    return {
        "observations": {"place": torch.randn(*shape, 3, generator=generator), "text": None},
        "actions": torch.randint(4, shape, generator=generator),
        "rewards": torch.randn(shape, generator=generator),
        "terminated": torch.rand(shape, generator=generator) < 0.3,
        "truncated": torch.zeros(shape, dtype=torch.bool),
    }


def part(whole, start, stop):
    return {
        key: {"place": value["place"][start:stop], "text": None} if key == "observations" else value[start:stop]
        for key, value in whole.items()
    }


def write(run, pieces, *, updates=(), extent="all"):
    """Write a chain of these pieces of a trajectory, and of a module that changes with every update."""
    chain, env_steps, module = HashChain(run, extent), 0, nn.Linear(2, 2)
    chain.open()
    for piece in pieces:
        steps = len(piece["rewards"]) * NUM_ENVS
        chain.add_steps(piece, env_steps, steps)
        env_steps += steps
    for number, value in enumerate(updates, 1):
        nn.init.constant_(module.weight, value)
        nn.init.zeros_(module.bias)
        chain.add_update(module, Counters(env_steps=env_steps, updates=number), is_long=True)
    chain.close()
    return run


def files(run):
    return [path.read_bytes() if path.exists() else None for path in (run.step_chain_file, run.update_chain_file)]


def test_the_links_of_steps_by_hand(tmp_path):
    whole = trajectory(3)
    run = write(make(tmp_path / "run"), [whole])
    keys = (("observations",), ("actions",), ("rewards", "terminated", "truncated"))
    links, expected = [bytes(16)] * 3, b""
    for step in range(3):
        for stream, names in enumerate(keys):
            leaves = [whole[name]["place"] if name == "observations" else whole[name] for name in names]
            new = links[stream] + b"".join(leaf[step].numpy().tobytes() for leaf in leaves)
            links[stream] = blake2b(new, digest_size=16).digest()
        expected += struct.pack("<Q", (step + 1) * NUM_ENVS) + b"".join(link[:4] for link in links)
    assert files(run) == [expected, b""]
    assert last_chained_step(run.step_chain_file) == 6


def test_the_links_of_updates_by_hand(tmp_path):
    run = write(make(tmp_path / "run"), [], updates=[1.0, 2.0])
    link, expected = bytes(16), b""
    for number in (1, 2):
        word = int(np.float32(number).view(np.uint32))
        weights = [(2 * place * 0x9E3779B1 + 1) % 2**32 for place in (1, 2, 3, 4)]
        mixed = word * sum(weights) % 2**32  # of four weights; the biases are zero
        link = blake2b(link + mixed.to_bytes(4, "little"), digest_size=16).digest()
        expected += struct.pack("<QQ", number, 0) + link[:4]
    assert files(run) == [b"", expected]


def test_of_many_short_updates_every_eighth_has_a_link(tmp_path):
    run, module = make(tmp_path / "run"), nn.Linear(2, 2)
    chain = HashChain(run, "all")
    chain.open()
    for number in range(1, 90):
        chain.add_update(module, Counters(env_steps=2 * number, updates=number), is_long=False)
    chain.add_update(module, Counters(env_steps=180, updates=90), is_long=True)
    chain.close()
    links = np.fromfile(run.update_chain_file, UPDATES)
    assert links["update"].tolist() == [*range(1, 65), 72, 80, 88, 90]
    assert links["env_steps"].tolist() == [2 * number for number in links["update"]]
    assert len(set(links["parameters"].tolist())) == 68


def test_nothing_depends_on_where_a_rollout_is_cut(tmp_path):
    whole = trajectory(700)
    one = write(make(tmp_path / "one"), [whole])
    cuts = [0, 1, 2, 50, 51, 699, 700]
    pieces = [part(whole, *pair) for pair in pairwise(cuts)]
    assert files(write(make(tmp_path / "many"), pieces)) == files(one)
    assert len(files(one)[0]) == 700 * 20


def test_large_rows_and_other_shapes(tmp_path, monkeypatch):
    """Nothing depends on how many links are made at once, nor where a workflow of its own collects other shapes."""
    large = {**trajectory(40), "observations": torch.randn(40, NUM_ENVS, 999)}
    pieces = [{key: value[step : step + 1] for key, value in large.items()} for step in range(40)]
    pieces += [part(trajectory(9), 0, 9), pieces[0]]
    many = write(make(tmp_path / "many"), pieces, updates=range(9))
    monkeypatch.setattr(hash_chain, "_MAX_HELD", 1)
    assert files(write(make(tmp_path / "one"), pieces, updates=range(9))) == files(many)
    assert len(files(many)[0]) == 50 * 20


def test_a_resumed_chain_is_the_same_to_the_byte(tmp_path):
    whole = trajectory(30)
    expected = files(write(make(tmp_path / "whole"), [whole], updates=[1.0, 2.0]))
    run, module = make(tmp_path / "killed"), nn.Linear(2, 2)
    nn.init.zeros_(module.bias)
    killed = HashChain(run, "all")
    killed.open()
    killed.add_steps(part(whole, 0, 11), 0, 22)
    state = killed.get_state()
    killed.add_steps(trajectory(5, seed=1), 22, 10)
    killed.add_update(module, Counters(env_steps=32, updates=1), is_long=True)
    killed.close()
    with run.step_chain_file.open("ab") as file:
        file.write(b"half")
    again = HashChain(run, "all")
    assert again.set_state(state) is None
    again.add_steps(part(whole, 11, 30), 22, 38)
    for number, value in enumerate([1.0, 2.0], 1):
        nn.init.constant_(module.weight, value)
        again.add_update(module, Counters(env_steps=60, updates=number), is_long=True)
    again.close()
    assert files(run) == expected


@pytest.mark.parametrize(("extent", "present"), [("none", [False, False]), ("steps", [True, False])])
def test_what_is_not_wanted_is_not_written(tmp_path, extent, present):
    run = make(tmp_path / "run")
    run.update_chain_file.write_bytes(b"of an earlier beginning")
    write(run, [trajectory(3)], updates=[1.0], extent=extent)
    assert [each is not None for each in files(run)] == present


def test_a_chain_is_not_begun_midway(tmp_path):
    run = make(tmp_path / "run")
    chain = HashChain(run, "all")
    assert chain.set_state({}) is None  # of a checkpoint before there were chains
    chain.add_steps(trajectory(3), 100, 6)
    chain.close()
    assert chain.get_state() == {}
    assert files(run) == [None, None]


def test_a_chain_that_is_switched_off_ends_at_the_checkpoint(tmp_path):
    run, whole = make(tmp_path / "run"), trajectory(9)
    chain = HashChain(run, "steps")
    chain.open()
    chain.add_steps(part(whole, 0, 4), 0, 8)
    state = chain.get_state()
    chain.add_steps(part(whole, 4, 9), 8, 10)
    chain.close()
    off = HashChain(run, "none")
    assert off.set_state(state) is None
    off.add_steps(part(whole, 4, 9), 8, 10)
    off.close()
    assert last_chained_step(run.step_chain_file) == 8
    assert off.get_state() == {}


def test_a_run_outlives_a_chain_that_is_gone(tmp_path):
    run = write(make(tmp_path / "run"), [trajectory(4)])
    chain = HashChain(run, "all")
    state = {"steps": {"size": 80, "links": ["00" * 16] * 3}, "updates": {"size": 0, "links": ["00" * 16]}}
    run.step_chain_file.unlink()
    assert "steps.chain has 0 bytes, but the checkpoint was made at 80" in chain.set_state(state)
    chain.add_steps(trajectory(4), 8, 8)
    assert chain.get_state().keys() == {"updates"}
    chain.close()


def changed(whole, key, step):
    """Return the trajectory with the lowest bit of one number flipped."""
    copy = {name: dict(value) if isinstance(value, dict) else value.clone() for name, value in whole.items()}
    leaf = copy[key] = copy[key]["place"].clone() if key == "observations" else copy[key]
    leaf.view(torch.uint8).reshape(len(leaf), -1)[step, 0] ^= 1
    if key == "observations":
        copy[key] = {"place": leaf, "text": None}
    return copy


@pytest.mark.parametrize(("key", "stream"), [("observations",) * 2, ("actions",) * 2, ("truncated", "rewards")])
def test_one_bit_is_found_at_its_step_and_in_its_stream(tmp_path, key, stream):
    whole = trajectory(50)
    first = write(make(tmp_path / "first"), [whole])
    other = write(make(tmp_path / "other"), [changed(whole, key, 31)])
    links, env_steps, divergence = compare_steps(first, other)
    assert (links, env_steps) == (50, 100)
    assert (divergence.step, divergence.stream) == (64, stream)
    assert divergence.detail == f"vector step 32 of the hash chain differs in {stream}"
    assert compare_steps(first, other, limit=62) == (31, 62, None)
    assert compare_steps(first, first) == (50, 100, None)


def test_one_bit_of_a_parameter_is_found_at_its_update(tmp_path):
    values = [1.0, 2.0, 3.0, 4.0]
    first = write(make(tmp_path / "first"), [], updates=values)
    values[2] = float(np.nextafter(np.float32(3), np.float32(4)))
    other = write(make(tmp_path / "other"), [], updates=values)
    links, _, divergence = compare_updates(first, other)
    assert (links, divergence.stream) == (4, "parameters")
    assert divergence.detail == "update 3 of the hash chain differs in parameters"


def test_chains_are_compared_as_far_as_both_have_them(tmp_path):
    whole = trajectory(50)
    first = write(make(tmp_path / "first"), [whole])
    short = write(make(tmp_path / "short"), [part(whole, 0, 20)])
    with short.step_chain_file.open("ab") as file:
        file.write(b"half a link")
    assert compare_steps(first, short) == (20, 40, None)
    assert last_chained_step(short.step_chain_file) == 40
    assert compare_steps(first, make(tmp_path / "without")) == (0, 0, None)
    assert compare_updates(first, short) == (0, 0, None)
    assert last_chained_step(tmp_path / "nothing") == 0


def test_other_counters_are_no_stream_of_data(tmp_path):
    whole = trajectory(4)
    first, other = write(make(tmp_path / "first"), [whole]), make(tmp_path / "other")
    content = bytearray(first.step_chain_file.read_bytes())
    content[20] = 5
    other.step_chain_file.write_bytes(bytes(content))
    divergence = compare_steps(first, other).divergence
    assert (divergence.step, divergence.stream) == (4, "counters")
