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
    orchestrator = build(parts, RunDirectory.create(tmp_path, name, 1))
    try:
        orchestrator.run()
    finally:
        parts.env.close()
        orchestrator.evaluator.env.close()
    assert orchestrator.counters.updates > 0
    assert 0 < orchestrator.counters.env_steps <= 256 + 16 * 4
