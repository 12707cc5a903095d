"""BipedalWalker with a new Box2D world per episode.

The stock one empties its world and goes on with it. What Box2D then remembers of earlier episodes changes the order in
which it solves contacts, so that the same episode differs in its last bits, and soon in all, with what came before it.
In a new world every episode is as the first one of a new environment, and can be replayed.
"""

from __future__ import annotations

from typing import Any

import gymnasium

ENTRY_POINT = "gymnasium.envs.box2d.bipedal_walker:BipedalWalker"


class FreshWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes the world anew at each reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode in a new world."""
        base: Any = self.unwrapped
        base._destroy()  # the bodies of the old world
        base.world = type(base.world)()
        return self.env.reset(seed=seed, options=options)
