"""The page about robots: its example runs, and its YAML is one that is read."""

import re
import runpy
from pathlib import Path

import yaml

from rl_lab.robots.models.files import JOINT_KEYS, KEYS

PAGE = (Path(__file__).parents[3] / "docs" / "robots.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_example_runs(tmp_path):
    (example,) = blocks("python")
    path = tmp_path / "example.py"
    path.write_text(example)
    names = runpy.run_path(str(path))
    assert names["sim"].read("site_xpos").shape == (64, 5, 3)


def test_the_yaml_has_keys_that_exist():
    (text,) = blocks("yaml")
    settings = yaml.safe_load(text)
    assert set(settings) <= set(KEYS)
    assert all(set(values) <= set(JOINT_KEYS) for values in settings["joints"].values())
