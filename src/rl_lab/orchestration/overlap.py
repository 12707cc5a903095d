"""An environment that takes its steps in a thread of its own, while the caller trains."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rl_lab.core.environment import Actions, Instruction, Observation, State, Step, VectorEnv
from rl_lab.core.trees import tree_leaves

T = TypeVar("T")


class Call(Generic[T]):
    """A call that is made in another thread, and what came of it. Costs the caller a third of a `Future`."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._result: T
        self._error: BaseException | None = None
        self._is_running = Lock()
        self._is_running.acquire()

    def make(self) -> None:
        """Make the call and keep what it returns or raises."""
        with self:
            self._result = self._function()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        self._error = error
        self._is_running.release()
        return True

    def wait(self) -> None:
        """Return when the call has been made."""
        with self._is_running:
            pass

    def result(self) -> T:
        """Wait and return what the call returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result


class BackgroundEnv(VectorEnv):
    """Makes every call of an environment in one thread, in their order; `start` does not wait for its step.

    What belongs to a thread, such as a rendering context, thus belongs to the environment. What an environment raises
    there is raised here, by whoever asks for the outcome. On a GPU its work is queued on a stream of its own, behind
    all that the caller had queued when it asked, so that it waits for no update that came later.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.spec, self.num_envs, self.device = env.spec, env.num_envs, env.device
        self._env = env
        self._stream = torch.cuda.Stream(env.device) if env.device.type == "cuda" else None
        self._pending: Call[Step] | None = None
        self._calls: SimpleQueue[Call[Any] | None] = SimpleQueue()
        thread = Thread(target=_serve, args=(self._calls,), name="environment", daemon=True)
        self._end_thread = weakref.finalize(self, _end, self._calls, thread)
        thread.start()

    def start(self, actions: Actions) -> None:
        """Begin a step; `finish` returns its outcome."""
        assert self._pending is None, "the step before has not been finished"
        self._pending = self._ask(lambda: self._env.step(actions))

    def outcome(self) -> Step:
        """Wait for the step that was started and return its outcome, which is still there to be finished."""
        assert self._pending is not None, "no step was started"
        return self._pending.result()

    def finish(self) -> Step:
        """Wait for the step that was started and return its outcome."""
        step = self.outcome()
        self._pending = None
        if self._stream is not None:  # else its memory could be used anew while the caller's stream still reads it
            for _, leaf in tree_leaves((*step[:-1], dict(step.infos))):
                leaf.record_stream(torch.cuda.current_stream(self.device))
        return step

    def restore(self, step: Step) -> None:
        """Stand where a step with this outcome was started and is not finished."""
        self._pending = Call(lambda: step)
        self._pending.make()

    def wait(self) -> None:
        """Return when the step that was started is over; what it raised is left for `finish`."""
        if self._pending is not None:
            self._pending.wait()

    def reset(self, seed: int) -> Observation:
        """Start every copy anew; a step that was started is forgotten."""
        self._pending = None
        return self._ask(lambda: self._env.reset(seed)).result()

    def step(self, actions: Actions) -> Step:
        """Step every copy and wait for it."""
        self.start(actions)
        return self.finish()

    def get_state(self) -> State:
        """Return the state after the step that was started last."""
        return self._ask(self._env.get_state).result()

    def set_state(self, state: State) -> None:
        """Go on from `state`; a step that was started is forgotten."""
        self._pending = None
        self._ask(lambda: self._env.set_state(state)).result()

    def describe(self) -> dict[str, Any]:
        """Return what the environment says of itself."""
        return self._env.describe()

    def render(self) -> Tensor | None:
        """Return the picture of the first copy, or None when it has none."""
        return self._ask(self._env.render).result()

    def instruct(self, instruction: Instruction) -> bool:
        """Pass a person's word on, behind the step that was started."""
        return self._ask(lambda: self._env.instruct(instruction)).result()

    def close(self) -> None:
        """Let a step that was started end, then free everything; safe to call twice."""
        if self._end_thread.alive:
            closing = self._ask(self._env.close)
            self._end_thread()
            closing.result()

    def _ask(self, function: Callable[[], T]) -> Call[T]:
        call = Call(function if self._stream is None else self._on_stream(function, self._stream))
        self._calls.put(call)
        return call

    def _on_stream(self, function: Callable[[], T], stream: torch.cuda.Stream) -> Callable[[], T]:
        queued = torch.cuda.current_stream(self.device).record_event()

        def run() -> T:
            with torch.cuda.stream(stream):
                stream.wait_event(queued)
                result = function()
            stream.synchronize()  # in the thread: the caller goes on meanwhile
            return result

        return run


def _serve(calls: SimpleQueue[Call[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # it holds the environment, which may be forgotten while the next call is awaited


def _end(calls: SimpleQueue[Call[Any] | None], thread: Thread) -> None:
    calls.put(None)
    thread.join()
