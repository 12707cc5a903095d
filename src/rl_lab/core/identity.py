"""Who somebody is, as certificates of the lab say it, and whether an address is this machine's own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

ROLES = ("actor", "learner", "operator", "viewer")
SCHEME = "rl-lab"


class Identity(NamedTuple):
    """Who calls."""

    name: str
    role: str


def identity_uri(name: str, role: str) -> str:
    """Return how a certificate says who somebody is."""
    return f"{SCHEME}://{role}/{name}"


def find_identity(names: Iterable[str]) -> Identity | None:
    """Return who a verified certificate belongs to, from its alternative names; None: it does not say."""
    found = [urlsplit(name) for name in names if name.startswith(f"{SCHEME}://")]
    if len(found) != 1 or found[0].netloc not in ROLES:
        return None
    return Identity(found[0].path.removeprefix("/"), found[0].netloc)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, seen from itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
