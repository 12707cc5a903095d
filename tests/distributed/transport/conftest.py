import time
from contextlib import ExitStack

import pytest

from rl_lab.distributed.transport.certificates import create_authority, issue
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from tests.distributed.transport.steps import step


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    """A lab with a learner, two robots, a viewer and a robot whose certificate has expired; and another lab."""
    directory = tmp_path_factory.mktemp("certs")
    for lab in ("lab", "other"):
        create_authority(directory / lab, 1)
    issue(directory / "lab", "expired", "actor", 1 / 86_400)
    issue(directory / "lab", "stale-learner", "learner", 1 / 86_400)
    start = time.monotonic()
    for name, role in (("learner", "learner"), ("robot", "actor"), ("robot-2", "actor"), ("watcher", "viewer")):
        issue(directory / "lab", name, role, 1)
    issue(directory / "other", "robot", "actor", 1)
    issue(directory / "other", "learner", "learner", 1)
    time.sleep(max(0.0, start + 1.1 - time.monotonic()))
    return directory


@pytest.fixture
def ends(tmp_path):
    """Functions that open the two ends; what they opened is closed, the last first."""
    with ExitStack() as stack:

        def receiver(**block):
            config = {"kind": "network", "address": "127.0.0.1:0", "directory": str(tmp_path / "learner")} | block
            return stack.enter_context(open_receiver(TransportConfig.read(config), step(0)))

        def sender(learner, example=None, **block):
            config = {"kind": "network", "address": learner if isinstance(learner, str) else learner.address}
            config |= {"directory": str(tmp_path / block.get("actor", "actor"))} | block
            return stack.enter_context(open_sender(TransportConfig.read(config), example or step(0)))

        yield receiver, sender
