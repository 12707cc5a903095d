"""Every packaged experiment, as CI runs it: `budget=tiny`."""

import pytest

from rl_lab.components.observation import is_image
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.compose import compose
from rl_lab.config.resume import config_files
from rl_lab.config.targets import Targets
from rl_lab.config.trees import group_files
from rl_lab.tracking.run_directory import RunDirectory


def run_tiny(name, root):
    """Run an experiment, after that of its teacher if it has one."""
    config = compose([f"+experiment={name}", "budget=tiny", "+logging=quiet", f"experiment.root={root}"])
    if config.training.teacher is not None and config.training.teacher.get("run") is not None:
        run_tiny(config.training.teacher.run, root)
    if str(config.environment.get("name", "")).startswith("gym_aloha/"):
        pytest.importorskip("gym_aloha")  # installed by the Makefile, without its dependencies
    parts = assemble(config, Targets(AllowList()))
    run = RunDirectory.create(root, name, 1, files=config_files(parts))
    orchestrator = build(parts, run)
    try:
        orchestrator.run()
    finally:
        parts.env.close()
        orchestrator.evaluator.env.close()
    return parts, run, orchestrator


@pytest.mark.parametrize("name", sorted(group_files("experiment")))
def test_every_experiment_runs_with_a_tiny_budget(name, tmp_path):
    parts, run, orchestrator = run_tiny(name, tmp_path)
    learns = any(info.is_update for info in parts.workflow.hooks().values())
    assert (orchestrator.counters.updates > 0) == learns
    hooks = [call.name for phase in orchestrator.scheduler.phases for call in phase.hooks]
    assert ("collect" in hooks) == (orchestrator.counters.env_steps > 0)
    assert orchestrator.counters.env_steps <= 256 + 16 * 4
    part = "image" if is_image(parts.env.spec.observation) else "vector"
    films = [path.name for kind in (part, "latent") for path in run.media.rglob(f"open_loop_{kind}_*.png")]
    looks = hooks.count("evaluate_world_model")
    assert looks <= len(films) <= 2 * looks  # one where the seed takes half of the steps
