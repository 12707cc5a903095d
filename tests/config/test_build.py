import json

import pytest
import torch

from rl_lab.config.build import assemble, build, dims
from rl_lab.config.device import choose_device
from rl_lab.config.record import plugin_sources, record_start
from rl_lab.config.sinks import open_sinks, reject_missing_packages
from rl_lab.core import ConfigError, Discrete, EnvSpec, MultiDiscrete, RngStreams
from rl_lab.core.spaces import Box
from rl_lab.tracking.run_directory import RunDirectory
from tests.config.tiny import PLUGIN

SAID = "+workflow.gamma=0.7"


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "runs", "tiny", 1)


def test_dims_of_each_kind_of_space():
    of_boxes = {"observation": 12, "observation_shape": [3, 4], "action": 5, "episode_steps": 9}
    assert dims(EnvSpec("x", Box((3, 4)), Discrete(5), max_episode_steps=9)) == of_boxes
    spec = EnvSpec("x", {"image": Box((3, 8, 8)), "state": Discrete(2)}, MultiDiscrete((2, 3)))
    of_parts = {"observation": 194, "observation_shape": {"image": [3, 8, 8], "state": [2]}, "action": 5}
    assert dims(spec) == of_parts | {"episode_steps": 0}  # no limit


def test_parts_follow_the_config(composed, targets):
    parts = assemble(composed("experiment.num_threads=2", "environment.num_envs=3"), targets)
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert parts.env.num_envs == parts.context.num_envs == 3
    actor = parts.context.components["actor"]
    assert (actor.in_features, actor.out_features) == (4, 2)
    assert "critic" not in parts.context.components
    assert parts.workflow.gamma == 0.9
    assert parts.config["components"]["actor"]["in_features"] == 4
    with pytest.raises(TypeError):
        parts.config["experiment"]["seed"] = 2


def test_the_seed_decides_the_weights(composed, targets):
    weights = [
        assemble(composed(f"experiment.seed={seed}"), targets).context.components["actor"].weight.clone()
        for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_orchestrator_is_joined_with_its_directory(composed, targets, run):
    parts = assemble(composed("training.eval_num_envs=7", "training.num_eval_episodes=3"), targets)
    orchestrator = build(parts, run)
    assert orchestrator.collector.env is parts.env
    assert orchestrator.evaluator.env is not parts.env
    assert orchestrator.evaluator.env.num_envs == 3  # no more copies than episodes
    assert orchestrator.scheduler.total_timesteps == 256
    assert orchestrator.checkpoints.directory == run.checkpoints
    orchestrator.run()
    assert orchestrator.counters.env_steps == 256
    assert orchestrator.counters.updates == 8


def test_a_phase_that_can_never_update_is_refused(composed, targets):
    offline = "{name: a, duration_updates: 3, workflow_hooks: [update_policy]}"
    online = "{name: b, duration_steps: 8, workflow_hooks: [collect]}"
    with pytest.raises(ConfigError, match="phase 'a' can never update: buffer 'rollout' is empty"):
        assemble(composed(f"training.phases=[{offline},{online}]"), targets)
    assemble(composed(f"training.phases=[{online},{offline}]"), targets)


def test_what_the_lab_gives_to_buffers_and_to_buffers_within_them(composed, targets):
    sized = "_target_: tiny_plugin.SizedBuffer"
    nested = f"parts: [{{{sized}}}, {{{sized}, seed: 5, device: meta}}], named: {{a: {{{sized}, num_envs: 9}}}}"
    config = composed(f"buffers={{rollout: {{_target_: tiny_plugin.UnionBuffer, {nested}}}}}", "experiment.seed=3")
    parts = assemble(config, targets)
    union = parts.context.buffers["rollout"]
    first, second, third = *union.parts, union.named["a"]
    everything = {"device": torch.device("cpu"), "num_envs": 4, "spec": parts.env.spec, "collect_steps": 8}
    assert {key: union.given[key] for key in everything} == everything
    assert {key: first.given[key] for key in everything} == everything
    assert (second.given["seed"], second.given["device"]) == (5, torch.device("meta"))  # the YAML's word counts
    assert (third.given["num_envs"], third.given["spec"]) == (9, parts.env.spec)
    seeds = [buffer.given["seed"] for buffer in (union, first, third)]
    paths = [("rollout",), ("rollout", "parts", "0"), ("rollout", "named", "a")]
    assert seeds == [RngStreams(3).seed("buffer", *path) for path in paths]
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    ("change", "gamma"),
    [(["algorithm.gamma=0.5"], 0.5), (["~algorithm.gamma"], 0.99), (["~algorithm.gamma", SAID], 0.7)],
)
def test_buffers_that_say_no_discount_take_that_of_the_workflow(change, gamma, composed, targets):
    """In batches, at any depth; what YAML says of a buffer stays."""
    one = "_target_: rl_lab.buffers.replay.ReplayBuffer, capacity: 64, batch_size: 2"
    kept = f"{{_target_: rl_lab.buffers.recording.RecordingBuffer, into: {{{one}}}}}"
    node = f"parts: {{a: {kept}, b: {{{one}, gamma: 0.25}}}}, ratios: {{a: 0.5, b: 0.5}}, add_to: [a, b]"
    union = f"{{_target_: rl_lab.buffers.union.UnionBuffer, batch_size: 4, {node}}}"
    parts = assemble(composed(f"buffers.rollout={union}", *change), targets)
    buffer, obs = parts.context.buffers["rollout"], torch.zeros(2, 4, 4)
    flags = {key: torch.zeros(2, 4, dtype=torch.bool) for key in ("terminated", "truncated", "is_first")}
    steps = {"observations": obs, "final_observations": obs, "rewards": torch.zeros(2, 4), **flags}
    for part in (buffer._parts["a"]._inner, buffer._parts["b"]):  # without writing a dataset
        part.add({**steps, "actions": torch.zeros(2, 4)})
    assert buffer.sample()["discounts"].tolist() == pytest.approx([gamma, gamma, 0.25, 0.25])


def test_buffers_learn_where_their_files_may_lie_before_anything_is_added(composed, targets, run):
    parts = assemble(composed("buffers.rollout={_target_: tiny_plugin.SizedBuffer}"), targets)
    build(parts, run)
    assert parts.context.buffers["rollout"].attached == [(str(run.path / "buffers" / "rollout"), False)]
    assert not (run.path / "buffers").exists()


def test_data_is_not_loaded_before_the_run_begins(composed, targets):
    """A buffer that brings its data is not asked whether it is ready, and neither is one that is collected into."""
    loading = "buffers.rollout={_target_: tiny_plugin.LoadingBuffer, brings: %s}"
    offline = "training.phases=[{name: a, duration_updates: 3, workflow_hooks: [update_policy]}]"
    assert not assemble(composed(loading % "true", offline), targets).context.buffers["rollout"].is_loaded
    assert not assemble(composed(loading % "false"), targets).context.buffers["rollout"].is_loaded
    assert assemble(composed(loading % "false", offline), targets).context.buffers["rollout"].is_loaded


def test_what_a_buffer_refuses_is_said_with_its_path(composed, targets):
    sized = "{_target_: tiny_plugin.SizedBuffer, capacity: 0}"
    for node, path in (
        (sized, "rollout"),
        (f"{{_target_: tiny_plugin.UnionBuffer, parts: [{sized}]}}", "rollout.parts.0"),
    ):
        with pytest.raises(ConfigError, match=f"^buffers.{path}: capacity must be 1 or more, not 0$"):
            assemble(composed(f"buffers.rollout={node}"), targets)


def test_buffers_that_nobody_uses_are_named(composed, targets):
    tiny = "{_target_: tiny_plugin.TinyBuffer}"
    one = f"buffers={{rollout: {tiny}, old: {tiny}, b: {tiny}}}"
    with pytest.raises(ConfigError, match="phase 'train' must say which buffer it uses"):
        assemble(composed(one), targets)
    with pytest.raises(
        ConfigError, match=r"^neither a phase nor the workflow uses buffer 'b', 'old' \(used: \['rollout'\]\)$"
    ):
        assemble(composed(one, "training.phases.0.buffer=rollout"), targets)
    reading = composed(one, "training.phases.0.buffer=rollout", "workflow._target_=tiny_plugin.ReadingWorkflow")
    assert len(assemble(reading, targets).context.buffers) == 3


def test_frames_are_counted_where_actions_are_repeated(composed, targets, run):
    repeated = ("environment._target_=tiny_plugin.FaultyEnv", "environment.action_repeat=4")
    build(assemble(composed(*repeated), targets), run).run()
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert [row["frames"] for row in rows] == [4 * row["step"] for row in rows]
    assert [row["step"] for row in rows] == [64, 128, 192, 256]


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"experiment.device: 'cuda:1' is not on this machine \(choices: auto, cpu\)"):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    assert choose_device("cuda") == torch.device("cuda", 0)


def test_sinks_as_asked_for(composed, targets, run):
    def names(*overrides):
        config = assemble(composed(*overrides), targets).config
        return [type(sink).__name__ for sink in open_sinks(config, run, quiet=False)]

    assert names() == []
    everything = ("logging.terminal=true", "logging.tensorboard=true", "logging.csv=true")
    assert names(*everything) == ["TerminalSink", "TensorBoardSink", "CsvSink"]
    with pytest.raises(ConfigError, match="wandb"):
        reject_missing_packages(assemble(composed("logging.wandb=true"), targets).config)


def test_a_run_whose_steps_differ_in_their_last_bits_says_so(composed, targets, run):
    parts = assemble(composed(), targets)
    object.__setattr__(parts.env.spec, "exact_steps", False)
    record_start(run, parts, None)
    assert run.read_manifest()["exact_resume"] == "state"
    object.__setattr__(parts.env.spec, "exact_resume", False)
    record_start(run, parts, None)
    assert run.read_manifest()["exact_resume"] is False


def test_what_a_run_records(composed, targets, run):
    record_start(run, assemble(composed(), targets), None)
    assert "in_features: 4" in run.read_config()
    assert "${_dims.observation}" in (run.path / "composed.yaml").read_text()
    manifest = run.read_manifest()
    assert manifest["exact_resume"] is True
    assert len(manifest["config_hash"]) == 64
    assert [str(path) for path in plugin_sources(targets.allow_list)] == [PLUGIN]
    assert (run.code / "source.zip").is_file()
