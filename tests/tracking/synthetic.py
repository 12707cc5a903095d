"""Directories with the files of a run that was never run: for tests of what reads them."""

import json
import time

import yaml

CONFIG = {
    "schema_version": 1,
    "experiment": {"name": "x", "tags": []},
    "environment": {"_target_": "rl_lab.environments.gymnasium.GymnasiumEnv", "name": "CartPole-v1"},
    "workflow": {"_target_": "rl_lab.workflows.ppo.PPO"},
    "algorithm": {"gamma": 0.99, "clip": None, "dims": [64, 64]},
    "training": {"phases": [{"name": "train", "duration_steps": 100}], "teacher": None, "resume_path": None},
    "budget": {"caps": {"a.b": 1}},
}


def position(step):
    return {"step": step, "updates": step // 2, "episodes": 0, "cycles": 0, "phase": "train"}


def make_run(
    root,
    directory,
    *,
    name="x",
    seed=0,
    status="done",
    created=None,
    curve=((0, 0.0), (100, 1.0)),
    metric="eval/return",
    summary=True,
    wall_per_step=0.5,
    manifest=None,
    **blocks,
):
    """Write a run; `blocks` replace keys of config blocks, such as `algorithm={"gamma": 0.9}`."""
    run = root / directory
    run.mkdir(parents=True)
    config = {key: {**value} if isinstance(value, dict) else value for key, value in CONFIG.items()}
    for block, changes in blocks.items():
        config[block] |= changes
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (run / "status").write_text(status + "\n")
    rows = [{**position(step), metric: value} for step, value in curve]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    times = [{**position(step), "perf/elapsed_s": wall_per_step * step} for step, _ in curve]
    (run / "perf.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    if summary:
        values = [value for _, value in curve]
        content = {"position": position(curve[-1][0]), "last": {metric: values[-1]}, "highest": {metric: max(values)}}
        (run / "metrics.json").write_text(json.dumps(content))
    facts = {"schema_version": 1, "id": f"id{directory}", "name": name, "seed": seed, "host": "here"}
    facts |= {"created": time.time() if created is None else created, "git_commit": "g" * 40, "config_hash": "c" * 64}
    (run / "manifest.json").write_text(json.dumps(facts | (manifest or {})))
    return run
