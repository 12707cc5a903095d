"""`lab learner`, `lab actor` and `lab start`: what they refuse, and the two of them on one machine."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from rl_lab.cli.start import _on_processes
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.core.errors import ConfigError
from rl_lab.distributed.crew import Crew

SAC, PEOPLE = "+experiment=remote_sac_pendulum", "+experiment=supervised_insertion"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            ["learner", "+experiment=sac_pendulum"],
            "a learner of its own needs host or network, not null",
        ),
        (["learner", SAC], "transport.kind: a learner of its own needs host or network, not memory"),
        (
            ["learner", SAC, "transport.kind=host", "transport.samplers=ray"],
            "transport.samplers: ray is for lab train; lab learner starts no actors",
        ),
        (["actor", SAC], "transport.kind: an actor of its own needs host or network, not memory"),
        (
            ["actor", SAC, "transport.kind=host"],
            "transport.address: missing; give that of the learner",
        ),
        (["actor", SAC, "transport.kind=tin"], "transport.kind: an actor of its own needs host or network, not tin"),
        (["start", SAC, "transport.certificate=x.pem"], "transport.certificate: lab start runs all on one machine"),
        (
            ["start", PEOPLE, "operator@training.operator=keyboard", "transport.kind=host"],
            "training.operator: a keyboard needs a terminal",
        ),
        (
            ["start", PEOPLE, "transport.actors=2", "transport.kind=host"],
            "training.operator: a person has one robot, not transport.actors=2",
        ),
        (["start", SAC, "--on", "mars"], "unknown --on 'mars' (choices: local, ray)"),
        (["start", SAC, "--address", "10.0.0.1:6379"], "--address 10.0.0.1:6379 goes with --on ray"),
        (
            [
                *["start", SAC, "--on", "ray", "transport.kind=network", "transport.actors=2"],
                "transport.certificate=c/l.pem",
            ],
            "c/actor-1.pem is missing: lab certs issue actor-1 --role actor --dir ",
        ),
        (["train", SAC, "transport.samplers=mars"], "unknown transport.samplers 'mars' (choices: local, ray, ray:HOST"),
        (["train", SAC, "transport.samplers=ray", "--seed", "1,2"], "transport.samplers: --seed does not go with it"),
        (["train", SAC, "transport.samplers=local", "--until", "9"], "transport.samplers: --until does not go with it"),
        (["train", SAC, "transport.kind=network"], "transport.address is missing: transport.kind=network needs it"),
    ],
)
def test_bad_input_is_one_line(lab, fails, command, text):
    assert text in fails(lab(*command), 2)
    assert not list(Path("experiments").glob("*"))


def test_actors_can_be_an_option_of_the_config(monkeypatch, lab):
    crews = []
    monkeypatch.setattr(Crew, "run", lambda crew, _: crews.append(crew) or 3)
    assert lab("train", SAC, "transport.samplers=local", "transport.actors=2", "--run-dir", "run").exit_code == 3
    assert lab("start", SAC, "transport.actors=2", "--run-dir", "run").exit_code == 3
    (learner, first, second), others = ([m.command[3:] for m in [c._learner, *c._actors]] for c in crews)
    assert (first, second) == (others[1], others[2])
    assert [word for word in learner if "samplers" not in word] == others[0]
    assert [word for word in learner if "samplers" in word] == ["transport.samplers=local", "transport.samplers=null"]


def test_of_a_run_with_actors_the_result_is_json_too(monkeypatch, lab):
    told = lab("train", SAC, "budget=tiny", "--run-dir", "run", "--json").stdout
    monkeypatch.setattr(Crew, "run", lambda crew, _: crew._echo("learner | trained") or 0)
    for command in (["start"], ["train", "transport.samplers=local"]):
        result = lab(*command, SAC, "budget=tiny", "--run-dir", "run", "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == json.loads(told) | {"run": str(Path("run").absolute())}
        assert "learner | trained" in result.stderr


MANY = ["hiors_insertion", "rlpd_insertion", "sft_insertion", "sac_pi0_insertion"]


@pytest.mark.parametrize("name", MANY)
def test_actors_are_one_robot_each_whatever_the_experiment_has(name, monkeypatch, lab):
    crews = []
    monkeypatch.setattr(Crew, "run", lambda crew, _: crews.append(crew) or 0)
    result = lab("start", f"+experiment={name}")
    assert result.exit_code == 0, result.output
    command = crews[0]._learner.command
    chosen = command[command.index("learner") + 1 : command.index("--run-dir")]
    assert chosen == [f"+experiment={name}", "transport.kind=host", "environment.num_envs=1"]
    many, one = (resolve(compose(words)) for words in (chosen[:1], chosen))
    for phase, same in zip(many["training"]["phases"], one["training"]["phases"], strict=True):
        if "duration_cycles" in phase:  # as many env steps as with all its environments
            hooks = [each["workflow_hooks"][0]["collect"] for each in (phase, same)]
            assert hooks[1] == hooks[0] * many["environment"]["num_envs"]
    with closing(assemble(compose(chosen), Targets(AllowList())).env) as env:
        assert env.num_envs == 1


def test_trials_are_told_with_their_interval(lab):
    result = lab("train", "+experiment=evaluate_insertion", "budget=tiny", "+logging=quiet", "--json")
    last = json.loads(result.stdout)["last"]
    assert (last["eval/info/is_success"], last["eval/episodes"]) == (1.0, 2.0)
    low, high = (last[f"eval/info/is_success_{end}"] for end in ("low", "high"))
    assert (low, high) == (pytest.approx(2 / (2 + 1.959964**2)), 1.0)  # 2 of 2, by the score interval


def test_several_robots_of_an_actor_are_refused_where_they_are_asked_for():
    chosen = ["+experiment=rlpd_insertion", "environment.num_envs=4"]
    assert _on_processes(chosen, compose(chosen), is_new=True) == [*chosen, "transport.kind=host"]
    with pytest.raises(ConfigError, match="an actor is one robot, not 4"):
        assemble(compose([*chosen, "transport.kind=host"]), Targets(AllowList()))


def test_an_actor_of_a_run_that_is_none(lab, fails):
    assert "no run directory at" in fails(lab("actor", "nowhere"), 1)


def test_an_actor_alone_records_and_says_what_waits(lab):
    options = ["budget=tiny", "transport.kind=network", "transport.address=127.0.0.1:1", "transport.actor=robot-7"]
    result = lab("actor", SAC, *options, "--steps", 5)
    assert result.exit_code == 0, result.output
    assert "5 steps recorded, 5 wait for the learner" in result.stdout
    assert list(Path("actors/remote_sac_pendulum/robot-7/spool").iterdir())
    again = lab("actor", SAC, *options, "--steps", 3)
    assert "3 steps recorded, 8 wait for the learner" in again.stdout
