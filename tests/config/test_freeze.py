import hashlib
import json

import pytest

from rl_lab.config import freeze as module
from rl_lab.config.freeze import config_hash, freeze, migrate, thaw
from rl_lab.core import ConfigError

TREE = {"experiment": {"seed": 1, "root": "x", "tags": ["a"]}, "list": [{"a": 1}, 2.5, None]}


def test_a_frozen_config_cannot_be_written_to():
    frozen = freeze(TREE)
    with pytest.raises(TypeError):
        frozen["experiment"]["seed"] = 2
    with pytest.raises(TypeError):
        frozen["list"][0]["a"] = 2
    assert thaw(frozen) == TREE


def test_the_hash_is_that_of_canonical_json():
    text = '{"experiment":{"seed":1},"list":[{"a":1},2.5,null]}'
    assert config_hash(freeze(TREE)) == hashlib.sha256(text.encode()).hexdigest()
    reordered = {key: TREE[key] for key in reversed(TREE)}
    assert config_hash(reordered) == config_hash(TREE)
    assert config_hash(json.loads(json.dumps(TREE | {"list": []}))) != config_hash(TREE)


def test_where_a_run_lies_does_not_count():
    moved = {**TREE, "experiment": {"seed": 1, "root": "y", "tags": []}, "logging": {"terminal": False}}
    still = {**TREE, "logging": {"terminal": True}}
    assert config_hash(moved) == config_hash(still)


def test_newer_layouts_are_refused_and_older_ones_migrated(monkeypatch):
    for version in (2, 0, "1"):
        with pytest.raises(ConfigError, match=f"run.yaml: schema_version {version!r} is not known"):
            migrate({"schema_version": version}, "run.yaml")
    assert migrate({"a": 1}) == {"a": 1, "schema_version": 1}
    monkeypatch.setattr(module, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(module, "MIGRATIONS", (lambda tree: tree | {"b": 2}, lambda tree: tree | {"c": tree["b"] + 1}))
    assert migrate({"schema_version": 1}) == {"schema_version": 3, "b": 2, "c": 3}
    assert migrate({"schema_version": 2, "b": 7}) == {"schema_version": 3, "b": 7, "c": 8}
