"""A step of many worlds as CUDA graphs in a row: hundreds of small kernels are launched by a handful of calls.

A step is recorded before the first one is taken: torch's kernels into graphs of their own, cut wherever the simulation
launches a graph of its physics. A few steps on trial come before that, and are taken back: so every step of a run is a
replay, and where the simulation is deterministic one that was resumed goes on to the bit. What objects hold between two
steps stays at the addresses it had in the recording: whatever a step, a reset or a restore puts in its place is copied
there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Step, VectorEnv
from rl_lab.core.trees import tree_leaves, tree_map
from rl_lab.robots.sim.interface import BatchSim

TRIAL_STEPS = 3  # before the recording, which let libraries allocate what they need
Launch = Callable[[], None]


class Recording:
    """Graphs of torch and launches of others, in the order in which they were recorded."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None  # that is being recorded
        self._launches: list[Launch] = []

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what the block launches; nothing of it runs."""
        torch.cuda.synchronize(self._generator.device)
        with torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # between two launches of others
            self._begin()
            try:
                yield
            finally:
                self._end()

    def insert(self, launch: Launch) -> None:
        """Record a launch that is not torch's, such as that of another graph."""
        self._end()
        self._launches.append(launch)
        self._begin()

    def _begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self._generator)
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _end(self) -> None:
        assert self._graph is not None
        self._graph.capture_end()
        self._launches.append(self._graph.replay)
        self._graph = None

    def give_up(self) -> None:
        """Let generators draw again: torch does not take them out of a recording that broke."""
        for generator in (self._generator, torch.cuda.default_generators[self._stream.device.index]):
            generator.graphsafe_set_state(generator.clone_state())

    def replay(self) -> None:
        """Run all of it on the current stream."""
        for launch in self._launches:
            launch()


class KeptTensors:
    """What `owners` hold in their attributes, tensors or dicts and tuples of them, at addresses that never change."""

    def __init__(self, owners: Sequence[Any]) -> None:
        self._owners = owners

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let the block put other tensors in their place: their values are copied to where the old ones are.

        Where the block fails, everything is in its place again as it was.
        """
        before = self._look()
        places = [dict(tree_leaves(tree)) for tree in before.values()]
        taken = {_memory(leaf) for held in places for leaf in held.values()}
        with ExitStack() as undo:
            undo.callback(self._put, before)
            yield
            undo.pop_all()  # it did not fail
        after = self._look()
        moves: list[tuple[Tensor, Tensor]] = []
        for path, old in before.items():
            new = dict(tree_leaves(after[path]))
            for name, leaf in tree_leaves(old):
                if new.get(name) is not leaf:  # what the block took away is zero, as before it was drawn
                    moves.append((leaf, new[name] if name in new else torch.zeros_like(leaf)))
        moves = [(place, leaf.clone() if _memory(leaf) in taken else leaf) for place, leaf in moves]
        with torch.inference_mode():  # which alone may write to tensors that were made in it
            for place, leaf in moves:
                place.copy_(leaf)
        self._put({path: {**after[path], **old} if isinstance(old, Mapping) else old for path, old in before.items()})

    def _look(self) -> dict[tuple[int, str], Any]:
        """Return the trees of tensors by owner and attribute; containers are copied."""
        return {
            (index, name): dict(value) if isinstance(value, Mapping) else value
            for index, owner in enumerate(self._owners)
            for name, value in vars(owner).items()
            if _is_tree(value)
        }

    def _put(self, trees: Mapping[tuple[int, str], Any]) -> None:
        for (index, name), tree in trees.items():
            setattr(self._owners[index], name, tree)


def _is_tree(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class CapturedStep:
    """Calls a function from actions to a `Step` and what it led to, which it records once and replays.

    Args:
        function: Never looks at a value on the host; changes tensors in attributes of `owners`, and of the simulation.
        env: What it is a step of.
        owners: Objects that hold what lies between two steps.
        sim: What the function steps; launches graphs.
        generator: What the function draws from.
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[Step, Any]],
        env: VectorEnv,
        owners: Sequence[Any],
        sim: BatchSim,
        generator: torch.Generator,
    ) -> None:
        self._function, self._env, self._sim, self._generator = function, env, sim, generator
        self._tensors = KeptTensors(owners)
        self._recording: Recording | None = None
        self._actions: Tensor = torch.empty(0)
        self._outcome: tuple[Step, Any] | None = None  # the recorded tensors, which every replay overwrites
        self.is_impossible = False  # to record it

    @property
    def is_recorded(self) -> bool:
        """Whether steps are replayed."""
        return self._recording is not None

    def kept(self) -> AbstractContextManager[None]:
        """Return a context in which anything may change what lies between two steps."""
        return self._tensors.kept()

    def __call__(self, actions: Tensor, *, is_usual: bool) -> tuple[Step, Any]:
        """Return what the function returns; where it does something else than usual, it is not replayed.

        What a replayed step led to is in tensors that the next one overwrites; what it came from is so already.
        """
        if is_usual and not self.is_impossible and self._recording is None:
            self._prepare(actions)
        if not is_usual or self._recording is None:
            with self.kept():
                return self._function(actions)
        assert self._outcome is not None
        self._actions.copy_(actions)
        self._recording.replay()
        step, led_to = self._outcome
        return fresh(step), led_to

    def _prepare(self, actions: Tensor) -> None:
        """Record a step after some on trial, and be where all was before them."""
        state = self._env.get_state()
        for _ in range(TRIAL_STEPS):
            with self.kept():
                self._function(actions)
        self._env.set_state(state)
        self._record(actions)

    def _record(self, actions: Tensor) -> None:
        """Record a step, or say why that cannot be: a term of the user's own may look at values."""
        self._actions, recording = actions.clone(), Recording(self._generator)
        self._sim.recording = recording
        try:
            with recording.record(), self._tensors.kept():
                self._outcome = self._function(self._actions)
        except RuntimeError as error:
            recording.give_up()
            self.is_impossible = True
            said = str(error).strip().splitlines()[0]
            warnings.warn(
                f"steps of the worlds run without CUDA graphs, and slower: {said}", RuntimeWarning, stacklevel=2
            )
        else:
            self._recording = recording
        finally:
            self._sim.recording = None


def fresh(step: Step) -> Step:
    """Return copies that stay as they are, made by one launch for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    copies: dict[int, Tensor] = {}
    for _, leaf in tree_leaves(tuple(step)):
        if id(leaf) not in copies:  # observations may be final observations
            copies[id(leaf)] = torch.empty_like(leaf, memory_format=torch.contiguous_format)
            by_dtype.setdefault(leaf.dtype, []).append(leaf)
    for group in by_dtype.values():
        torch._foreach_copy_([copies[id(leaf)] for leaf in group], group)
    return Step(*tree_map(lambda leaf: copies[id(leaf)], tuple(step)))
