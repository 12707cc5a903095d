"""What the tests of distillation share: runs in one folder, by experiment, in which the later ones find the earlier."""

from contextlib import closing

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.compose import compose
from rl_lab.config.resume import config_files, recompose
from rl_lab.config.targets import Targets
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory

TINY = ("budget=tiny", "+logging=quiet")


def composed(experiment, root, *overrides):
    return compose([f"+experiment={experiment}", f"experiment.root={root}", *overrides])


def train(config, root, name, *, stop_at=None):
    """Run a config in a directory of its own up to `stop_at` actions, or go on in it; return the directory."""
    path = root / name
    exists = path.exists()
    if exists:
        config = recompose(RunDirectory.open(path))
    parts = assemble(config, Targets(AllowList()))
    run = RunDirectory.open(path) if exists else RunDirectory.create(root, config.experiment.name, 1, path)
    with closing(parts.env):
        for file, text in config_files(parts).items():
            run.write_text(file, text)
        orchestrator = build(parts, run)
        with closing(orchestrator.evaluator.env):
            if exists:
                orchestrator.restore(CheckpointStore(run.checkpoints).load_newest().state)
            orchestrator.tracker.open(1, orchestrator.counters)
            done = 0
            while (action := orchestrator.scheduler.next_action()) is not None and done != stop_at:
                orchestrator._perform(action)
                done += 1
            orchestrator.save(is_final=True)
            orchestrator.tracker.close()
    return run


def newest_state(run):
    return CheckpointStore(run.checkpoints).load_newest().state
