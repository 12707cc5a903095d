"""Every packaged experiment, as CI runs it: `budget=tiny`."""

import pytest

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.config.trees import group_files
from rl_lab.tracking.run_directory import RunDirectory


@pytest.mark.parametrize("name", sorted(group_files("experiment")))
def test_every_experiment_runs_with_a_tiny_budget(name, tmp_path):
    parts = assemble(compose([f"+experiment={name}", "budget=tiny", "logging=quiet"]), Targets(AllowList()))
    run = RunDirectory.create(tmp_path, name, 1)
    orchestrator = build(parts, run)
    try:
        orchestrator.run()
    finally:
        parts.env.close()
        orchestrator.evaluator.env.close()
    learns = any(info.is_update for info in parts.workflow.hooks().values())
    assert (orchestrator.counters.updates > 0) == learns
    assert 0 < orchestrator.counters.env_steps <= 256 + 16 * 4
    hooks = [call.name for phase in orchestrator.scheduler.phases for call in phase.hooks]
    part = "image" if name.endswith("_pixels") else "vector"
    films = [path.name for path in run.media.rglob(f"open_loop_{part}_*.png")]
    looks = hooks.count("evaluate_world_model")
    assert looks <= len(films) <= 2 * looks  # one where the seed takes half of the steps
