"""Strangers: who is let in, and as what."""

import os
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.core.line_limit import AT_ONCE
from rl_lab.distributed.transport import certificates, front
from rl_lab.distributed.transport.callers import token_path
from rl_lab.distributed.transport.certificates import create_authority, issue, revoke
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.learner_end import _private_files
from rl_lab.distributed.transport.security import check_address, identity_of, is_loopback
from rl_lab.distributed.transport.step_log import StepLog
from tests.distributed.transport.raw import Raw
from tests.distributed.transport.steps import step


def credentials(certs, lab="lab", name="robot"):
    files = [(certs / lab / file).read_bytes() for file in ("ca.pem", f"{name}.key", f"{name}.pem")]
    return grpc.ssl_channel_credentials(*files)


def refusal(call):
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code().name


@pytest.fixture
def learner(ends, certs):
    return ends[0](certificate=str(certs / "lab" / "learner.pem"))


def test_a_robot_of_this_lab_is_let_in(ends, certs, learner):
    robot = ends[1](learner, actor="robot", certificate=str(certs / "lab" / "robot.pem"))
    robot.send(step(0))
    assert robot.flush(10)
    assert [(actor, seq) for actor, _, seq, _ in learner.receive(10, 1.0)] == [("robot", 0)]


def refusals(caplog, count):
    """Return this many lines about refusals, which come a moment after what they tell of."""
    deadline = time.monotonic() + 10.0
    while len(lines := [line for line in caplog.messages if line.startswith("refused: ")]) < count:
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    return [
        re.fullmatch(r"refused: (.*) \((ipv4:)?127\.0\.0\.1:[0-9]+\)( \(and [0-9]+ more\))?", line)[1] for line in lines
    ]


def test_strangers_are_refused_and_logged_and_the_learner_goes_on(ends, certs, learner, caplog):
    authority_only = grpc.ssl_channel_credentials((certs / "lab" / "ca.pem").read_bytes())
    strangers = {
        "without TLS": None,
        "no certificate": authority_only,
        "expired": credentials(certs, name="expired"),
        "another lab's robot": grpc.ssl_channel_credentials(
            (certs / "lab" / "ca.pem").read_bytes(),
            (certs / "other" / "robot.key").read_bytes(),
            (certs / "other" / "robot.pem").read_bytes(),
        ),
        "a learner's certificate": credentials(certs, name="learner"),
    }
    for name, stranger in strangers.items():
        caplog.clear()
        raw = Raw(learner.address, stranger)
        assert refusal(lambda raw=raw: raw.hello(actor="robot")) == "UNAVAILABLE", name
        raw.channel.close()
        no_tls, no_certificate = "it does not speak TLS", "it has no certificate of this lab that is valid"
        assert refusals(caplog, 1)[0].startswith(no_certificate if stranger else no_tls), name
    caplog.clear()
    test_a_robot_of_this_lab_is_let_in(ends, certs, learner)
    assert not [line for line in caplog.messages if line.startswith("refused: ")]


def test_a_flood_of_strangers_is_a_few_lines(learner, caplog):
    host, port = learner.address.split(":")
    for _ in range(AT_ONCE + 20):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
    assert AT_ONCE <= len(refusals(caplog, AT_ONCE)) <= AT_ONCE + 5  # the others are counted in the next one


def test_roles_and_names_are_checked_at_every_call(certs, learner):
    watcher, robot, other = (Raw(learner.address, credentials(certs, name=n)) for n in ("watcher", "robot", "robot-2"))
    assert refusal(lambda: watcher.hello(actor="watcher")) == "PERMISSION_DENIED"
    assert refusal(lambda: robot.hello(actor="robot-2")) == "PERMISSION_DENIED"
    session = robot.hello(actor="robot").session
    assert watcher.push([], session) == other.push([], session) == "PERMISSION_DENIED"  # with a stolen session too
    assert [stream.actor for stream in watcher.status().streams] == ["robot"]
    assert robot.push([], session) is None


def test_nobody_poses_as_the_learner(ends, certs, monkeypatch):
    receiver, sender = ends
    monkeypatch.setattr(certificates, "check_own", lambda *_: None)  # a stranger's learner does not look
    for number, (lab, name) in enumerate((("lab", "robot-2"), ("lab", "stale-learner"), ("other", "learner"))):
        false = receiver(certificate=str(certs / lab / f"{name}.pem"), directory=str(certs / f"false-{number}"))
        robot = sender(
            false, actor="robot", certificate=str(certs / "lab" / "robot.pem"), directory=str(certs / f"r-{number}")
        )
        robot.send(step(0))
        assert not robot.flush(0.5), name
        assert not robot.status().is_connected
        assert not false.receive(1, 0.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("robot", "is of role actor, not learner; make one with lab certs issue NAME --role learner$"),
        ("stale-learner", "it is valid from .* UTC, and now it is not"),
        ("foreign", "the authority beside it, ca.pem, is of another lab$"),
        ("ca", "it was not made by lab certs"),
    ],
)
def test_a_learner_with_a_wrong_certificate_does_not_start(ends, certs, tmp_path, name, message):
    lab = certs / "lab"
    if name == "foreign":
        lab = tmp_path
        for file, source in (("ca.pem", "lab/ca"), ("foreign.pem", "other/learner"), ("foreign.key", "other/learner")):
            (tmp_path / file).write_bytes((certs / f"{source}{Path(file).suffix}").read_bytes())
    with pytest.raises(UsageError, match=message) as refused:
        ends[0](certificate=str(lab / f"{name}.pem"))
    assert "\n" not in str(refused.value)


def test_an_actor_with_a_wrong_certificate_does_not_start(ends, certs, learner):
    for name, actor, message in (
        ("learner", "learner", "is of role learner, not actor"),
        ("robot", "robot-9", "it is robot's, and transport.actor is robot-9$"),
        ("expired", "expired", "it is valid from"),
    ):
        with pytest.raises(UsageError, match=message):
            ends[1](learner, actor=actor, certificate=str(certs / "lab" / f"{name}.pem"))


def test_a_revoked_certificate_is_not_accepted_any_more_not_even_in_a_call_that_runs(ends, tmp_path, caplog):
    create_authority(tmp_path / "lab", 1)
    for name, role in (("learner", "learner"), ("robot", "actor"), ("robot-2", "actor")):
        issue(tmp_path / "lab", name, role, 1)
    learner = ends[0](certificate=str(tmp_path / "lab" / "learner.pem"))
    robots = [
        ends[1](learner, actor=name, certificate=str(tmp_path / "lab" / f"{name}.pem")) for name in ("robot", "robot-2")
    ]
    for robot in robots:
        robot.send(step(0))
        assert robot.flush(10)
    assert revoke(tmp_path / "lab", "robot") == tmp_path / "lab" / "revoked.txt"
    robots[0].send(step(1))
    robots[0]._thread.join(20.0)  # it ends when the learner has refused
    with pytest.raises(TransportError, match="the learner refuses: the certificate of robot is revoked"):
        robots[0].send(step(2))
    raw = Raw(learner.address, credentials(tmp_path, name="robot"))
    assert refusal(lambda: raw.hello(actor="robot")) == "PERMISSION_DENIED"
    assert "the certificate of robot is revoked" in refusals(caplog, 1)[0]
    robots[1].send(step(1))
    assert robots[1].flush(10)
    assert sorted((actor, seq) for actor, _, seq, _ in learner.receive(10, 0.0)) == [
        ("robot", 0),
        ("robot-2", 0),
        ("robot-2", 1),
    ]
    with pytest.raises(UsageError, match="robot.pem is revoked already"):
        revoke(tmp_path / "lab", "robot")
    with pytest.raises(UsageError, match="cannot be opened: No such file"):
        revoke(tmp_path / "lab", "nobody")
    (tmp_path / "lab" / "revoked.txt").write_text("no number\n")
    raw = Raw(learner.address, credentials(tmp_path, name="robot-2"))
    assert refusal(lambda: raw.hello(actor="robot-2")) == "PERMISSION_DENIED"  # while nobody can say who is revoked


def test_an_idle_actor_ends_when_its_certificate_is_revoked(ends, tmp_path):
    create_authority(tmp_path / "lab", 1)
    for name, role in (("learner", "learner"), ("robot", "actor")):
        issue(tmp_path / "lab", name, role, 1)
    learner = ends[0](certificate=str(tmp_path / "lab" / "learner.pem"))
    robot = ends[1](learner, actor="robot", certificate=str(tmp_path / "lab" / "robot.pem"))
    robot.send(step(0))
    assert robot.flush(10)
    assert learner.status().num_connected == 1
    revoke(tmp_path / "lab", "robot")
    robot._thread.join(10.0)
    assert robot.status().error == "the learner refuses: the certificate of robot is revoked"
    assert learner.status().num_connected == 0


def test_a_list_without_a_last_newline_still_grows_by_whole_lines(tmp_path):
    create_authority(tmp_path, 1)
    for name in ("robot", "robot-2"):
        issue(tmp_path, name, "actor", 1)
    listed = revoke(tmp_path, "robot")
    listed.write_text(listed.read_text().rstrip("\n"))  # as an editor may leave it
    revoke(tmp_path, "robot-2")
    lines = [line.split() for line in listed.read_text().splitlines()]
    assert [name for _, name in lines] == ["robot", "robot-2"]
    for serial, name in lines:
        assert int(serial, 16) == x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes()).serial_number


def test_a_key_of_another_certificate_is_one_line(ends, certs, tmp_path):
    for file, source in (("ca.pem", "ca.pem"), ("learner.pem", "learner.pem"), ("learner.key", "robot.key")):
        (tmp_path / file).write_bytes((certs / "lab" / source).read_bytes())
    with pytest.raises(UsageError, match=r"learner.key beside it is another certificate's$"):
        ends[0](certificate=str(tmp_path / "learner.pem"))
    (tmp_path / "learner.key").write_text("no key")
    with pytest.raises(UsageError, match=r"learner.key beside it cannot be read") as refused:
        ends[0](certificate=str(tmp_path / "learner.pem"))
    assert "\n" not in str(refused.value)


def test_a_learner_that_cannot_keep_its_secret_leaves_its_log_closed(ends, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(StepLog, "close", lambda log, close=StepLog.close: (closed.append(log), close(log)))
    with monkeypatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", "")
        patch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        (tmp_path / f"rl-lab-{os.getuid()}").write_text("no directory")
        with pytest.raises(ConfigError, match="is not this user's alone"):
            ends[0]()
    assert len(closed) == 1
    ends[0]()


def test_one_host_does_not_take_all_places_of_the_others(learner, caplog):
    host, port = learner.address.split(":")
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection((host, int(port)), timeout=5)) for _ in range(105)]
        idle[-1].settimeout(5.0)
        assert idle[-1].recv(1) == b""  # 3 * 32 actors + 8 are let in
        elsewhere = stack.enter_context(socket.create_connection((host, int(port)), 5, ("127.0.0.2", 0)))
        elsewhere.settimeout(0.5)
        with pytest.raises(TimeoutError):
            elsewhere.recv(1)
        assert refusals(caplog, 1) == ["127.0.0.1 has 104 connections already"]


def test_where_the_system_gives_no_more_threads_a_peer_is_told_of(ends, certs, learner, caplog, monkeypatch):
    class Thread(threading.Thread):
        def start(self):
            if self.name == "transport-back":
                raise RuntimeError("can't start new thread")
            super().start()

    with monkeypatch.context() as patch:
        patch.setattr(front.threading, "Thread", Thread)
        host, port = learner.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as peer:
            peer.sendall(b"\x16")
            with suppress(ConnectionError):
                assert peer.recv(1) == b""
        assert refusals(caplog, 1) == ["can't start new thread"]
    test_a_robot_of_this_lab_is_let_in(ends, certs, learner)


def test_while_a_socket_is_made_others_make_directories_that_can_be_entered(tmp_path):
    with _private_files():
        (tmp_path / "another").mkdir()
    assert (tmp_path / "another").stat().st_mode & 0o777 == 0o700


def test_other_users_of_this_machine_do_not_know_the_secret(ends, caplog, tmp_path):
    learner = ends[0]()
    path = token_path(int(learner.address.rpartition(":")[2]))
    assert path.stat().st_mode & 0o777 == 0o600
    raw = Raw(learner.address, token="guessed")
    assert refusal(lambda: raw.hello()) == refusal(raw.status) == "UNAUTHENTICATED"
    assert "raw does not know this learner's secret" in refusals(caplog, 1)[0]
    robot = ends[1](learner)
    robot.send(step(0))
    assert robot.flush(10)
    learner.close()
    assert not path.exists()


def test_a_directory_of_secrets_that_others_enter_is_told_by_the_actor(ends, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (theirs := tmp_path / f"rl-lab-{os.getuid()}").mkdir()
    theirs.chmod(0o755)
    robot = ends[1]("127.0.0.1:9")
    robot._thread.join(10.0)
    text = f"{theirs} is not this user's alone (mode 0700): chmod 700 {theirs}, or set XDG_RUNTIME_DIR"
    assert robot.status().error.startswith(text)
    with pytest.raises(TransportError, match=re.escape(text)):
        robot.send(step(0))


def test_a_socket_file_is_its_owners_from_the_first_moment(ends, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", None)  # not even for a moment is it anybody's
    ends[0](kind="host", address=str(tmp_path / "socket"))
    assert not (tmp_path / "socket").stat().st_mode & 0o077


def test_plain_bytes_do_not_harm_the_learner(ends, certs, learner):
    host, port = learner.address.split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40, b"\x16\x03\x01" + b"\xff" * 500, b""):
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(data)
            time.sleep(0.02)
    test_a_robot_of_this_lab_is_let_in(ends, certs, learner)


@pytest.mark.parametrize("address", ["0.0.0.0:5000", "[::]:5000", "192.168.1.7:5000", "learner.example:5000"])
def test_beyond_this_machine_certificates_are_needed(ends, address):
    receiver, sender = ends
    for open_end in (lambda: receiver(address=address), lambda: sender(address)):
        with pytest.raises(ConfigError, match=r"there is no transport.certificate; make one with lab certs") as refused:
            open_end()
        assert "\n" not in str(refused.value)


def test_addresses():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost")] == [True] * 4
    assert check_address("0.0.0.0:5000", is_secured=True) == "0.0.0.0:5000"
    for wrong in ("5000", ":5000", "host", "host:port", "host:99999"):
        with pytest.raises(ConfigError, match="neither HOST:PORT nor unix:PATH"):
            check_address(wrong, is_secured=True)


def test_a_taken_port_is_one_line(ends, tmp_path):
    receiver, _ = ends
    first = receiver()
    with pytest.raises(TransportError, match=f"cannot listen on {first.address}; is the port taken"):
        receiver(address=first.address, directory=str(tmp_path / "second"))


def test_a_missing_certificate_is_one_line(ends, tmp_path):
    with pytest.raises(UsageError, match="cannot be read .* make it with lab certs issue"):
        ends[0](certificate=str(tmp_path / "nobody.pem"))


def test_an_identity_is_one_name_and_one_role():
    assert identity_of([b"x", b"rl-lab://actor/robot-1"]) == ("robot-1", "actor")
    for names in ([], [b"robot-1"], [b"rl-lab://boss/x"], [b"rl-lab://actor/a", b"rl-lab://learner/a"]):
        with pytest.raises(TransportError, match="says no role"):
            identity_of(names)


def test_certificates_are_never_overwritten_and_keys_are_private(tmp_path):
    with pytest.raises(UsageError, match="has no authority .*: lab certs init"):
        issue(tmp_path, "robot", "actor", 1)
    create_authority(tmp_path, 1)
    issue(tmp_path, "robot", "actor", 1)
    for again in (lambda: create_authority(tmp_path, 1), lambda: issue(tmp_path, "robot", "viewer", 1)):
        with pytest.raises(UsageError, match="exists and is not overwritten"):
            again()
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {
        "ca.key": 0o600,
        "robot.key": 0o600,
    }
    for name in ("", "a/b", "..", "ca", "x" * 64, "robot 1"):
        with pytest.raises(UsageError, match="cannot name a certificate"):
            issue(tmp_path, name, "actor", 1)
    with pytest.raises(UsageError, match=r"unknown --role 'boss' \(choices: actor, learner, operator, viewer\)"):
        issue(tmp_path, "robot-2", "boss", 1)
