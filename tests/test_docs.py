"""Every command in the documentation runs: page by page, in order, in an empty directory, on a tiny budget.

Plain trainings of packaged experiments that nothing goes on with are composed only: `test_experiments` runs them all.
"""

import multiprocessing
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli import processes
from rl_lab.cli.main import app
from rl_lab.config.trees import group_files
from rl_lab.distributed.launch import free_port
from tests.distributed.rank_work import lab

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["tests.lab_process", "tests.distributed.rank_work"])
NOT_RUN = {"pip", "cd", "tensorboard", "git"}  # other people's programs
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(#[^)]*)?\)")


def commands(page):
    """Return the command lines of a page's bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def takes_the_newest_run(words):
    """Return whether a command goes on with a run that it does not name."""
    reads = words[0] == "lab" and words[1] in {"resume", "evaluate", "play", "export", "runs"}
    return reads and not any(word.startswith("experiments/") for word in words)


def is_run_elsewhere(words):
    experiment = words[2].removeprefix("+experiment=") if len(words) == 3 else ""
    return words[:2] == ["lab", "train"] and experiment in group_files("experiment")


def forked(command, count):
    """Do what `launch` does, with processes that need not import everything anew."""
    port = free_port()
    words, here = command[command.index("-c") + 2 :], str(Path.cwd())
    ranks = [RANKS.Process(target=lab, args=(rank, port, words, here, count)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    return next((rank.exitcode for rank in ranks if rank.exitcode), 0)


def run(words):
    if words[0] == "torchrun":  # of other people; what it starts is composed
        assert words[1:4] == ["--nproc-per-node=2", "-m", "rl_lab"], words
        words = ["lab", *words[4:], "--cfg", "job"]
    if words[:2] == ["python", "scripts/train.py"]:
        words = ["lab", "train", *words[2:]]
    if words[:2] == ["lab", "resume"]:  # longer than a tiny run, but not by hours
        words = [re.sub(r"=\d[\d_]{3,}$", "=512", word) for word in words]
    if words[0] == "lab":
        is_set = {"budget=tiny", "--cfg", "--from-run"} & {*words}  # another run's config is tiny already
        tiny = ["budget=tiny"] if words[1] == "train" and not is_set else []
        result = CliRunner().invoke(app, [*words[1:], *tiny])
        assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}"
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in words[1:]), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[0] in NOT_RUN, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAB_EXPERIMENTS", raising=False)
    monkeypatch.setattr(processes, "launch", forked)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = commands(page)
    for number, words in enumerate(lines, 1):
        is_read = any(takes_the_newest_run(later) for later in lines[number:])
        run(words if is_read or not is_run_elsewhere(words) else [*words, "--cfg", "job"])


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target, _ in LINK.findall(page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_workflow_has_a_page_and_a_row_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for path in (ROOT / "src" / "rl_lab" / "workflows").glob("[a-z]*.py"):
        assert (ROOT / "docs" / f"{path.stem}.md").is_file()
        assert f"docs/{path.stem}.md" in readme


def test_every_page_is_reached_from_the_readme():
    linked = {target for target, _ in LINK.findall((ROOT / "README.md").read_text())}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_prose_that_everybody_reads_first_has_short_lines(name):
    lines = (ROOT / name).read_text().splitlines()
    assert not [line for line in lines if len(line) > 140 and not line.startswith("|")]


def test_the_readme_shows_the_tree():
    readme = (ROOT / "README.md").read_text()
    for room in (ROOT / "src" / "rl_lab").iterdir():
        assert not (room / "__init__.py").exists() or re.search(rf"{room.name}/\s+# ", readme), room.name
