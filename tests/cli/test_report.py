import pytest

from rl_lab.cli.report import Reported
from rl_lab.core import LabError, UsageError
from rl_lab.orchestration.signals import Interrupted


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LabError("a\nb"), 1, "error: a b"),
        (UsageError("c"), 2, "error: c"),
        (KeyError(), 1, "error: KeyError: no message (--debug shows where)"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted(15), 143, "interrupted by SIGTERM; continue with `lab resume`"),
    ],
)
def test_how_a_command_ends(capsys, error, code, line):
    with pytest.raises(SystemExit) as left, Reported():
        raise error
    assert left.value.code == code
    assert capsys.readouterr().err == line + "\n"


def test_an_exit_passes_and_so_does_success():
    with Reported():
        pass
    with pytest.raises(SystemExit) as left, Reported():
        raise SystemExit(7)
    assert left.value.code == 7
