"""A camera that fails under `lab train`: the steps before it are on disk, those of the open episode too."""

import pytest

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.cli.running import new_job, opened
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core.errors import EnvironmentFault
from rl_lab.human.cell.env import SimulatedCellEnv
from rl_lab.human.cell.insertion import InsertionCell

EPISODE, FAILS_AT = 12, 31  # steps; the 31st is never seen


class Failing(InsertionCell):
    """A simulated arm that is not seen any more after a while."""

    num_acts = 0

    def is_success(self):
        return False

    def act(self, command):
        super().act(command)
        self.num_acts += 1

    def observe(self):
        if self.num_acts == FAILS_AT:
            raise OSError("camera cam_high is gone")
        return super().observe()


def make_failing(**options):
    return SimulatedCellEnv(Failing(), "failing", max_episode_steps=EPISODE, **options)


@pytest.mark.parametrize("kind", ["null", "memory"])
@pytest.mark.parametrize("at_once", [1, 20])
def test_the_open_episode_is_recorded(tmp_path, at_once, kind):
    overrides = [
        "+experiment=collect_insertion",
        "+logging=quiet",
        "environment.name=tests.human.test_failing_camera:make_failing",
        f"transport.kind={kind}",
        f"training.phases.0.workflow_hooks=[{{collect: {at_once}}}]",
    ]
    job = new_job(compose(overrides), Targets(AllowList(("tests",))), tmp_path / "run", quiet=True)
    with pytest.raises(EnvironmentFault, match="camera cam_high is gone"), opened(job, quiet=True) as orchestrator:
        orchestrator.run()
    (dataset,) = (tmp_path / "run").glob("buffers/*/dataset")
    episodes = list(read_episodes(dataset))
    assert [len(episode.rewards) for episode in episodes] == [EPISODE, EPISODE, FAILS_AT - 1 - 2 * EPISODE]
    assert episodes[-1].truncated
    assert job.run.read_status() == "failed"
