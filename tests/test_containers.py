"""Dockerfiles, compose file and conda environment, as far as they can be checked without building anything."""

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from rl_lab.cli.compat import read_command
from rl_lab.config.trees import group_files
from rl_lab.launching.places.kubernetes import WORKDIR

ROOT = Path(__file__).parents[1]
DOCKERFILES = ("Dockerfile", "Dockerfile.gpu")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().lower().split()
    if "==" in line and line[0] != "#"
)


def instructions(name):
    """Return (instruction, rest) of every line of a Dockerfile; continued lines are one."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def of_kind(name, kind):
    return [rest for instruction, rest in instructions(name) if instruction == kind]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_is_there_and_is_sent_to_the_builder(name):
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for rest in of_kind(name, "COPY") for source in rest.split()[:-1]]
    assert {"constraints.txt", "pyproject.toml", "src"} <= {*copied}
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch(source, pattern) for pattern in ignored), source


@pytest.mark.parametrize("name", DOCKERFILES)
def test_versions_are_those_of_the_lab(name):
    (base,) = of_kind(name, "FROM")
    minor = re.fullmatch(r"python:(3\.\d+)-slim-bookworm", base)[1]
    assert PROJECT["requires-python"] == f">={minor}"
    pins = [word.split("==") for rest in of_kind(name, "RUN") for word in shlex.split(rest) if "==" in word]
    assert pins
    assert [pin for pin in pins if PINNED[pin[0]] != pin[1]] == []
    assert all("-c constraints.txt" in rest for rest in of_kind(name, "RUN") if "pip install" in rest)
    ((argument, extras),) = [rest.split("=") for rest in of_kind(name, "ARG")]
    assert argument == "EXTRAS"
    assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_image_is_the_command(name):
    assert of_kind(name, "ENTRYPOINT") == ['["lab"]']
    assert of_kind(name, "WORKDIR") == [WORKDIR]
    assert of_kind(name, "STOPSIGNAL") == ["SIGTERM"]  # which makes a checkpoint


def test_the_compose_file_runs_commands_of_the_lab():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert {*services} == {"lab", "gpu", "tensorboard"}
    for name in ("lab", "gpu"):
        service = services[name]
        assert service["build"]["dockerfile"] in DOCKERFILES
        command = read_command(list(service["command"]))
        chosen = [word.removeprefix("+experiment=") for word in command.params["overrides"] if "experiment=" in word]
        assert len(chosen) == 1
        assert chosen[0] in group_files("experiment")
        assert "./experiments:/lab/experiments" in service["volumes"]
    assert services["gpu"]["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert services["tensorboard"]["ports"] == ["127.0.0.1:6006:6006"]  # this machine alone


def test_the_conda_environment_installs_the_lab_as_it_was_tested():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert f"python={PROJECT['requires-python'].removeprefix('>=')}" in environment["dependencies"]
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    constraint, editable = pip
    assert (ROOT / constraint.split()[1]).is_file()
    extras = re.fullmatch(r"-e \.\[(.+)\]", editable)[1]
    assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}


def test_lines_of_other_systems_find_their_files():
    folder = ROOT / "docker"
    (service,) = yaml.safe_load((folder / "docker-compose.dev.cpu.yml").read_text())["services"].values()
    assert service["container_name"] == "softlearning"  # docker exec -it softlearning bash
    extended = yaml.safe_load((folder / service["extends"]["file"]).read_text())["services"]
    assert service["extends"]["service"] in extended
    constraint, editable = (ROOT / "requirements.txt").read_text().splitlines()[1:]
    assert constraint == "-c constraints.txt"
    extras = re.fullmatch(r"-e \.\[(.+)\]", editable)[1]
    assert {*extras.split(",")} <= {*PROJECT["optional-dependencies"]}
