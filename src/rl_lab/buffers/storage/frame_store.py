"""Pictures stored once: a ring of single frames that rows refer to by number.

A stack of `K` frames moves on by one frame per step, and what a step leads to is where the next one begins, so a step
brings about one frame although its row shows `2 K` of them. Nothing is assumed about when that holds: a frame is shared
only after its bytes were compared. An episode's start, a truncation, a cut in the stream (only some steps were stored),
padding with zeros or with repeats merely make a step bring more frames than one.

Per lane, frames are pushed onto an endless sequence, and every stack is the last `K` pushes at its time:
a stack that equals what the step before led to pushes nothing, one moved on by a frame pushes that frame, any other
pushes all of its frames. A push that repeats the one before it takes the same number and no memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_lab.buffers.storage.layout import WORD, WORD_BYTES, Layout
from rl_lab.buffers.storage.row_store import RowStore
from rl_lab.core import CheckpointError, ConfigError, LabError, State

SLACK_SHARE = 8  # one eighth more frames than rows: episodes of 8 steps and more lose no row
SLACK_STACKS = 16  # and so many stacks per lane


class Encoded(NamedTuple):
    """What rows keep instead of pictures."""

    observations: Tensor  # [T, N, K] int32, slots of the ring
    final_observations: Tensor  # [T, N, K]
    follows: Tensor  # [T, N] bool: the step begins with the very picture the step before led to


def num_frames(length: int, lanes: int, stack: int) -> int:
    """Return how many frames the ring has for so many rows."""
    rows = length * lanes
    return rows + rows // SLACK_SHARE + SLACK_STACKS * stack * lanes


class FrameStore:
    """The frames of one picture [stack * c, H, W] of `length` steps of `lanes` rows."""

    def __init__(self, shape: tuple[int, ...], stack: int, length: int, lanes: int, store: RowStore) -> None:
        self.shape, self.stack, self._length, self._lanes = shape, stack, length, lanes
        self._store, self.num_frames = store, store.length
        self.written = 0  # frames ever stored; a frame's number modulo `num_frames` is its slot
        self._refresh_steps = max(SLACK_STACKS // 2, length // max(16, 2 * stack))
        self._last_words = torch.zeros(lanes, stack, store.layout.words, dtype=WORD, device=store.device)
        self._last_numbers = torch.full((lanes, stack), -1, dtype=torch.int64, device=store.device)
        self._first_numbers = np.zeros(length, dtype=np.int64)  # the oldest frame each step refers to

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], stack: int, length: int, lanes: int, device: torch.device, file: Path | None = None
    ) -> FrameStore:
        """Return a store for `length` steps of `lanes` pictures."""
        store = RowStore(frame_layout(shape, stack), num_frames(length, lanes, stack), 1, device, file)
        return cls(shape, stack, length, lanes, store)

    @property
    def max_steps(self) -> int:
        """Return how many steps may be encoded at once."""
        return self.num_frames // (2 * self.stack * self._lanes)

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return self._store.num_bytes

    def encode(self, obs: Tensor, final: Tensor, step: int) -> Encoded:
        """Store what is new in the pictures [T, N, C, H, W] of the steps from number `step` on."""
        obs, final = self._to_words(obs), self._to_words(final)  # [T, N, K, words]
        follows = torch.empty(obs.shape[:2], dtype=torch.bool, device=obs.device)
        follows[0] = _is_equal(obs[0], self._last_words) if step > 0 else False
        if len(obs) > 1:
            follows[1:] = _is_equal(obs[1:], final[:-1])
        is_push, is_new = self._compare(obs, final, follows, step)
        numbers = is_new.view(-1).cumsum(0).view(is_new.shape) + (self.written - 1)
        obs_numbers, final_numbers = self._stacks(numbers, is_push, is_new)
        self._write(obs, final, numbers, is_new)
        self._last_words, self._last_numbers = final[-1].clone(), final_numbers[-1].clone()
        self._first_numbers[np.arange(step, step + len(obs)) % self._length] = (
            obs_numbers[:, :, 0].amin(1).cpu().numpy()
        )
        return Encoded(self._slots(obs_numbers), self._slots(final_numbers), follows)

    def decode(self, obs: Tensor, final: Tensor) -> Tensor:
        """Return the pictures behind slots [B, K], [B, K] as one tensor [B, 2, C, H, W]; what they share lies close."""
        words = self._store.rows.index_select(0, torch.stack((obs, final), 1).view(-1))
        pixels, frame_bytes = words.view(torch.uint8), self._store.layout.fields[0].numbers
        if pixels.shape[1] != frame_bytes:
            pixels = pixels[:, :frame_bytes]
        return pixels.reshape(len(obs), 2, *self.shape)

    def oldest_step(self, oldest: int, written: int) -> int:
        """Return the first of the steps from `oldest` up to `written` whose frames are all still there."""
        first_frame = self.written - self.num_frames
        while oldest < written and self._first_numbers[oldest % self._length] < first_frame:
            oldest += 1
        return oldest

    def get_state(self) -> State:
        """Return frames and what the next step is compared with."""
        last = {"words": self._last_words, "numbers": self._last_numbers}
        shape = {"shape": list(self.shape), "stack": self.stack}
        return {"store": self._store.get_state(), "written": self.written, "last": last, **shape}

    @classmethod
    def from_state(
        cls, state: State, stack: int, slots: Tensor, device: torch.device, file: Path | None = None
    ) -> FrameStore:
        """Return a store that holds exactly what `state` held; `slots` [length, lanes] are the rows' oldest frames."""
        if state["stack"] != stack:
            raise CheckpointError(
                f"the checkpoint's buffer has frame_stack={state['stack']}, this config asks for frame_stack={stack}"
            )
        length, lanes = slots.shape
        store = RowStore.from_state(state["store"], num_frames(length, lanes, stack), 1, device, file)
        frames = cls(tuple(state["shape"]), stack, length, lanes, store)
        frames.written = state["written"]
        frames._last_words = state["last"]["words"].to(device, copy=True)
        frames._last_numbers = state["last"]["numbers"].to(device, copy=True)
        newest = frames.written - 1
        frames._first_numbers = (newest - (newest - slots.long()) % frames.num_frames).amin(1).cpu().numpy()
        return frames

    def _to_words(self, pictures: Tensor) -> Tensor:
        if pictures.shape[2:] != self.shape or pictures.dtype != torch.uint8:
            found, wanted = f"{pictures.dtype} {list(pictures.shape[2:])}", f"torch.uint8 {list(self.shape)}"
            raise LabError(f"a buffer was given pictures as {found} instead of {wanted}")
        layout = self._store.layout
        steps, lanes = pictures.shape[:2]
        frames = pictures.reshape(steps, lanes, self.stack, layout.fields[0].numbers)
        if padding := layout.row_bytes - frames.shape[-1]:
            frames = torch.nn.functional.pad(frames, (0, padding))
        frames = frames.contiguous()
        return (frames.clone() if frames.storage_offset() % WORD_BYTES else frames).view(WORD)

    def _compare(self, obs: Tensor, final: Tensor, follows: Tensor, step: int) -> tuple[Tensor | None, Tensor]:
        """Return which frames are pushed and which of them are new, [T, N, 2 K], observation first.

        Where every stack moved on by a frame only that frame counts: None, [T, N, 1].
        """
        stack = self.stack
        is_new = ~_is_equal(final[:, :, -1:], obs[:, :, -1:])[:, :, None]
        # Now and then a stack is stored anew: a picture that stood still for ages would be overwritten at last.
        is_due = torch.arange(step, step + len(obs), device=obs.device) % self._refresh_steps == 0
        obs_jumps = ~follows | is_due[:, None]
        final_jumps = ~_is_equal(final[:, :, :-1], obs[:, :, 1:]) if stack > 1 else torch.zeros_like(obs_jumps)
        if not (obs_jumps | final_jumps).any():
            return None, is_new
        is_new = torch.cat(
            [torch.zeros(*is_new.shape[:2], 2 * stack - 1, dtype=torch.bool, device=obs.device), is_new], 2
        )
        is_push = torch.zeros_like(is_new)
        is_push[:, :, -1] = True
        is_push[:, :, :stack] |= obs_jumps[:, :, None]
        is_push[:, :, stack:] |= final_jumps[:, :, None]
        is_new[:, :, :stack][obs_jumps] = _is_distinct(obs[obs_jumps])
        is_new[:, :, stack:][final_jumps] = _is_distinct(final[final_jumps])
        return is_push, is_new

    def _stacks(self, numbers: Tensor, is_push: Tensor | None, is_new: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of the stacks before and after each step, [T, N, K] each."""
        steps, lanes, width = is_new.shape
        fresh = torch.where(is_new, numbers, -1).transpose(0, 1).reshape(lanes, -1)
        if is_push is None:
            sequence = torch.cat([self._last_numbers, fresh], 1).cummax(1).values
            stacks = sequence.unfold(1, self.stack, 1).transpose(0, 1)  # [T + 1, N, K]
            return stacks[:-1], stacks[1:]
        by_lane = is_push.transpose(0, 1).reshape(lanes, -1)
        place = by_lane.cumsum(1) + (self.stack - 1)  # in the lane's sequence, which begins with its last stack
        sequence = torch.full((lanes, self.stack + steps * width + 1), -1, dtype=torch.int64, device=is_push.device)
        sequence[:, : self.stack] = self._last_numbers
        sequence.scatter_(1, torch.where(by_lane, place, sequence.shape[1] - 1), fresh)
        sequence = sequence.cummax(1).values  # numbers only grow, so a repeat takes the number before it
        ends = place.view(lanes, steps, width)[:, :, (self.stack - 1, width - 1)]  # [N, T, 2]
        back = torch.arange(1 - self.stack, 1, device=is_push.device)
        found = sequence.gather(1, (ends[..., None] + back).view(lanes, -1)).view(lanes, steps, 2, self.stack)
        before, after = found.permute(2, 1, 0, 3)
        return before, after

    def _write(self, obs: Tensor, final: Tensor, numbers: Tensor, is_new: Tensor) -> None:
        width = is_new.shape[2]
        parts = [(final, width - self.stack, width)] if width > 1 else [(final[:, :, -1:], 0, 1)]
        if width > self.stack:
            parts.append((obs, 0, self.stack))
        for words, begin, end in parts:
            chosen = is_new[:, :, begin:end].reshape(-1).nonzero().squeeze(1)
            new = words.reshape(-1, words.shape[-1]).index_select(0, chosen)
            self._store.put_words(numbers[:, :, begin:end].reshape(-1).index_select(0, chosen) % self.num_frames, new)
        self.written = int(numbers[-1, -1, -1]) + 1

    def _slots(self, numbers: Tensor) -> Tensor:
        return (numbers % self.num_frames).int()


def frame_layout(shape: tuple[int, ...], stack: int) -> Layout:
    """Return the layout of one frame of a picture that shows `stack` of them along its first dimension."""
    if shape[0] % stack:
        raise ConfigError(f"frame_stack={stack} does not divide the {shape[0]} channels of a picture {list(shape)}")
    return Layout.of(torch.empty(shape[0] // stack, *shape[1:], dtype=torch.uint8), lead=0)


def _is_equal(a: Tensor, b: Tensor) -> Tensor:
    """Compare stacks [..., k, words]; on the host NumPy does it in a third of the time."""
    if a.is_cpu:
        same = a.numpy() == b.numpy()
        return torch.from_numpy(same.reshape(*same.shape[:-2], same.shape[-2] * same.shape[-1]).all(-1))
    return (a == b).flatten(-2).all(-1)


def _is_distinct(stacks: Tensor) -> Tensor:
    """Return for stacks [M, K, words] which frames differ from the one before them; the first always does."""
    differs = torch.ones(stacks.shape[:2], dtype=torch.bool, device=stacks.device)
    differs[:, 1:] = (stacks[:, 1:] != stacks[:, :-1]).any(-1)
    return differs
