"""Whether this machine can draw, for tests of pictures."""

import pytest

from rl_lab.core import EnvironmentFault
from rl_lab.environments.offscreen import new_context


def skip_without_a_renderer():
    """Skip the test, in one line, where there is no OpenGL."""
    try:
        new_context(8, 8).free()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
