"""`lab data` from what is typed to what is written."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from rl_lab.buffers.datasets.open import open_dataset, open_writer, read_episodes
from tests.buffers.dataset_parts import assert_same_episode
from tests.buffers.test_dataset_tools import simple

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def camera(steps=5, seed=0):
    return np.random.default_rng(seed).integers(0, 255, (steps, 3, 16, 16), dtype=np.uint8)


@pytest.fixture
def plain(place):
    with open_writer("plain", "lab", robot="arm", steps_per_second=10.0) as writer:
        writer.save(simple())
        writer.save(simple(8, verdict=-1.0, notes={}))
    return place / "plain"


@pytest.fixture
def seen(place):
    with open_writer("seen", "lab", robot="arm", steps_per_second=10.0) as writer:
        for seed, steps in enumerate((5, 7, 4)):
            writer.save(simple(steps, camera=camera(steps, seed), notes={}, task="<script>alert(1)</script>"))
    return place / "seen"


def test_list_shows_what_is_there_and_what_is_damaged(lab, plain, seen):
    (seen / "episode-000001.safetensors").write_bytes(b"short")
    rows = json.loads(lab("data", "list", ".", "--json").output)
    assert [(row["dataset"], row["format"], row.get("episodes")) for row in rows] == [
        ("plain", "lab", 2),
        ("seen", "lab", None),
    ]
    assert rows[0]["problem"] is None
    assert "has 5 bytes instead of" in rows[1]["problem"]
    assert "plain" in lab("data", "list", ".").output
    assert lab("data", "list", "conf").output.endswith("no datasets below conf\n")


def test_show_tells_lengths_interventions_verdicts_and_tasks(lab, plain, fails):
    shown = json.loads(lab("data", "show", "plain", "--json").output)
    assert (shown["robot"], shown["steps_per_second"], shown["steps"]) == ("arm", 10.0, 13)
    assert [row["verdict"] for row in shown["rows"]] == ["success", "failure"]
    text = lab("data", "show", "plain", "--episodes", "1").output
    assert "interventions: 50.0% of steps; successes: 0 of 1" in text
    assert "has no episode 7 (it has 0 to 1)" in fails(lab("data", "show", "plain", "--episodes", "7"), 1)
    assert "--episodes x: expected numbers such as 0,3,5-8" in fails(lab("data", "show", "plain", "--episodes", "x"), 2)
    assert "--episodes 1-0 names none" in fails(lab("data", "show", "plain", "--episodes", "1-0"), 2)
    assert "nowhere is neither a directory nor a run" in fails(lab("data", "show", "nowhere"), 2)
    assert "holds no dataset" in fails(lab("data", "show", "conf"), 1)
    assert lab("data", "show", "packaged/two_roads", "--episodes", "0").exit_code == 0


def test_a_task_in_brackets_is_text(lab, place):
    with open_writer("bracketed", "lab", robot="arm", steps_per_second=10.0) as writer:
        writer.save(simple(4, notes={}, task="[/x] [red]"))
    shown = lab("data", "show", "bracketed")
    assert shown.exit_code == 0, shown.output
    assert "[/x]" in shown.output
    assert "[red]" in shown.output


def test_formats_go_round_and_lose_nothing_but_the_final_observation(lab, plain):
    pytest.importorskip("pyarrow")
    for source, target, to in (("plain", "a", "csv"), ("a", "b", "lerobot"), ("b", "c", "lab"), ("c", "d", "csv")):
        result = lab("data", "export", source, target, "--to", to)
        assert result.output == f"exported: {target}, 2 episodes\n"
    for found, wanted in zip(read_episodes("d"), read_episodes("plain"), strict=True):
        assert_same_episode(found, wanted, final=False)
        assert found.notes == wanted.notes
    assert (open_dataset("d").robot, open_dataset("d").steps_per_second) == ("arm", 10.0)


def test_merge_joins_and_refuses_another_robot(lab, plain, seen, fails):
    assert lab("data", "merge", "both", "plain", "plain").output == "merged: both, 4 episodes of 2 datasets\n"
    assert [len(episode) for episode in read_episodes("both")] == [5, 8, 5, 8]
    line = fails(lab("data", "merge", "none", "plain", "seen"), 1)
    assert "seen does not fit plain: observations/camera is new (uint8[3, 16, 16])" in line
    assert "both exists and is not overwritten" in fails(lab("data", "merge", "both", "plain"), 2)
    assert "unknown --format 'zip'" in fails(lab("data", "merge", "x", "plain", "--format", "zip"), 2)
    assert not (plain.parent / "none").exists()


def test_export_refuses_what_cannot_be(lab, plain, seen, fails):
    assert "no place for pictures: observations/camera" in fails(lab("data", "export", "seen", "t", "--to", "csv"), 1)
    assert lab("data", "export", "seen", "t", "--to", "csv", "--leave-out", "camera").exit_code == 0
    assert list(open_dataset("t").read(0).observations) == ["state"]
    line = fails(lab("data", "export", "seen", "u", "--to", "lab", "--leave-out", "camra"), 2)
    assert "unknown --leave-out 'camra'; did you mean 'camera'?" in line
    assert lab("data", "export", "seen", "u", "--to", "zip").exit_code == 2


def test_stats_reads_everything_and_fails_on_damage(lab, plain, fails):
    found = json.loads(lab("data", "stats", "plain", "--json").output)
    assert found["statistics"]["rewards"]["count"] == 13
    assert found["statistics"]["actions"]["mean"] == pytest.approx(0.1)
    assert found["damage"] == []
    assert "--repair: only LeRobot keeps statistics" in fails(lab("data", "stats", "plain", "--repair"), 2)
    path = plain / "episode-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    result = lab("data", "stats", "plain")
    assert result.exit_code == 1
    assert "damaged: episode 1: " in result.stderr
    assert "was changed" in result.stderr


@pytest.mark.parametrize("format", ["lab", "lerobot"])
def test_what_is_whole_is_saved_from_a_truncated_dataset(lab, plain, fails, format):
    pytest.importorskip("pyarrow")
    if format == "lerobot":
        with open_writer("le", "lerobot", fps=10, data_mb=0) as writer:
            for episode in read_episodes("plain"):
                writer.save(episode)
    place = {"lab": "plain/episode-000000.safetensors", "lerobot": "le/data/chunk-000/file-000.parquet"}[format]
    name, path = place.split("/")[0], plain.parent / place
    path.write_bytes(path.read_bytes()[:100])
    line = fails(lab("data", "show", name), 1)
    assert str(place) in line
    result = lab("data", "stats", name)
    assert result.exit_code == 1
    assert result.stderr.startswith("damaged: episode 0: ")
    assert "2 episodes, 0 notes, 1 damaged" in result.output
    assert str(place) in fails(lab("data", "export", name, "saved", "--to", "lab"), 1)
    result = lab("data", "export", name, "saved", "--to", "lab", "--skip-damaged")
    assert result.stderr.startswith("skipped: episode 0: ")
    assert [len(episode) for episode in read_episodes("saved")] == [8]


def test_stats_repairs_what_lerobot_keeps(lab, plain):
    pytest.importorskip("pyarrow")
    lab("data", "export", "plain", "le", "--to", "lerobot")
    path = plain.parent / "le" / "meta" / "stats.json"
    path.write_text(path.read_text().replace('"max": [\n            1.0', '"max": [\n            9.0', 1))
    wrong = lab("data", "stats", "le")
    assert wrong.exit_code == 1
    assert "meta/stats.json: max of next.reward is [9] instead of [1]" in wrong.stderr
    assert "1 statistics were wrong and are repaired" in lab("data", "stats", "le", "--repair").output
    assert lab("data", "stats", "le").exit_code == 0


def test_the_page_holds_everything_and_asks_no_network(lab, seen, fails):
    result = lab("data", "export", "seen", "page.html", "--to", "html", "--episodes", "0,2", "--every", "2")
    assert result.output.startswith("exported: page.html, 2 episodes")
    page = (seen.parent / "page.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|<link|@import", page)
    assert "<script>alert" not in page
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S).group(1))
    assert [episode["steps"] for episode in data["episodes"]] == [5, 4]
    assert data["episodes"][0]["interventions"] == [[1, 2], [3, 4]]
    assert len(data["episodes"][0]["cameras"]["camera"]) == 3  # steps 0, 2 and 4
    assert data["episodes"][0]["series"]["actions"] == [[0.1] * 5]
    assert "page.html exists and is not overwritten" in fails(
        lab("data", "export", "seen", "page.html", "--to", "html"), 2
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_the_page(lab, seen):
    lab("data", "export", "seen", "page.html", "--to", "html")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    command += [f"--user-data-dir={seen.parent / 'chromium'}", (seen.parent / "page.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert "step 0 of 5, 0.0 s" in shown
    assert "2 steps by somebody in 2 takeovers" in shown
    assert re.search(r'<img alt="camera" src="data:image/(jpeg|png);base64,', shown)
    assert "observations/state [" in shown
    assert shown.count("<option") == 3


def test_films_of_many_episodes_and_of_one(lab, seen, plain, fails):
    result = lab("data", "timelapse", "seen", "film", "--columns", "2", "--every", "2")
    (path,) = seen.parent.glob("film.*")
    assert result.output == f"film: {path.name}\n"
    assert f"{path.name} exists and is not overwritten" in fails(lab("data", "timelapse", "seen", path.name), 2)
    result = lab("data", "replay", "seen", "--episode", "2", "--recorded-film", "one.mp4", "--camera", "camera")
    assert result.exit_code == 0, result.output
    assert "there is nothing to film" in fails(lab("data", "timelapse", "plain", "x"), 2)
    line = fails(lab("data", "timelapse", "seen", "x", "--camera", "top"), 2)
    assert "unknown --camera 'top' (choices: camera)" in line
    assert not list(seen.parent.glob("x.*"))


def test_what_cannot_be_spliced_is_one_line(lab, seen, fails):
    folder = seen.parent / "films"
    folder.mkdir()
    assert "films has no films (*.mp4)" in fails(lab("data", "splice", "films", "all"), 2)
    (folder / "a.mp4").write_bytes(b"short")
    assert "a.mp4 is not a video" in fails(lab("data", "splice", "films", "all"), 1)
    (seen.parent / "all.mp4").touch()
    (seen.parent / "all.png").touch()
    assert "exists and is not overwritten" in fails(lab("data", "splice", "films", "all"), 2)


def test_the_frame_marks_who_acted(seen):
    from rl_lab.cli.data.films import ORANGE, _frames

    frames = _frames(open_dataset("seen").read(0), None, 1)
    assert frames.shape == (5, 16, 16, 3)
    assert [bool((frames[step, 0] == ORANGE).all()) for step in range(5)] == [False, True, False, True, False]
    original = open_dataset("seen").read(0).observations["camera"][1].transpose(1, 2, 0)
    assert np.array_equal(frames[1, 1:-1, 1:-1], original[1:-1, 1:-1])


def test_rerun_is_an_extra(lab, plain, fails):
    try:
        import rerun  # noqa: F401
    except ModuleNotFoundError:
        line = fails(lab("data", "export", "plain", "a.rrd", "--to", "rerun"), 2)
        assert "rerun is not installed: pip install 'rl-lab[rerun]'" in line
        return
    assert lab("data", "export", "plain", "a.rrd", "--to", "rerun").exit_code == 0
    assert (plain.parent / "a.rrd").read_bytes()[:3] == b"RRF"
