"""A policy on an openpi server: its wire against a server that speaks as documented, and servers that do not."""

import struct
import threading
from contextlib import contextmanager

import msgpack
import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Named, Optimizers, RngStreams, WorkflowContext
from rl_lab.human.openpi_wire import PolicyServerError, pack, unpack
from rl_lab.human.remote_policy import RemotePolicy

ACTION = Box((2,), low=-1.0, high=1.0)
SPEC = EnvSpec("cell", {"state": Box((3,)), "cam_high": Box((3, 4, 5), torch.uint8)}, ACTION)
KEYS = {"state": "observation/state", "cam_high": "observation/image"}
FIRST = torch.ones(2, dtype=torch.bool)


def array(values):
    """Return an array as openpi's msgpack_numpy writes it."""
    return {b"__ndarray__": True, b"data": values.tobytes(), b"dtype": values.dtype.str, b"shape": values.shape}


def plain(part):
    """Read a request without the lab's own code."""
    if b"__ndarray__" in part:
        return np.ndarray(part[b"shape"], part[b"dtype"], part[b"data"])
    return part


@contextmanager
def server(answer, *, metadata=None, hang_up_after=None):
    """Serve on a free port: metadata first, then `answer(request)` to each request."""
    seen = []

    def handle(socket):
        socket.send(msgpack.packb({"name": "made-up"} if metadata is None else metadata))
        for count in range(hang_up_after or 10**9):
            try:
                request = msgpack.unpackb(socket.recv(), object_hook=plain)
            except ConnectionClosed:
                return
            seen.append((socket.request.headers.get("Authorization"), request))
            reply = answer(request, count)
            socket.send(reply if isinstance(reply, str | bytes) else msgpack.packb(reply))

    with serve(handle, "127.0.0.1", 0, compression=None) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{running.socket.getsockname()[1]}", seen
        running.shutdown()
    thread.join(30)


def ramp(request, count):
    """Return five actions: the first number of the state, and how bright the picture is, plus the step."""
    start = np.array([request["observation/state"][0], request["observation/image"].mean() / 255.0])
    return {
        "actions": array((start + 0.01 * np.arange(5)[:, None]).astype(np.float32)),
        "server_timing": {"infer_ms": 1.5},
    }


def make_policy(address, spec=SPEC, **options):
    options = {"prompt": "lift it", "keys": KEYS, "action_horizon": 3, "timeout_s": 20.0} | options
    policy = RemotePolicy(address, **options)
    policy.initialize(
        WorkflowContext(
            config={},
            device=torch.device("cpu"),
            spec=spec,
            num_envs=2,
            components=Named("component", {}),
            controllers=Named("controller", {}),
            optimizers=Optimizers({}),
            buffers=Named("buffer", {}),
            rng=RngStreams(0),
        )
    )
    return policy


def observation():
    picture = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
    picture[1] = 255
    picture[0, 2, 3, 4] = 60
    return {"state": torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), "cam_high": picture}


def test_chunks_are_asked_for_when_they_are_due_and_done_step_by_step():
    with server(ramp) as (address, seen):
        policy = make_policy(address, api_key="secret")
        carry, is_first, rows = policy.initial_carry(2), FIRST, []
        for step in range(4):
            actions, _, carry = policy.act(observation(), carry, is_first=is_first, explore=False, step=step)
            rows.append(actions)
            is_first = ~FIRST
        policy._connection.close()
    bright = 60 / (60 * 255)
    for step, row in enumerate(rows):
        later = 0.01 * (step % 3)  # three of five are done
        wanted = [[0.1 + later, bright + later], [0.4 + later, min(1.0, 1.0 + later)]]
        torch.testing.assert_close(row, torch.tensor(wanted))
    assert len(seen) == 4  # two environments, twice
    key, request = seen[1]
    assert key == "Api-Key secret"
    assert request.keys() == {"observation/state", "observation/image", "prompt"}
    assert request["prompt"] == "lift it"
    assert request["observation/image"].shape == (4, 5, 3)
    assert request["observation/image"].dtype == np.uint8
    assert request["observation/state"].tolist() == pytest.approx([0.4, 0.5, 0.6])


def test_a_correction_ends_the_chunk_and_the_server_is_asked_again():
    with server(ramp) as (address, seen):
        policy = make_policy(address)
        actions, _, carry = policy.act(observation(), policy.initial_carry(2), is_first=FIRST, explore=False, step=0)
        taken = actions.clone()
        taken[1] = -0.5
        policy.act(observation(), policy.took(carry, taken), is_first=~FIRST, explore=False, step=1)
        policy._connection.close()
    asked_for = [float(request["observation/state"][0]) for _, request in seen]
    assert asked_for == pytest.approx([0.1, 0.4, 0.4])  # the second robot was corrected


def test_a_lost_connection_is_made_again():
    with server(ramp, hang_up_after=1) as (address, seen):
        policy = make_policy(address)
        actions, _, _ = policy.act(observation(), policy.initial_carry(2), is_first=FIRST, explore=False, step=0)
        assert actions[:, 0].tolist() == pytest.approx([0.1, 0.4])
        policy._connection.close()
    assert len(seen) == 2


def infinite(request, count):
    return {"actions": array(np.full((5, 2), np.inf, np.float32))}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda *_: "Traceback\n  File x\nValueError: no such camera", r"failed: ValueError: no such camera$"),
        (lambda *_: b"\xc1", r"sent what is no message"),
        (lambda *_: [1, 2], r"sent a list in the place of a dict$"),
        (lambda *_: {"answer": 1}, r"answer has no array `actions`$"),
        (lambda *_: {"actions": array(np.zeros((2, 2), np.float32))}, r"are \[2, 2\], needed are \[3 or more, 2\]$"),
        (lambda *_: {"actions": array(np.zeros((5, 7), np.float32))}, r"are \[5, 7\], needed are \[3 or more, 2\]$"),
        (infinite, r"actions are not finite$"),
    ],
)
def test_a_server_that_does_not_speak_as_it_should_is_one_line(answer, message):
    with server(answer) as (address, _):
        policy = make_policy(address)
        with pytest.raises(PolicyServerError, match=message) as caught:
            policy.act(observation(), policy.initial_carry(2), is_first=FIRST, explore=False, step=0)
        policy._connection.close()
    assert "\n" not in str(caught.value)


def test_a_server_that_is_silent_or_absent_is_one_line():
    thinks = threading.Event()
    with server(lambda *_: thinks.wait(30) and {}) as (address, _):
        policy = make_policy(address, timeout_s=0.2)
        with pytest.raises(PolicyServerError, match=r"did not answer in 0.2 s$"):
            policy.act(observation(), policy.initial_carry(2), is_first=FIRST, explore=False, step=0)
        thinks.set()
    with pytest.raises(PolicyServerError, match=r"is gone \(.*refused"):
        policy.act(observation(), policy.initial_carry(2), is_first=FIRST, explore=False, step=0)


def objects():
    """Return an array of Python objects, which reading by pickle would make."""
    return {b"__ndarray__": True, b"data": b"\x80\x04N.", b"dtype": "|O", b"shape": (1,)}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (objects(), r"an array of object, which are no numbers"),
        ({**objects(), b"dtype": "i4,O"}, r"which are no numbers"),
        ({**objects(), b"dtype": "no such type"}, r"no message"),
        ({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [2**40]}, r"its data does not fill"),
        ({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [-1]}, r"its data does not fill"),
        ({b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4"}, r"its data does not fill"),
        ({b"__ndarray__": True, b"data": "text", b"dtype": "<f4", b"shape": [1]}, r"its data does not fill"),
        ({b"__npgeneric__": True, b"data": 1, b"dtype": "|O"}, r"which are no numbers"),
        (msgpack.ExtType(4, b"x"), r"an extension \(4\) of msgpack"),
    ],
)
def test_nothing_but_numbers_is_read(part, message):
    with pytest.raises(PolicyServerError, match=message):
        unpack(msgpack.packb({"actions": part}))


def test_messages_come_back_as_they_were():
    message = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": {"c": np.float32(1.5)},
        "d": "word",
        "e": [1, None],
    }
    back = unpack(pack(message))
    assert back["a"].dtype == np.int16
    assert back["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert back["b"]["c"] == 1.5
    assert (back["d"], back["e"]) == ("word", [1, None])
    raw = msgpack.unpackb(pack({"x": np.array([1.0])}))
    assert raw["x"] == {b"__ndarray__": True, b"data": struct.pack("<d", 1.0), b"dtype": "<f8", b"shape": [1]}
    with pytest.raises(TypeError, match="cannot be sent"):
        pack({"x": object()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "127.0.0.1:8000"}, r"^address: '127.0.0.1:8000' must begin with ws:// or wss://$"),
        ({"keys": {"stat": "x"}}, r"^workflow.keys: .*'stat'.*state"),
        ({"spec": EnvSpec("x", Box((2,)), Discrete(2))}, r"^RemotePolicy gives a row of numbers; 'x' takes"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        make_policy(**{"address": "ws://127.0.0.1:1"} | options)
