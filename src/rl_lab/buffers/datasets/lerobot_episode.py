"""How the lab's episodes are called in a LeRobot dataset.

| lab | LeRobot feature |
|---|---|
| observations (one array) | `observation.state`, or `observation.image` for a picture |
| observations[key] | `observation.<key>` |
| actions | `action` |
| rewards; the end of the episode | `next.reward`; `next.done` and `next.truncated` on the last frame |
| infos[key] | `complementary_info.<key>`; keys that begin with `next.` keep their name |

`meta/rl_lab.json` is an extra file that others ignore: whether observations are one array, and which features of shape
[1] are plain numbers here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.format import Array, DatasetError, Episode, Field
from rl_lab.buffers.datasets.lerobot_format import ACTION, AUTOMATIC, Feature, Info, check_name

_INFO_PREFIX, _OBS_PREFIX = "complementary_info.", "observation."
_REWARD, _DONE, _TRUNCATED = "next.reward", "next.done", "next.truncated"


def columns_of(episode: Episode) -> dict[str, Array]:
    """Return an episode's arrays [T, ...] under LeRobot's names, pictures still [C, H, W]."""
    if isinstance(episode.actions, dict):
        found = ", ".join(episode.actions)
        raise DatasetError(f"LeRobot has one {ACTION!r}, the episode has a dict of {found}: write the format lab")
    if isinstance(episode.observations, dict):
        columns = {f"{_OBS_PREFIX}{key}": array for key, array in episode.observations.items()}
    else:
        is_image = episode.fields()["observations"].is_image
        columns = {f"{_OBS_PREFIX}{'image' if is_image else 'state'}": episode.observations}
    ends = np.zeros(len(episode), dtype=np.bool_)
    ends[-1] = True
    columns |= {ACTION: episode.actions, _REWARD: episode.rewards.astype(np.float32)}
    columns |= {_DONE: ends, _TRUNCATED: ends & episode.truncated}
    for key, array in episode.infos.items():
        columns[key if key.startswith("next.") else f"{_INFO_PREFIX}{key}"] = array
    for name in columns:
        check_name("an episode for LeRobot", name)
    return columns


def automatic_columns(number: int, begin: int, length: int, fps: float, task: int) -> dict[str, Array]:
    """Return the columns that every LeRobot dataset has, of an episode that begins at this frame."""
    steps = np.arange(length)
    columns = {
        "timestamp": steps / fps,
        "frame_index": steps,
        "episode_index": np.full(length, number),
        "index": begin + steps,
        "task_index": np.full(length, task),
    }
    return {name: values.astype(AUTOMATIC[name]) for name, values in columns.items()}


def infer_info(episode: Episode, fps: float, pictures: str, robot_type: str | None = None) -> Info:
    """Return the description of a new dataset that begins with this episode; `pictures` is their dtype."""
    columns = columns_of(episode)
    features = {name: feature_of(array, pictures=pictures) for name, array in columns.items()}
    features |= {name: Feature(dtype, (1,)) for name, dtype in AUTOMATIC.items()}
    return Info(
        fps=fps,
        features=features,
        robot_type=robot_type,
        is_one_array=not isinstance(episode.observations, dict),
        scalars=frozenset(name for name, array in columns.items() if array.ndim == 1),
        is_ours=True,
    )


def feature_of(array: Array, declared: Feature | None = None, pictures: str = "image") -> Feature:
    """Return the feature of an array [T, ...]: a picture is one unless it was declared as plain numbers."""
    field = Field(str(array.dtype), array.shape[1:])
    if field.is_image and (declared is None or declared.is_picture):
        channels, height, width = field.shape
        dtype = pictures if declared is None else declared.dtype
        return Feature(dtype, (height, width, channels), ["height", "width", "channels"])
    if len(field.shape) > 5:
        raise DatasetError(f"an array of {len(field.shape)} dimensions cannot be a LeRobot feature: 5 are the most")
    return Feature(field.dtype, field.shape or (1,))


def episode_of(info: Info, columns: Mapping[str, Array], task: str | None, *, done_means: str, where: str) -> Episode:
    """Return the episode whose arrays lie under LeRobot's names, pictures already [C, H, W]."""
    steps = len(columns[ACTION])
    values = {name: array.reshape(steps) if name in info.scalars else array for name, array in columns.items()}
    observations: Any = {k.removeprefix(_OBS_PREFIX): a for k, a in values.items() if k.startswith(_OBS_PREFIX)}
    if not observations:
        raise DatasetError(f"{where} has no feature that begins with {_OBS_PREFIX!r} (it has: {', '.join(columns)})")
    last: Any = {key: array[-1] for key, array in observations.items()}
    if info.is_one_array and len(observations) == 1:
        (observations,), (last,) = observations.values(), last.values()
    rewards = values.get(_REWARD, np.zeros(steps, dtype=np.float32)).reshape(steps).astype(np.float32)
    terminated = _is_terminated(values, done_means, where)
    return Episode(
        observations=observations,
        actions=values[ACTION],
        rewards=rewards,
        terminated=terminated,
        truncated=not terminated,
        final_observation=last,
        infos={k.removeprefix(_INFO_PREFIX): _flat(a) for k, a in values.items() if _is_info(k)},
        task=task,
        has_final_observation=False,
    )


def _is_terminated(values: Mapping[str, Array], done_means: str, where: str) -> bool:
    """Return whether the episode's last frame ended its task; one that says nothing was cut."""
    if _DONE not in values or done_means == "ignored":
        return False
    done = values[_DONE].reshape(-1).astype(bool)
    if done[:-1].any():
        frame = int(done.argmax())
        raise DatasetError(
            f"{where}: {_DONE} is true at frame {frame} of {len(done)}, before the end (done_means: ignored takes it)"
        )
    if _TRUNCATED in values:
        return bool(done[-1]) and not bool(values[_TRUNCATED].reshape(-1)[-1])
    return bool(done[-1]) and done_means == "terminated"


def _is_info(feature: str) -> bool:
    return feature not in (ACTION, _REWARD, _DONE, _TRUNCATED) and not feature.startswith(_OBS_PREFIX)


def _flat(array: Array) -> Array:
    """Return a column of shape [1] as plain numbers: that is what every info is."""
    return array.reshape(len(array)) if array.shape[1:] == (1,) else array
