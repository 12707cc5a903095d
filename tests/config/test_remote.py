"""Learner and actors from a config: what is refused, what goes on when a part is missing, what is the same again."""

import json
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from rl_lab.cli.running import continued_job, new_job, opened
from rl_lab.config.actors import _warn_without_limits, assemble_actor, build_actor
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.socket_path import socket_of
from rl_lab.config.targets import Targets
from rl_lab.core import private_directory
from rl_lab.core.errors import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.core.operator import operator_id
from rl_lab.distributed.transport.certificates import create_authority, issue
from rl_lab.distributed.transport.interface import TransportError, Weights
from rl_lab.orchestration import learner as learner_module
from rl_lab.orchestration.bulletin import Bulletin, pack, unpack
from rl_lab.orchestration.signals import Interrupted
from rl_lab.orchestration.streams import ActorStreams
from rl_lab.tracking.fingerprint import fingerprint
from tests.config import remote_actor
from tests.human.test_corrections import IMPATIENT

TARGETS = Targets(AllowList())
SMALL = [
    "+experiment=remote_sac_pendulum",
    "budget=tiny",
    "+logging=quiet",
    "experiment.compile=eager",
    "+environment.env_kwargs.max_episode_steps=20",
    "training.eval_frequency=null",
    "training.checkpoint_frequency=32",
    "transport.publish_updates=4",
]
HOST = [*SMALL, "transport.kind=host"]


WATCHED = [  # a simulated human corrects beside the robot
    "+experiment=rlpd_insertion",
    "budget=tiny",
    "+logging=quiet",
    "experiment.compile=eager",
    "environment.num_envs=1",
    "transport.kind=host",
    "training.checkpoint_frequency=32",
    *IMPATIENT,
]


@pytest.fixture
def brief_farewell(monkeypatch):
    """Actors in threads stay connected when the run is over."""
    monkeypatch.setattr(learner_module, "_FAREWELL_S", 0.1)


def composed(*overrides, base=HOST):
    return compose([*base, *overrides])


@contextmanager
def acting(home, *overrides, steps=None):
    """An actor in a thread of this process, which leaves when the run is over or the block ends."""
    actor = build_actor(assemble_actor(composed(*overrides), TARGETS), Path(home))
    over, errors = threading.Event(), []

    def run():
        try:
            actor.run(lambda: over.wait(remote_actor.PACE_S) or (steps is not None and actor.num_steps >= steps))
        except TransportError as error:
            errors.append(str(error))
        if actor.told.is_over:
            actor.close()  # as the command does, so that the learner need not wait

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield actor, errors
    finally:
        over.set()
        thread.join(60)
        if not actor.told.is_over:
            actor.close()


def learn(job, stop_after=None):
    """Run a job, or only to its so many-th checkpoint, as if it had been killed after that."""
    with opened(job, quiet=True) as learner:
        saved = []
        save = learner.save

        def counted(**options):
            save(**options)
            saved.append(learner.counters.env_steps)
            if len(saved) == stop_after:
                learner.stop.ask()

        learner.save = counted
        if stop_after is None:
            learner.run()
        else:
            with pytest.raises(Interrupted):
                learner.run()
    return learner


def eventually(look):
    deadline = time.monotonic() + 60
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def spool_steps(actor):
    return actor.sender.status().next_seq


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["+experiment=ppo_cartpole", "environment.num_envs=1"],
            "PPO learns from rollouts of its own in phase 'train'",
        ),
        (["+experiment=sac_pendulum_vector"], "environment.num_envs: an actor is one robot, not"),
        (["+experiment=sac_pendulum", "training.overlap=strict"], "training.overlap: with transport.kind=host"),
        (
            ["+experiment=sac_pendulum", "transport.publish=[polizy]"],
            "unknown transport.publish 'polizy'; did you",
        ),
        (["+experiment=sac_pendulum", "transport.knd=host"], "unknown key in transport 'knd'; did you mean 'kind'"),
        (["+experiment=sac_pendulum", "transport.limits.x=1"], "unknown key in transport.limits 'x'"),
        (["+experiment=sac_pendulum", "transport.inference=learner", "transport.prefetch=1"], "transport.prefetch: 1"),
        (["+experiment=world_models_cartpole", "environment.num_envs=1"], "collects in a way of its own"),
        (
            ["+experiment=remote_corrected_insertion", "transport.inference=learner", "transport.chunk=99"],
            "transport.chunk: 99 actions are more than the",
        ),
        (
            [
                "+experiment=remote_corrected_insertion",
                "transport.inference=learner",
                "algorithm.observation_horizon=2",
            ],
            "transport.inference=learner: BehaviorCloning remembers earlier observations",
        ),
    ],
)
def test_what_actors_cannot_collect_for_is_refused_in_one_line(overrides, text):
    with pytest.raises(ConfigError, match="^[^\n]*$") as error:
        assemble(composed(*overrides, "transport.kind=host", base=["budget=tiny"]), TARGETS)
    assert text in str(error.value)


def test_what_actors_are_told_comes_back():
    told = Bulletin(7, 2, True, {"a/b": 3})
    weights, found = unpack(pack({"policy.w": torch.ones(2)}, told))
    assert found == told
    assert list(weights) == ["policy.w"]


def test_in_one_process_a_run_that_stops_goes_on_to_the_bit(tmp_path):
    straight = new_job(composed(base=SMALL), TARGETS, tmp_path / "straight", quiet=True)
    learn(straight)
    cut = new_job(composed(base=SMALL), TARGETS, tmp_path / "cut", quiet=True)
    learn(cut, stop_after=2)
    learn(continued_job(cut.run, composed(base=SMALL), TARGETS, quiet=True))
    assert fingerprint(cut.run) == fingerprint(straight.run)


SERVED = ("transport.inference=learner", "transport.chunk=3", "transport.prefetch=1", "transport.deadline_s=5.0")


@pytest.mark.parametrize("options", [(), SERVED], ids=["weights", "served"])
def test_a_learner_that_was_stopped_learns_the_same_from_its_log(tmp_path, options):
    cut = new_job(composed(*options), TARGETS, tmp_path / "cut", quiet=True)
    with remote_actor.acting(cut.run.path, [*HOST, *options]) as actor:
        learn(cut, stop_after=2)
        learn(continued_job(cut.run, composed(*options), TARGETS, quiet=True))
        assert actor.is_alive() or actor.exitcode == 0  # it was told that the run is over, if it was there
    straight = new_job(composed(*options), TARGETS, tmp_path / "straight", quiet=True)
    shutil.copytree(cut.run.path / "transport" / "log", straight.run.path / "transport" / "log")
    learn(straight)  # there is no actor: all that it learns from is in the log, and nobody asks it anything
    assert fingerprint(straight.run) == fingerprint(cut.run)


def interventions(run):
    rows = map(json.loads, run.events_file.read_text().splitlines())
    return [
        (row["kind"], row["operator"], row["actor"], row["step"], row["utc"])
        for row in rows
        if row["kind"] in ("takeover", "hand_back")
    ]


def changes(steps):
    """Return what events there must be, by a look at every two steps that follow one another."""
    found, before = [], 0
    for step in steps:
        who = int(step["infos"]["operator"])
        utc = datetime.fromtimestamp(float(step["taken_at"]), UTC).isoformat(timespec="milliseconds")
        kind = {(True, False): "takeover", (False, True): "hand_back"}.get((who > 0, before > 0))
        found += [] if kind is None else [(kind, "simulated", "actor", utc)]
        before = who
    return found


def test_who_took_over_beside_an_actor_and_when_is_in_the_learners_run_whoever_is_killed(tmp_path, monkeypatch):
    cut, steps, add = new_job(composed(base=WATCHED), TARGETS, tmp_path / "cut", quiet=True), [], ActorStreams.add
    with remote_actor.acting(cut.run.path, WATCHED) as actor:
        learn(cut, stop_after=2)
        actor.kill()
    with remote_actor.acting(cut.run.path, WATCHED):
        learn(continued_job(cut.run, composed(base=WATCHED), TARGETS, quiet=True))
    straight = new_job(composed(base=WATCHED), TARGETS, tmp_path / "straight", quiet=True)
    shutil.copytree(cut.run.path / "transport" / "log", straight.run.path / "transport" / "log")
    monkeypatch.setattr(ActorStreams, "add", lambda self, got: (steps.append(got.step), add(self, got)))
    learner = learn(straight)
    wanted = changes(steps[: learner.counters.env_steps + learner.remote.num_late])
    assert wanted  # how many there are depends on when new weights reach the actor
    noted = interventions(straight.run)
    assert noted == interventions(cut.run)
    assert [(*who, utc) for *who, _, utc in noted] == wanted
    places = [place for *_, place, _ in noted]
    assert places == sorted(places)
    assert fingerprint(straight.run) == fingerprint(cut.run)
    for run in (straight.run, cut.run):
        assert run.read_manifest()["operators"] == {str(operator_id("simulated")): "simulated"}


def test_an_actor_killed_within_an_episode_loses_nothing(tmp_path):
    job = new_job(composed(), TARGETS, tmp_path / "run", quiet=True)
    options = [*HOST, "transport.max_lead=30"]  # it waits within the second episode until the learner comes
    with remote_actor.acting(job.run.path, options) as actor:
        with opened(job, quiet=True) as learner:
            received = []
            while len(received) < 30:
                received += learner.remote.receiver.receive(30 - len(received), 1.0)
        actor.kill()
        actor.join(60)
    with remote_actor.acting(job.run.path, options):
        learner = learn(continued_job(job.run, composed(), TARGETS, quiet=True))
    assert [step.seq for step in received] == list(range(30))
    streams = learner.remote.streams
    assert len(streams.taken) == 1  # the successor is the same run
    assert streams.num_cut == 1
    rows = learner.context.buffers["replay"]
    assert rows.size == learner.counters.env_steps == 128


@pytest.mark.usefixtures("brief_farewell")
def test_two_actors_and_one_that_is_restarted_within_an_episode(tmp_path):
    options = "transport.actors=2"
    job, seen = new_job(composed(options), TARGETS, tmp_path / "run", quiet=True), []
    learner = threading.Thread(target=lambda: seen.append(learn(job)))
    learner.start()
    with acting(job.run.path, options, "transport.actor=right", steps=27) as (right, _):  # 7 of its second episode
        assert eventually(lambda: right.num_steps == 27 and right.sender.flush(1.0))
    with acting(job.run.path, options, "transport.actor=right", steps=40) as (successor, errors):
        assert eventually(lambda: spool_steps(successor) == 67 and successor.sender.flush(1.0))  # it counts on
        with acting(job.run.path, options, "transport.actor=left"):
            learner.join(100)
    assert not errors
    remote = seen[0].remote
    assert {stream.split("/")[0] for stream in remote.streams.taken} == {"left", "right"}
    assert len(remote.streams.taken) == 2
    assert remote.streams.num_cut == 1
    assert seen[0].context.buffers["replay"].size == seen[0].counters.env_steps == 128
    last = json.loads(job.run.perf_file.read_text().splitlines()[-1])
    assert last["actors/cut_episodes"] == 1
    assert last["actors/connected"] == 2


def test_an_actor_goes_on_when_its_learner_is_gone_and_begins_with_its_last_weights(tmp_path):
    job = new_job(composed(), TARGETS, tmp_path / "run", quiet=True)
    with acting(job.run.path) as (actor, _):
        learner = learn(job)
    assert actor.told.is_over
    policy = learner.workflow.policy.state_dict()
    actor = build_actor(assemble_actor(composed(), TARGETS), job.run.path)
    actor.step()
    assert actor.version > 1
    assert not actor.told.is_over  # that was another process's run, or will be extended
    for name, tensor in actor.workflow.policy.state_dict().items():
        assert torch.equal(policy[name], tensor)
    before = spool_steps(actor)
    for _ in range(50):
        assert actor.step()
    assert spool_steps(actor) == before + 50
    assert not actor.sender.status().is_connected
    actor.close()


def test_a_finished_run_does_not_keep_an_actor_from_the_next(tmp_path):
    home = f"transport.directory={tmp_path / 'actor'}"
    lead = "transport.max_lead=40"  # less than what the first run's steps leave in the counters of its spool
    for name in ("first", "second"):
        job = new_job(composed(lead), TARGETS, tmp_path / name, quiet=True)
        with acting(job.run.path, home, lead) as (actor, errors):
            assert learn(job).counters.env_steps == 128
        assert actor.told.is_over
        assert not errors


def test_another_task_is_refused_with_what_differs(tmp_path):
    job = new_job(composed(), TARGETS, tmp_path / "run", quiet=True)
    with opened(job, quiet=True), acting(job.run.path, "environment.info_keys=[x]") as (_, errors):
        assert eventually(lambda: errors)
    assert "the steps differ: infos.x is float32 [1] there and missing here" in errors[0]


def test_an_actor_finds_a_learner_that_comes_back_on_another_port(tmp_path):
    network = ("transport.kind=network", "transport.address=127.0.0.1:0")
    job = new_job(composed(*network), TARGETS, tmp_path / "run", quiet=True)
    told = job.run.path / "transport" / "address"
    told.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:  # nobody of ours listens there
        told.write_text(f"127.0.0.1:{other.getsockname()[1]}")
        actor = build_actor(assemble_actor(composed(*network), TARGETS), job.run.path)
        with opened(job, quiet=True) as learner:
            assert told.read_text() == learner.remote.receiver.address
            assert eventually(lambda: actor.sender.status().is_connected)
        actor.close()


def test_an_actor_takes_all_weights_of_a_learner_that_began_with_those_of_another_run(tmp_path):
    actor = build_actor(assemble_actor(composed("transport.publish=null"), TARGETS), tmp_path)
    state = actor.workflow.state_dict()
    weights = {name: torch.full_like(tensor, 0.5) for name, tensor in state.items() if "." in name}
    assert weights.keys() != actor.workflow.broadcast().keys()
    actor._load(Weights(3, pack(weights, Bulletin(7))))
    assert (actor.version, actor.told.env_steps) == (3, 7)
    state = actor.workflow.state_dict()
    assert [name for name, wanted in weights.items() if not torch.equal(state[name], wanted)] == []
    actor.close()


def test_a_robot_is_told_once_to_hold_while_its_actor_waits(tmp_path):
    actor, heard = build_actor(assemble_actor(composed("transport.max_lead=2"), TARGETS), tmp_path), []
    actor.collector.env.instruct = heard.append
    waits = iter([False, True, True, False, True])
    actor._must_wait = lambda: next(waits)
    assert [actor.step() for _ in range(5)] == [True, False, False, True, False]
    assert heard == ["hold", "hold"]
    actor.close()


def test_the_socket_of_a_run_lies_where_only_its_user_can_go(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    directory = Path(socket_of(tmp_path / "run")).parent
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        socket_of(tmp_path / "run")
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is not this user's alone"):
        socket_of(tmp_path / "run")
    (own := tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.setattr(private_directory, "_LONG", 500)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert Path(socket_of(tmp_path / "run")).parent == own


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"transport.address=127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="cannot listen on 127.0.0.1:.*is the port taken"):
            new_job(composed("transport.kind=network", address), TARGETS, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_an_actor_of_another_lab_gets_nowhere_and_loses_nothing(tmp_path):
    for lab in ("ours", "theirs"):
        create_authority(tmp_path / lab, 1)
        issue(tmp_path / lab, "learner", "learner", 1)
        issue(tmp_path / lab, "actor", "actor", 1)

    def secured(lab, name):
        certificate = f"transport.certificate={tmp_path / lab / name}.pem"
        return ("transport.kind=network", "transport.address=127.0.0.1:0", certificate)

    job = new_job(composed(*secured("ours", "learner")), TARGETS, tmp_path / "run", quiet=True)
    with opened(job, quiet=True) as learner:
        actor = build_actor(assemble_actor(composed(*secured("theirs", "actor")), TARGETS), job.run.path)
        for _ in range(20):
            assert actor.step()
        assert eventually(lambda: actor.sender.status().error != "not connected yet")
        assert not actor.sender.status().is_connected
        assert learner.remote.receiver.status() == (0, 0)
        assert spool_steps(actor) == 20
        actor.close()


def test_an_actor_without_a_robot_cell_is_told_that_nothing_limits_it(caplog):
    _warn_without_limits(GymnasiumEnv("cell/Insertion-v0", 1))
    assert not caplog.messages
    _warn_without_limits(GymnasiumEnv("Pendulum-v1", 1))
    assert [line.split(":")[0] for line in caplog.messages] == ["Pendulum-v1 is no robot cell"]
