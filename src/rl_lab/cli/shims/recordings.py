"""What Hi-ORS's manual looks at recordings with: LeRobot's `visualize_dataset` and `tools/merge_video.py`."""

from __future__ import annotations

from pathlib import Path

from rl_lab.cli.shims.flags import OWN, Flag, Translation, no_effect, read_flags

PAGE = "the page is a file, for any browser"
VISUALIZE = {
    "repo-id": OWN,
    "root": OWN,
    "episode-index": OWN,
    "output-dir": OWN,
    "local-files-only": no_effect("nothing is downloaded"),
    "save": no_effect(PAGE),
    **dict.fromkeys(("mode", "ws-port", "web-port"), no_effect(PAGE)),
    **dict.fromkeys(("batch-size", "num-workers", "tolerance-s"), no_effect("an episode is read at once")),
}
MERGE = {"video_folder": OWN, "output_path": OWN, "fps": Flag(option="--fps")}


def visualize(program: str, given: list[str]) -> Translation:
    """Translate `visualize_dataset --repo-id NAME --root DATASET --episode-index N` to a page of that episode."""
    read = read_flags(program, given, VISUALIZE)
    read.no_others()
    name, number = read.need("repo-id"), read.number("episode-index", 0)
    page = Path(read.get("output-dir") or ".") / f"{name.replace('/', '_')}_episode_{number}.html"
    command = ["data", "export", read.get("root") or name, str(page), "--to", "html", "--episodes", str(number)]
    return Translation(command, read.notes)


def merge_video(program: str, given: list[str]) -> Translation:
    """Translate `merge_video.py --video_folder FOLDER --output_path FILE --fps N`."""
    read = read_flags(program, given, MERGE)
    read.no_others()
    return Translation(
        ["data", "splice", read.need("video_folder"), read.need("output_path"), *read.translated], read.notes
    )
