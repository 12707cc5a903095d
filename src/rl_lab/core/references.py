"""`module:name` strings. Who checks a config and who imports from it must agree on what such a string is."""

from __future__ import annotations

import re
from typing import NamedTuple

_DEVICE = re.compile(r"cuda:[0-9]+")


class Reference(NamedTuple):
    """A module and what is wanted of it: a function, a class or an id that the module registers."""

    module: str
    name: str


def split_reference(text: str) -> Reference | None:
    """Return the parts of `module:anything`; None when the text names no module, or is `cuda:0` or a URL.

    Nothing is said about the name: whoever sees a dotted Python name before a colon may import it.
    """
    module, colon, name = text.partition(":")
    module = module.strip()
    if not colon or name.startswith("//") or _DEVICE.fullmatch(text):
        return None
    return Reference(module, name) if all(part.isidentifier() for part in module.split(".")) else None
