"""The vocabulary every other room speaks. Imports nothing else from the lab.

Its words are loaded with the first one that is asked for: commands that only need a module of this room, such as
`core.errors`, do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_lab.core.vocabulary import *  # noqa: F403


def __getattr__(name: str) -> Any:
    vocabulary = None if name.startswith("__") else import_module("rl_lab.core.vocabulary")
    if vocabulary is None or name not in vocabulary.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    word = globals()[name] = vars(vocabulary)[name]
    return word
