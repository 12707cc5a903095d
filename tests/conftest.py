"""How the suite runs: what is collected lives to the end, and the longest tests do not wait for each other."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
settings.register_profile("repeatable", derandomize=True)  # a change passes or fails, whenever it is tested
settings.load_profile("repeatable")
APART = {"test_docs.py", "test_kill_resume.py"}  # long tests that share nothing; those of other files share fixtures


def pytest_configure():
    gc.disable()
    # fork servers import test modules; Python 3.11 does not tell them sys.path, and some tests are elsewhere
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if "LAB_INDEX" not in os.environ:  # the index of runs is not to lie in the user's cache
        os.environ["LAB_INDEX"] = tempfile.mkdtemp(prefix="lab_index_")
        atexit.register(shutil.rmtree, os.environ["LAB_INDEX"], ignore_errors=True)


class Files(LoadScopeScheduling):
    """A worker takes a file at a time, since its tests share fixtures; of some files a test."""

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        return nodeid if Path(path).name in APART else path


def pytest_xdist_make_scheduler(config, log):
    return Files(config, log)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
