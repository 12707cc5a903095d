"""MiniGrid and BabyAI (Chevalier-Boisvert et al., 2023): `MiniGrid-*` and `BabyAI-*`, with the mission as numbers.

Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.hosting.family_options import check_at_least, check_choice, unknown_task
from rl_lab.environments.hosting.foreign import BadOutcome, load_package

OBSERVATIONS = ("symbolic", "one_hot", "rgb", "rgb_full")
PREFIXES = ("MiniGrid-", "BabyAI-")
EXTRA = "minigrid"
PADDING, UNKNOWN = 0, 1  # ids beside those of the words
# Every word that minigrid 3.2 has in its missions. A new one is UNKNOWN until it is added at the end, so that ids and
# trained embeddings stay what they are.
WORDS = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key "
    "lava left matching must near next object of on open opening pick purple put reach red right room rooms square the "
    "then to traverse unlock up use yellow you your"
)
VOCABULARY = tuple(WORDS.split())
WORD_IDS = {word: index for index, word in enumerate(VOCABULARY, start=UNKNOWN + 1)}
# The longest missions there are: one sentence in MiniGrid; in BabyAI four of at most 17 words, and "and", "after you".
MAX_WORDS = {"MiniGrid-": 20, "BabyAI-": 72}

Array = NDArray[Any]
Env = gymnasium.Env[Any, Any]


def make_env(
    name: str,
    *,
    observations: Literal["symbolic", "one_hot", "rgb", "rgb_full"] = "symbolic",
    flat: bool = False,
    direction: bool = True,
    mission: bool = True,
    max_words: int | None = None,
    tile_size: int = 8,
    **env_kwargs: Any,
) -> Env:
    """Return a task of MiniGrid or BabyAI.

    Args:
        name: A registered id, e.g. MiniGrid-DoorKey-8x8-v0.
        observations: Of the `image`: symbolic (object, colour and state of each visible cell, float32 [3, 7, 7]),
            one_hot (the same as [20, 7, 7]), rgb (a picture of what the agent sees, uint8) or rgb_full (of all).
        flat: Give symbolic and one_hot as one vector, for networks without convolutions.
        direction: Observe where the agent faces, a one-hot of four.
        mission: Observe the ids of the mission's words, padded with 0; 1 is a word that is not in `VOCABULARY`.
        max_words: Of a mission; null: 20 in MiniGrid and 72 in BabyAI, which is enough.
        tile_size: Pixels of a cell in a picture.
        env_kwargs: Further arguments of `gymnasium.make`, e.g. render_mode, max_steps or agent_view_size.
    """
    check_choice("observations", observations, OBSERVATIONS)
    load_package("minigrid", name, EXTRA)  # which registers its ids
    if name not in gymnasium.registry:
        raise unknown_task(name, (known for known in gymnasium.registry if known.startswith(PREFIXES)))
    spec = copy.deepcopy(gymnasium.spec(name))
    spec.order_enforce = False  # the lab resets before it steps
    with quiet():
        env: Env = gymnasium.make(spec, disable_env_checker=True, **env_kwargs)
    words = max_words if max_words is not None else next(MAX_WORDS[each] for each in PREFIXES if name.startswith(each))
    check_at_least("max_words", words, 1)
    picture = _picture(observations, env.unwrapped, flat, tile_size)
    return MiniGridObservation(env, picture, direction=direction, max_words=words if mission else 0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what BabyAI prints of the levels that it rejects while it looks for a good one."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def mission_ids(text: str, max_words: int) -> Array:
    """Return the ids of a mission's words, float32 [max_words], padded with 0."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    if len(words) > max_words:
        raise BadOutcome(f"set a mission of {len(words)} words; environment.env_kwargs.max_words is {max_words}")
    ids = np.full(max_words, PADDING, np.float32)
    ids[: len(words)] = [WORD_IDS.get(word, UNKNOWN) for word in words]
    return ids


class MiniGridObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A dict of `image` and, as chosen, `direction` and `mission`; the image alone when neither is."""

    def __init__(self, env: Env, picture: Picture, *, direction: bool, max_words: int) -> None:
        super().__init__(env)
        base: Any = env.unwrapped
        is_fixed = base.spec.id.startswith("MiniGrid-")  # BabyAI draws how long an episode may be
        self.max_episode_steps = int(base.max_steps) if is_fixed else None
        self._picture, self._direction, self._max_words = picture, direction, max_words
        self._text, self._ids = "", mission_ids("", max_words)
        leaves: dict[str, spaces.Space[Any]] = {"image": picture.space}
        if direction:
            leaves["direction"] = spaces.Discrete(4)
        if max_words:
            leaves["mission"] = spaces.Box(PADDING, UNKNOWN + len(VOCABULARY), (max_words,), np.float32)
        self.observation_space = spaces.Dict(leaves) if len(leaves) > 1 else picture.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        with quiet():
            obs, info = self.env.reset(seed=seed, options=options)
        return self._convert(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the task."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._convert(obs), reward, terminated, truncated, info

    def get_state(self) -> dict[str, Any]:
        """Return nothing: all that is observed is in the layer below."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on; there is nothing to restore."""

    def _convert(self, obs: Mapping[str, Any]) -> Any:
        image = self._picture.make(obs["image"])
        if not self._direction and not self._max_words:
            return image
        converted = {"image": image}
        if self._direction:
            converted["direction"] = obs["direction"]
        if self._max_words:
            if obs["mission"] != self._text:
                self._text, self._ids = obs["mission"], mission_ids(obs["mission"], self._max_words)
            converted["mission"] = self._ids.copy()
        return converted


class Picture(NamedTuple):
    """One kind of image: its space and how it is made of the encoded view, [7, 7, 3] unless agent_view_size is set."""

    space: spaces.Box
    make: Callable[[Array], Array]


def _picture(observations: str, base: Any, flat: bool, tile_size: int) -> Picture:
    side = base.agent_view_size
    if observations == "rgb":
        pixels = spaces.Box(0, 255, (side * tile_size, side * tile_size, 3), np.uint8)
        return Picture(pixels, lambda _: base.get_frame(tile_size=tile_size, agent_pov=True))
    if observations == "rgb_full":
        pixels = spaces.Box(0, 255, (base.height * tile_size, base.width * tile_size, 3), np.uint8)
        return Picture(pixels, lambda _: base.get_frame(tile_size=tile_size, highlight=base.highlight))
    codes = _one_hot(side) if observations == "one_hot" else _symbolic(side)
    if not flat:
        return codes
    vector = spaces.Box(0.0, codes.space.high.max(), (codes.space.low.size,), np.float32)
    return Picture(vector, lambda view: codes.make(view).ravel())


def _symbolic(side: int) -> Picture:
    space = spaces.Box(0.0, 255.0, (3, side, side), np.float32)
    return Picture(space, lambda view: view.transpose(2, 0, 1).astype(np.float32))


def _one_hot(side: int) -> Picture:
    codes = load_package("minigrid.core.constants", PREFIXES[0], EXTRA)
    sizes = len(codes.OBJECT_TO_IDX), len(codes.COLOR_TO_IDX), len(codes.STATE_TO_IDX)
    shape, offsets = (sum(sizes), side, side), np.cumsum((0, *sizes[:-1]))

    def make(view: Array) -> Array:
        image = np.zeros(shape, np.float32)
        np.put_along_axis(image, (view + offsets).transpose(2, 0, 1), 1.0, axis=0)
        return image

    return Picture(spaces.Box(0.0, 1.0, shape, np.float32), make)
