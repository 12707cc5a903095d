import json
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_lab.buffers.datasets.format import DatasetError, Episode
from rl_lab.buffers.datasets.lerobot_reader import LeRobotReader
from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter, compact_lerobot
from rl_lab.buffers.datasets.open import open_dataset
from rl_lab.core import ConfigError
from tests.buffers.dataset_parts import assert_same_episode, make_episode

THEIRS = Path(__file__).with_name("lerobot_written")  # by lerobot 0.4.4
DATA = "data/chunk-000/file-000.parquet"
META = "meta/episodes/chunk-000/file-000.parquet"


def write(path, episodes, **options):
    with LeRobotWriter(path, **{"fps": 10, **options}) as writer:
        return [writer.save(episode) for episode in episodes]


def files(path, folder):
    return sorted(p.relative_to(path / folder).as_posix() for p in (path / folder).rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three episodes, joined into one file."""
    path = tmp_path_factory.mktemp("three") / "data"
    write(path, EPISODES)
    return path


EPISODES = [make_episode(n, n + 3, truncated=n == 1, task=f"task {n % 2}") for n in range(3)]


def test_numbers_flags_and_png_pictures_come_back_bit_for_bit(three):
    for found, wanted in zip(open_dataset(three).episodes(), EPISODES, strict=True):
        assert_same_episode(found, wanted, final=False)
        np.testing.assert_array_equal(found.final_observation["camera"], wanted.observations["camera"][-1])


def test_one_array_and_plain_numbers_keep_their_shapes(tmp_path):
    episode = make_episode(0, plain=True, task=None)
    discrete = Episode(**{**vars(episode), "actions": np.array([0, 2, 1, 1, 0])})
    write(tmp_path, [discrete])
    (found,) = LeRobotReader(tmp_path).episodes()
    assert_same_episode(found, discrete, final=False)
    features = json.loads((tmp_path / "meta/info.json").read_text())["features"]
    assert features["observation.state"]["shape"] == [4]
    assert features["action"] == {"dtype": "int64", "shape": [1], "names": None}


def test_truncation_and_interventions_survive_to_disk_and_back(three):
    """The others lose both: no flag for a time limit, interventions written as zeros."""
    table = pq.read_table(three / DATA)
    ends = np.cumsum([len(e) for e in EPISODES]) - 1
    assert np.flatnonzero(table["next.done"].to_numpy()).tolist() == ends.tolist()
    assert np.flatnonzero(table["next.truncated"].to_numpy()).tolist() == [ends[1]]
    wanted = np.concatenate([e.infos["is_intervention"] for e in EPISODES])
    assert 0 < wanted.sum() < len(wanted)
    np.testing.assert_array_equal(table["complementary_info.is_intervention"].to_numpy(), wanted)
    read = list(LeRobotReader(three).episodes())
    assert [e.truncated for e in read] == [False, True, False]
    np.testing.assert_array_equal(np.concatenate([e.infos["is_intervention"] for e in read]), wanted)


def test_statistics_are_those_of_the_numbers(three):
    """Pictures too: squares of uint8 overflow, which gave a std of 0.0004 elsewhere."""
    stats = json.loads((three / "meta/stats.json").read_text())
    pictures = np.concatenate([e.observations["camera"] for e in EPISODES]) / 255  # [T, C, H, W]
    camera = stats["observation.camera"]
    assert np.shape(camera["std"]) == (3, 1, 1)
    np.testing.assert_allclose(np.ravel(camera["std"]), pictures.std((0, 2, 3)))
    np.testing.assert_allclose(np.ravel(camera["mean"]), pictures.mean((0, 2, 3)))
    np.testing.assert_allclose(np.ravel(camera["max"]), pictures.max((0, 2, 3)))
    actions = np.concatenate([e.actions for e in EPISODES]).astype(float)
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0))
    np.testing.assert_allclose(stats["action"]["min"], actions.min(0))
    assert stats["action"]["count"] == [12]
    grid = np.concatenate([e.observations["grid"] for e in EPISODES]).reshape(-1, 3)
    np.testing.assert_allclose(stats["observation.grid"]["mean"], grid.mean(0))


def test_quantiles_of_an_episode_are_exact(tmp_path):
    episode = make_episode(3, 7)
    write(tmp_path, [episode])
    row = pq.read_table(tmp_path / META).to_pylist()[0]
    for name, share in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
        wanted = np.quantile(episode.observations["camera"] / 255, share, axis=(0, 2, 3))
        np.testing.assert_allclose(np.ravel(row[f"stats/observation.camera/{name}"]), wanted)
        np.testing.assert_allclose(
            row[f"stats/action/{name}"], np.quantile(episode.actions.astype(float), share, axis=0)
        )


def test_jpeg_pictures_are_near(tmp_path):
    write(tmp_path, EPISODES[:1], pictures="jpeg", jpeg_quality=95)
    (found,) = LeRobotReader(tmp_path).episodes()
    assert_same_episode(found, EPISODES[0], final=False, lossy=("observations/camera",))


@pytest.mark.parametrize("codec", ["libsvtav1", "h264"])
def test_every_frame_of_a_video_is_found_at_its_time(tmp_path, codec):
    """Neighbouring frames differ by 6, so a shift would show; also after the videos were joined, and added to."""
    write(tmp_path, EPISODES[:2], pictures="video", video_codec=codec, video_crf=8)
    assert files(tmp_path, "videos") == ["observation.camera/chunk-000/file-000.mp4"]
    write(tmp_path, EPISODES[2:], video_crf=8)
    assert files(tmp_path, "videos") == ["observation.camera/chunk-000/file-000.mp4"]
    reader = LeRobotReader(tmp_path)
    for number in (2, 0, 1):
        assert_same_episode(reader.read(number), EPISODES[number], final=False, lossy=("observations/camera",))
    info = json.loads((tmp_path / "meta/info.json").read_text())["features"]["observation.camera"]["info"]
    assert info["video.codec"] == {"libsvtav1": "av1", "h264": "h264"}[codec]
    row = pq.read_table(tmp_path / META).to_pylist()[1]
    assert row["videos/observation.camera/from_timestamp"] == pytest.approx(0.3)
    assert row["videos/observation.camera/to_timestamp"] == pytest.approx(0.7)


def test_close_joins_files_up_to_a_limit(tmp_path):
    write(tmp_path, EPISODES, data_mb=0)
    assert len(files(tmp_path, "data")) == len(files(tmp_path, "meta/episodes")) == 3
    size = max(p.stat().st_size for p in tmp_path.glob("data/*/*")) / 2**20
    compact_lerobot(tmp_path, data_mb=2.5 * size)
    assert files(tmp_path, "data") == ["chunk-000/file-000.parquet", "chunk-000/file-001.parquet"]
    write(tmp_path, [make_episode(3)], data_mb=2.5 * size)  # takes the room that is left
    assert len(files(tmp_path, "data")) == 2
    compact_lerobot(tmp_path)
    assert files(tmp_path, "data") == files(tmp_path, "meta/episodes") == ["chunk-000/file-000.parquet"]
    assert pq.ParquetFile(tmp_path / DATA).metadata.num_row_groups == 4
    for found, wanted in zip(LeRobotReader(tmp_path).episodes(), [*EPISODES, make_episode(3)], strict=True):
        assert_same_episode(found, wanted, final=False)


def test_what_lerobot_wrote_is_read_frame_by_frame():
    reader = open_dataset(THEIRS)
    assert list(reader.lengths) == [4, 6]
    for number, episode in enumerate(reader.episodes()):
        steps = np.arange(len(episode))
        obs = episode.observations
        np.testing.assert_array_equal(obs["state"], np.stack([0 * steps + number, steps, number * steps], 1))
        np.testing.assert_array_equal(obs["grid"], 10 * number + steps[:, None, None] + np.arange(6).reshape(2, 3))
        for key, size, error in (("images.top", (6, 8), 0), ("images.wrist", (48, 64), 1)):
            plane = np.add.outer(np.arange(size[0]), np.arange(size[1])) + 40 * number
            wanted = plane + 10 * np.arange(3)[:, None, None] + 8 * steps[:, None, None, None]
            assert np.abs(obs[key].astype(int) - wanted).mean((1, 2, 3)).max() <= error  # the next frame is 8 off
        np.testing.assert_array_equal(episode.actions, np.stack([steps / 8, -steps / 8], 1))
        np.testing.assert_array_equal(episode.rewards, steps)
        np.testing.assert_array_equal(episode.infos["is_intervention"], steps % 2 == 1)
        assert (episode.terminated, episode.truncated, episode.task) == (number == 0, number == 1, f"task {number}")


def test_what_lerobot_wrote_can_be_added_to(tmp_path):
    path = shutil.copytree(THEIRS, tmp_path / "copy")
    first = LeRobotReader(path).read(0)
    more = Episode(**{**vars(first), "rewards": first.rewards + 1, "task": "new"})
    edit_info(path, lambda info: info.update(chunks_size=500, note="of others"))
    write(path, [more])
    info = json.loads((path / "meta/info.json").read_text())
    assert (info["chunks_size"], info["note"], info["total_episodes"]) == (500, "of others", 3)
    reader = LeRobotReader(path)
    assert_same_episode(reader.read(0), first, final=False)
    assert_same_episode(reader.read(2), more, final=False, lossy=("observations/images.wrist",))
    assert len(files(path, "videos")) == 2  # streams of two encoders are not joined
    schemas = {str(pq.read_schema(p)) for p in path.glob("meta/episodes/*/*")}
    assert len(schemas) == 1


def test_done_without_truncated_means_what_one_says(tmp_path):
    write(tmp_path, [EPISODES[0]], data_mb=0)
    edit_info(tmp_path, lambda info: info["features"].pop("next.truncated"))
    ends = {m: LeRobotReader(tmp_path, done_means=m).read(0).terminated for m in ("terminated", "truncated", "ignored")}
    assert ends == {"terminated": True, "truncated": False, "ignored": False}


def test_done_before_the_end_is_not_passed_over(tmp_path):
    write(tmp_path, [EPISODES[0]])
    edit_column(tmp_path, "next.done", lambda values: [False, True, True])
    with pytest.raises(DatasetError, match="next.done is true at frame 1 of 3, before the end"):
        LeRobotReader(tmp_path).read(0)
    assert LeRobotReader(tmp_path, done_means="ignored").read(0).truncated


def test_an_unfinished_episode_is_taken_out_again(tmp_path):
    """A writer that died between an episode's files and info.json: statistics and tasks forget it too."""
    write(tmp_path, EPISODES[:2], data_mb=0)
    before = {name: (tmp_path / "meta" / name).read_bytes() for name in ("info.json", "stats.json", "tasks.parquet")}
    write(tmp_path, [make_episode(7, task="another")], data_mb=0)
    (tmp_path / "meta/info.json").write_bytes(before["info.json"])
    (tmp_path / "data/chunk-000/.tmp-1-file-003.parquet").touch()
    assert len(LeRobotReader(tmp_path).lengths) == 2
    LeRobotWriter(tmp_path, data_mb=0).close()
    assert len(files(tmp_path, "data")) == len(files(tmp_path, "meta/episodes")) == 2
    stats = [json.loads(s) for s in (before["stats.json"], (tmp_path / "meta/stats.json").read_bytes())]
    for name, entry in stats[0].items():
        np.testing.assert_allclose(stats[1][name]["mean"], entry["mean"])
    assert pq.read_table(tmp_path / "meta/tasks.parquet")["task_index"].to_pylist() == [0, 1]
    write(tmp_path, EPISODES[2:])
    assert_same_episode(LeRobotReader(tmp_path).read(2), EPISODES[2], final=False)


def test_files_of_others_are_not_removed(tmp_path):
    path = shutil.copytree(THEIRS, tmp_path / "copy")
    orphan = path / "data/chunk-000/file-007.parquet"
    orphan.write_bytes(b"?")
    with pytest.raises(DatasetError, match="file-007.parquet belongs to no episode"):
        LeRobotWriter(path)
    assert orphan.exists()
    (tmp_path / "note.txt").touch()
    with pytest.raises(DatasetError, match="is not empty and has no"):
        LeRobotWriter(tmp_path, fps=10)


def test_a_writer_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(ConfigError, match="fps is needed"):
        LeRobotWriter(tmp_path / "new")
    write(tmp_path / "data", EPISODES[:1])
    with pytest.raises(DatasetError, match="has fps 10, not 30"):
        LeRobotWriter(tmp_path / "data", fps=30)
    with LeRobotWriter(tmp_path / "data") as writer:
        with pytest.raises(DatasetError, match="'observation.camera'"):
            writer.save(make_episode(1, plain=True))
        wide = Episode(**{**vars(EPISODES[0]), "actions": np.zeros((3, 4), dtype=np.float32)})
        with pytest.raises(DatasetError, match=re.escape("'action' is float32[4] instead of float32[2]")):
            writer.save(wide)
    assert len(LeRobotReader(tmp_path / "data").lengths) == 1
    pictures = np.zeros((5, 3, 5, 8), np.uint8)
    odd = Episode(**{**vars(make_episode(0, plain=True)), "observations": pictures, "final_observation": pictures[0]})
    with LeRobotWriter(tmp_path / "odd", fps=10, pictures="video") as writer, pytest.raises(DatasetError, match="even"):
        writer.save(odd)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "fps must be positive"),
        ({"pictures": "gif"}, "unknown way to keep pictures 'gif'"),
        ({"jpeg_quality": 0}, "jpeg_quality must be 1 to 95"),
        ({"video_codec": "divx"}, "unknown video codec 'divx'"),
    ],
)
def test_options_of_a_writer_are_checked_before_anything_is_made(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        LeRobotWriter(tmp_path / "new", **{"fps": 10, **options})
    assert not (tmp_path / "new").exists()


def edit_info(path, change):
    info = json.loads((path / "meta/info.json").read_text())
    change(info)
    (path / "meta/info.json").write_text(json.dumps(info))


def edit_column(path, name, change):
    table = pq.read_table(path / DATA)
    field = table.schema.field(name)
    column = pa.array(change(table[name].to_pylist()), field.type)
    pq.write_table(table.set_column(table.schema.get_field_index(name), field, column), path / DATA)


def edit_table(path, file, change):
    pq.write_table(change(pq.read_table(path / file)), path / file)


def rename_feature(path, name):
    edit_info(path, lambda info: info["features"].update({name: info["features"].pop("observation.camera")}))


def bomb(width, height):
    """Return a PNG that says it is large and holds next to nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def with_a_file_below_zero(table):
    column = pa.array([0, 0, -1], pa.int64())
    return table.set_column(table.schema.get_field_index("data/file_index"), "data/file_index", column)


def without_a_file(table):
    column = pa.array([0, None, 0], pa.int64())
    return table.set_column(table.schema.get_field_index("data/file_index"), "data/file_index", column)


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def spoil_picture(values):
    return [{**values[0], "bytes": values[0]["bytes"][:40]}, *values[1:]]


DAMAGE = {
    "info.json is not JSON": lambda p: (p / "meta/info.json").write_text("{"),
    "v2.1 is older": lambda p: edit_info(p, lambda info: info.update(codebase_version="v2.1")),
    "v4.0 is newer than this lab reads": lambda p: edit_info(p, lambda info: info.update(codebase_version="v4.0")),
    "codebase_version is None": lambda p: edit_info(p, lambda info: info.pop("codebase_version")),
    "fps is 0": lambda p: edit_info(p, lambda info: info.update(fps=0)),
    "does not fit fps 30": lambda p: edit_info(p, lambda info: info.update(fps=30)),
    "total_episodes is '3'": lambda p: edit_info(p, lambda info: info.update(total_episodes="3")),
    "has no row of episode 3": lambda p: edit_info(p, lambda info: info.update(total_episodes=4)),
    "info.json says 99": lambda p: edit_info(p, lambda info: info.update(total_frames=99)),
    "has no 'action'": lambda p: edit_info(p, lambda info: info["features"].pop("action")),
    "data_path is 'data/{chunk_index}.parquet'": lambda p: edit_info(
        p, lambda info: info.update(data_path="data/{chunk_index}.parquet")
    ),
    "features has the name '../../secret'": lambda p: rename_feature(p, "../../secret"),
    "features has the name 'a\\\\b'": lambda p: rename_feature(p, "a\\b"),
    "features has the name '..'": lambda p: rename_feature(p, ".."),
    "features has the name 'a\\x00b'": lambda p: rename_feature(p, "a\0b"),
    "features has the name ''": lambda p: rename_feature(p, ""),
    "video_path is '/etc/{video_key}.mp4'": lambda p: edit_info(
        p, lambda info: info.update(video_path="/etc/{video_key}.mp4")
    ),
    "is more than the 67108864 pixels": lambda p: edit_info(
        p, lambda i: i["features"]["observation.camera"].update(shape=[1 << 20, 1 << 20, 3])
    ),
    "row 0 is not a picture (Image size (100000000 pixels)": lambda p: edit_column(
        p, "observation.camera", lambda v: [{**v[0], "bytes": bomb(10_000, 10_000)}, *v[1:]]
    ),
    "row 0 is not a picture (Image size (10000000000 pixels)": lambda p: edit_column(
        p, "observation.camera", lambda v: [{**v[0], "bytes": bomb(100_000, 100_000)}, *v[1:]]
    ),
    "row 0 is not a picture (cannot identify": lambda p: edit_column(
        p, "observation.camera", lambda v: [{**v[0], "bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n"}, *v[1:]]
    ),
    "scalars is not a list of features": lambda p: (p / "meta/rl_lab.json").write_text('{"scalars": ["action"]}'),
    "episode 2 lacks a number, or has one below 0": lambda p: edit_table(p, META, with_a_file_below_zero),
    "episode 1 lacks a number": lambda p: edit_table(p, META, without_a_file),
    "unknown dtype 'complex64'": lambda p: edit_info(p, lambda i: i["features"]["action"].update(dtype="complex64")),
    "'action' has a list of 2 instead of 5": lambda p: edit_info(
        p, lambda i: i["features"]["action"].update(shape=[5])
    ),
    "'action' is float32 instead of float64": lambda p: edit_info(
        p, lambda i: i["features"]["action"].update(dtype="float64")
    ),
    "'action' has fewer dimensions": lambda p: edit_info(p, lambda i: i["features"]["action"].update(shape=[2, 1])),
    "'observation.camera', row 0 is 16 x 16 instead of 8 x 16": lambda p: edit_info(
        p, lambda i: i["features"]["observation.camera"].update(shape=[8, 16, 3])
    ),
    "file-000.parquet is not whole: it has no Parquet footer": lambda p: cut(p / DATA),
    "file-000.parquet is missing": lambda p: (p / DATA).unlink(),
    "has no column 'next.reward'": lambda p: edit_table(p, DATA, lambda table: table.drop_columns(["next.reward"])),
    "has 4 of 5 frames": lambda p: edit_table(p, DATA, lambda t: t.slice(0, len(t) - 1)),
    "frame_index is 9 instead of 0 at frame 0": lambda p: edit_column(p, "frame_index", lambda v: [9, *v[1:]]),
    "'action' lacks 1 values": lambda p: edit_column(p, "action", lambda v: [None, *v[1:]]),
    "row 0 is not a picture": lambda p: edit_column(p, "observation.camera", spoil_picture),
    "row 0 has no picture": lambda p: edit_column(p, "observation.camera", lambda v: [None, *v[1:]]),
    "is outside the dataset": lambda p: edit_column(
        p, "observation.camera", lambda v: [{"bytes": None, "path": "../../secret.png"}, *v[1:]]
    ),
    "lacks the column or value 'length'": lambda p: edit_table(p, META, lambda t: t.drop_columns(["length"])),
    "episode_index 0 occurs twice": lambda p: edit_table(p, META, lambda t: pa.concat_tables([t, t.slice(0, 1)])),
    "task_index 0 is not in meta/tasks.parquet": lambda p: edit_table(p, "meta/tasks.parquet", lambda t: t.slice(1)),
    "has no columns task_index": lambda p: edit_table(
        p, "meta/tasks.parquet", lambda t: t.drop_columns(["task_index"])
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_told_in_one_line_that_names_the_file(three, tmp_path, message):
    path = shutil.copytree(three, tmp_path / "copy")
    DAMAGE[message](path)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        list(LeRobotReader(path).episodes())
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "file-000.mp4 is missing"),
        (lambda path: path.write_bytes(b"no video"), "file-000.mp4 is not a video"),
        (
            lambda path: shutil.copyfile(THEIRS / "videos/observation.images.wrist/chunk-000/file-000.mp4", path),
            "48 x 64",
        ),
    ],
)
def test_a_damaged_video_is_told(tmp_path, spoil, message):
    write(tmp_path, EPISODES[:1], pictures="video", video_codec="h264")
    spoil(tmp_path / "videos/observation.camera/chunk-000/file-000.mp4")
    with pytest.raises(DatasetError, match=message):
        LeRobotReader(tmp_path).read(0)


def test_the_videos_of_a_camera_stay_in_the_dataset(tmp_path):
    write(tmp_path / "data", EPISODES[:1], pictures="video", video_codec="h264")
    (tmp_path / "data/videos/observation.camera").rename(tmp_path / "elsewhere")
    edit_info(
        tmp_path / "data",
        lambda info: info["features"].update({"../../elsewhere": info["features"].pop("observation.camera")}),
    )
    edit_table(
        tmp_path / "data",
        META,
        lambda t: t.rename_columns([name.replace("observation.camera", "../../elsewhere") for name in t.column_names]),
    )
    with pytest.raises(DatasetError, match="features has the name '../../elsewhere'"):
        LeRobotReader(tmp_path / "data")


def test_frames_that_a_video_lacks_are_counted(tmp_path):
    write(tmp_path, EPISODES[:1], pictures="video", video_codec="h264")
    shorter = tmp_path / "shorter"
    write(shorter, [make_episode(0, 2)], pictures="video", video_codec="h264")
    name = "videos/observation.camera/chunk-000/file-000.mp4"
    shutil.copyfile(shorter / name, tmp_path / name)
    with pytest.raises(DatasetError, match=r"no frame at 0\.2000 s \(fps 10, 1 of 3 missing\)"):
        LeRobotReader(tmp_path).read(0)
