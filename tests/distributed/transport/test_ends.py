"""Both ends over gRPC on this machine: what is sent arrives once, in order, whoever dies."""

import random
import shutil
import signal
import time
from collections import defaultdict

import grpc
import pytest
import torch

from rl_lab.core import line_limit
from rl_lab.distributed.transport import transport_pb2 as messages
from rl_lab.distributed.transport.frames import frame
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.limits import Limits
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from rl_lab.distributed.transport.sessions import Sessions
from rl_lab.distributed.transport.step_log import Stream
from rl_lab.distributed.transport.weights import WeightsInbox
from tests.distributed.transport.processes import FORKS, act, file_size_limit, learn
from tests.distributed.transport.raw import Raw
from tests.distributed.transport.steps import SCHEMA, number_of, payload, step


def drain(receiver, count, timeout_s=20.0):
    found, deadline = [], time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        found += receiver.receive(count - len(found), 0.2)
    return [(actor, seq, number_of(tree)) for actor, _, seq, tree in found]


def eventually(look, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def send_until_refused(sender, pause_s=0.0):
    for number in range(sender.status().next_seq, 10_000):
        sender.send(step(number), timeout_s=0.5)
        time.sleep(pause_s)


@pytest.mark.parametrize("kind", ["memory", "host", "network"])
def test_steps_and_weights_by_every_way(kind, tmp_path):
    address = {"memory": "", "host": str(tmp_path / "socket"), "network": "127.0.0.1:0"}[kind]
    block = {"kind": kind, "address": address, "directory": str(tmp_path / "learner")}
    with open_receiver(TransportConfig.read(block), step(0)) as receiver:
        if kind == "network":
            address = receiver.address
        names = ("robot-1", "robot-2")
        blocks = [block | {"address": address, "directory": str(tmp_path / name), "actor": name} for name in names]
        senders = [open_sender(TransportConfig.read(b), step(0), receiver) for b in blocks]
        for number in range(50):
            for sender in senders:
                assert sender.send(step(number)) == number
        found = drain(receiver, 100)
        assert not receiver.receive(1, 0.05)
        for name, sender in zip(names, senders, strict=True):
            assert [entry[1:] for entry in found if entry[0] == name] == [(number, number) for number in range(50)]
            assert sender.flush(10)
            assert sender.status() == (True, 50, 50, "")
        assert receiver.publish({"w": torch.ones(3)}) == 1
        assert receiver.publish({"w": torch.full((3,), 2.0)}) == 2
        for sender in senders:
            weights = eventually(sender.newest_weights)
            if weights.version == 1:
                weights = eventually(sender.newest_weights)
            assert weights.version == 2
            assert torch.equal(weights.tensors["w"], torch.full((3,), 2.0))
            sender.close()


def test_a_learner_that_goes_back_to_a_checkpoint_gets_every_step_once(ends, tmp_path):
    receiver, sender = ends
    learner = receiver(address="127.0.0.1:0")
    robots = [sender(learner, actor=name) for name in ("robot", "robot-2")]
    for number in range(30):
        for robot in robots:
            robot.send(step(number))
    before = drain(learner, 25)
    checkpoint = learner.get_state()
    after = drain(learner, 35)
    learner.close()
    again = receiver(address=learner.address)
    again.set_state(checkpoint)
    assert drain(again, 35) == after
    for robot in robots:
        assert robot.send(step(30)) == 30
    late = drain(again, 2)
    for name in ("robot", "robot-2"):
        numbers = [number for actor, seq, number in before + after + late if actor == name and seq == number]
        assert numbers == list(range(31))


def test_steps_are_recorded_with_no_learner_and_sent_when_one_comes(ends):
    receiver, sender = ends
    learner = receiver()
    learner.close()
    robot = sender(learner)
    for number in range(20):
        robot.send(step(number))
    status = eventually(lambda: robot.status() if robot.status().error != "not connected yet" else None)
    assert not status.is_connected
    assert status.error
    robot.close()
    again = sender(receiver(address=learner.address))  # another process of the same robot
    assert again.send(step(20)) == 20
    assert again.flush(20)


def test_a_slow_learner_holds_the_actors_back(ends):
    receiver, sender = ends
    limits = {"unread_bytes": 20 * (SCHEMA.step_bytes + 12)}
    learner = receiver(limits=limits)
    robot = sender(learner, spool_bytes=40_000)
    with pytest.raises(TransportError, match="the spool .* is full"):
        send_until_refused(robot)
    number = robot.status().next_seq
    assert 100 < number < 1200
    assert drain(learner, number) == [("actor", seq, seq) for seq in range(number)]
    assert robot.send(step(number), timeout_s=5.0) == number


def test_a_full_disk_on_either_side_loses_nothing(ends, tmp_path):
    receiver, sender = ends
    learner = receiver()
    robot = sender(learner)
    with file_size_limit(6000), pytest.raises(TransportError, match="all before it are"):
        send_until_refused(robot)  # the learner's log has one file, and that is full first
    for rest in range(robot.status().next_seq, 250):
        assert robot.send(step(rest), timeout_s=10.0) == rest
    assert robot.flush(20)
    assert drain(learner, 250) == [("actor", seq, seq) for seq in range(250)]


def test_a_robot_with_other_steps_is_told_how_they_differ(ends):
    receiver, sender = ends
    robot = sender(receiver(), example=step(0) | {"rewards": torch.zeros(7)})
    error = eventually(lambda: robot.status().error.startswith("the learner refuses") and robot.status().error)
    assert error == ("the learner refuses: actor: the steps differ: rewards is float32 [7] there and float32 [2] here")
    for number in range(2):
        with pytest.raises(TransportError, match=f"the learner refuses: .*; all steps up to {number} are recorded"):
            robot.send(step(0) | {"rewards": torch.zeros(7)})
    assert robot.status().next_seq == 2


def test_the_newest_session_of_a_name_wins_and_the_old_one_stays_away(ends, tmp_path):
    receiver, sender = ends
    learner = receiver()
    old = sender(learner)
    old.send(step(0))
    assert old.flush(10)
    new = sender(learner, directory=str(tmp_path / "another"))
    new.send(step(0))
    assert new.flush(10)
    with pytest.raises(TransportError, match="another process speaks for actor now"):
        send_until_refused(old, pause_s=0.02)
    new.send(step(1))
    assert new.flush(10)
    assert new.status().is_connected
    runs = {run for _, run, _, _ in learner.receive(1000, 0.2)}
    assert len(runs) == 2


def test_a_spool_that_lost_its_files_is_not_confused_with_the_old_one(ends, tmp_path):
    receiver, sender = ends
    learner = receiver()
    robot = sender(learner)
    robot.send(step(0))
    assert robot.flush(10)
    robot.close()
    directory = tmp_path / "actor" / "spool"
    (segment,) = directory.glob("*.segment")
    data = segment.read_bytes()
    segment.write_bytes(data[: -SCHEMA.step_bytes - 16])  # a step that the learner has, gone
    robot = sender(learner)
    error = eventually(lambda: robot.status().error if "lost its files" in robot.status().error else "")
    assert "the learner goes on at step 1, this spool holds steps 0 to 0" in error
    robot.close()
    shutil.rmtree(directory)
    robot = sender(learner)  # a new run
    robot.send(step(7))
    assert robot.flush(10)


def test_weights_go_on_where_they_were_cut_off(ends, tmp_path, monkeypatch):
    receiver, sender = ends
    learner = receiver()
    learner.publish({"w": torch.arange(1_000_000.0)})
    newest = learner._weights.newest
    directory = tmp_path / "actor" / "weights"
    directory.mkdir(parents=True)
    part = directory / f"{learner.get_state()['log']}-1-{newest.sha256}.part"
    part.write_bytes(newest.path.read_bytes()[:1_500_000])
    offsets, add = [], WeightsInbox.add
    monkeypatch.setattr(WeightsInbox, "add", lambda inbox, *piece: offsets.append(piece[4]) or add(inbox, *piece))
    robot = sender(learner)
    weights = eventually(robot.newest_weights)
    assert torch.equal(weights.tensors["w"], torch.arange(1_000_000.0))
    assert offsets == [1_500_000, 1_500_000 + (1 << 20), 1_500_000 + (2 << 20)]
    assert not part.exists()


def test_damaged_weights_never_reach_the_policy(ends, caplog):
    receiver, sender = ends
    learner = receiver()
    learner.publish({"w": torch.zeros(1000)})
    path = learner._weights.newest.path
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\1")
    robot = sender(learner)
    assert eventually(lambda: "their sha256 is not what was announced" in caplog.text)
    assert robot.newest_weights() is None
    path.write_bytes(content)
    assert torch.equal(eventually(robot.newest_weights).tensors["w"], torch.zeros(1000))


class Call:
    def cancel(self):
        return True


def steps(*numbers):
    return messages.Steps(frames=b"".join(frame(n, payload(n)) for n in numbers)).SerializeToString()


def test_duplicates_are_ignored_and_gaps_replays_and_strange_steps_refused(ends, caplog, monkeypatch):
    monkeypatch.setattr(line_limit, "AT_ONCE", 100)
    receiver, _ = ends
    learner = receiver()
    raw = Raw(learner.address)
    assert raw.push([steps(0)]) == "UNAUTHENTICATED"
    assert raw.push([steps(0)], "0" * 32) == "UNAUTHENTICATED"
    hello = raw.hello()
    assert raw.push([steps(0, 1), steps(0, 1), steps(1, 2)], hello.session) == 3
    assert raw.push([steps(4)], hello.session) == "OUT_OF_RANGE"
    assert raw.push([steps(3, 5)], hello.session) == "OUT_OF_RANGE"
    assert raw.push([steps(4, 3)], hello.session) == "OUT_OF_RANGE"
    bad_bool = payload(3)[:-1] + b"\7"
    for data in (frame(3, b"x"), frame(3, payload(3) + b"x"), frame(3, bad_bool), frame(3, payload(3))[:-1], b"x"):
        assert raw.push([messages.Steps(frames=data).SerializeToString()], hello.session) == "DATA_LOSS"
    assert raw.push([bytes(1 << 23)], hello.session) == "RESOURCE_EXHAUSTED"  # larger than a message may be
    assert f"refused: a Steps of {1 << 23} bytes is larger than transport.limits.message_bytes" in caplog.text
    assert raw.push([bytes(1 << 26)], hello.session) == "RESOURCE_EXHAUSTED"  # and than anybody reads
    assert raw.push([b"\xff\xff\xff"], hello.session) == "INVALID_ARGUMENT"
    assert raw.push([steps(3)], hello.session) == 4
    assert raw.hello().next == 4
    assert raw.push([steps(4)], hello.session) == "UNAUTHENTICATED"  # the session of an older hello
    assert drain(learner, 4) == [("raw", seq, seq) for seq in range(4)]
    assert not learner.receive(10, 0.05)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"actor": "../x"}, "INVALID_ARGUMENT"),
        ({"actor": ""}, "INVALID_ARGUMENT"),
        ({"run": "x" * 100}, "INVALID_ARGUMENT"),
        ({"first": 2**64 - 1}, "INVALID_ARGUMENT"),
        ({"schema": "[" * 100}, "INVALID_ARGUMENT"),
        ({"schema": "[]"}, "FAILED_PRECONDITION"),
        ({"schema": '[["a\\nfalse line", "bool", []]]'}, "FAILED_PRECONDITION"),
    ],
)
def test_a_strange_hello_is_refused_in_one_line(ends, fields, code, caplog):
    receiver, _ = ends
    with pytest.raises(grpc.RpcError) as refused:
        Raw(receiver().address).hello(**fields)
    assert refused.value.code().name == code
    assert "\n" not in caplog.messages[-1]
    assert caplog.messages[-1].startswith("refused: ")


def test_no_more_actors_than_allowed_are_connected_at_a_time(ends, caplog):
    receiver, sender = ends
    learner = receiver(limits={"actors": 1})
    first = sender(learner, actor="robot-1")
    first.send(step(0))
    assert first.flush(20)
    waiting = Raw(learner.address)
    with pytest.raises(grpc.RpcError, match="raw is one too many: 1 actors are here") as refused:
        waiting.hello()
    assert refused.value.code().name == "RESOURCE_EXHAUSTED"
    assert caplog.messages[-1].startswith("refused: raw is one too many")
    first.send(step(1))
    assert first.flush(20)
    first.close()
    assert eventually(lambda: learner.status().num_connected == 0)
    session = waiting.hello().session
    assert waiting.push([steps(0)], session) == 1


def test_of_actors_that_said_hello_together_no_more_than_allowed_push():
    sessions = Sessions(Limits(actors=1))
    one, two = (sessions.open("p", Stream(name, "r")) for name in ("one", "two"))
    sessions.enter(one, "Push", Call())
    with pytest.raises(TransportError, match="two is one too many"):
        sessions.enter(two, "Push", Call())
    sessions.enter(sessions.open("p", Stream("one", "r")), "Push", Call())  # the same one, again


def test_hellos_are_limited(ends):
    receiver, _ = ends
    raw = Raw(receiver(limits={"hellos_per_s": 1.0}).address)
    raw.hello()
    with pytest.raises(grpc.RpcError, match="says hello more than 1 times a second"):
        [raw.hello() for _ in range(5)]
    raw.hello(actor="another")


def test_steps_are_slowed_down_and_not_refused(ends):
    receiver, sender = ends
    learner = receiver(limits={"steps_per_s": 100.0})
    robot = sender(learner)
    start = time.monotonic()
    for number in range(150):
        robot.send(step(number))
    assert len(drain(learner, 150)) == 150
    assert time.monotonic() - start > 0.4  # a second's worth at once, the rest at the rate


def test_fuzzed_messages_leave_the_service_unharmed(ends):
    receiver, _ = ends
    learner, rng = receiver(), random.Random(0)
    raw = Raw(learner.address)
    session, whole = raw.hello().session, steps(0, 1, 2)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randrange(len(data)) if rng.random() < 0.3 else len(data)
        raw.push([bytes(data[:cut])], session)
    assert raw.push([whole], session) == 3
    assert drain(learner, 3) == [("raw", seq, seq) for seq in range(3)]


def test_kills_lose_and_double_nothing(tmp_path):
    rng, total, kills = random.Random(0), 2_000, 0
    block = {"kind": "host", "address": str(tmp_path / "socket")}
    actor_block = block | {"directory": str(tmp_path / "robot"), "actor": "robot"}
    learner = (learn, (block | {"directory": str(tmp_path / "learner")}, str(tmp_path / "results")))
    targets = {"actor": (act, (actor_block, total)), "learner": learner}
    running = {name: start(*target) for name, target in targets.items()}
    for name in ("actor", "learner", "actor", "learner"):
        time.sleep(rng.uniform(0.2, 0.4))
        running[name].kill()
        running[name].join()
        kills += running[name].exitcode == -signal.SIGKILL  # an actor on a fast machine may have sent all by then
        running[name] = start(*targets[name])
    assert kills >= 3
    running["actor"].join(60)
    assert running["actor"].exitcode == 0
    results = tmp_path / "results"
    eventually(lambda: len(results.read_text().splitlines()) >= total)
    running["learner"].kill()
    running["learner"].join()
    found = defaultdict(list)
    for line in results.read_text().splitlines():
        name, seq, number = line.split()
        assert seq == number
        found[name].append(int(number))
    assert found == {"robot": list(range(total))}


def start(target, arguments):
    process = FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
