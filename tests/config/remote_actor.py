"""An actor in a process of its own, to be killed; a server that has imported everything forks it."""

import multiprocessing
import time
from contextlib import contextmanager
from pathlib import Path

import rl_lab.environments.gymnasium
import rl_lab.workflows.sac  # noqa: F401
from rl_lab.config.actors import assemble_actor, build_actor
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.config.remote_actor"])
TARGETS = Targets(AllowList())
PACE_S = 0.003  # of a robot: one without a learner would fill the disk as fast as it can


def act(home, overrides):
    """Act until the learner's run is over."""
    actor = build_actor(assemble_actor(compose(overrides), TARGETS), Path(home))
    actor.run(lambda: time.sleep(PACE_S) is not None)
    actor.close()


@contextmanager
def acting(home, overrides):
    """An actor that runs within the block; it may have left by itself."""
    process = FORKS.Process(target=act, args=(str(home), list(overrides)), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(60)
