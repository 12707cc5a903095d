"""Who may do what: addresses that need certificates, the files of a certificate, and the roles behind each call."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.core.identity import ROLES, Identity, find_identity, identity_uri, is_loopback
from rl_lab.distributed.transport.interface import TransportError

CA_NAME = "ca"
LEARNER_NAME = "learner.rl-lab"  # only learners' certificates have it, whatever host they run on
ALLOWED = {
    "Hello": frozenset({"actor"}),
    "Push": frozenset({"actor"}),
    "PullWeights": frozenset({"actor"}),
    "Act": frozenset({"actor"}),
    "Status": frozenset(ROLES),
}
__all__ = ["CA_NAME", "LEARNER_NAME", "ROLES", "Identity", "identity_uri", "is_loopback"]


class KeyFiles(NamedTuple):
    """A certificate: the bytes of the lab's authority, one's own certificate and key."""

    authority: bytes
    certificate: bytes
    key: bytes
    directory: Path  # where they lie


def read_keys(certificate: Path, role: str, name: str | None = None) -> KeyFiles:
    """Read a certificate NAME.pem, and NAME.key and ca.pem beside it; it must be of this role and, if given, name."""
    from rl_lab.distributed.transport.certificates import check_own

    paths = (certificate.with_name(f"{CA_NAME}.pem"), certificate, certificate.with_suffix(".key"))
    try:
        authority, own, key = (path.read_bytes() for path in paths)
    except OSError as error:
        text = f"certificate {certificate}: {error.filename} cannot be read ({reason(error)})"
        raise UsageError(f"{text}; make it with lab certs issue") from error
    keys = KeyFiles(authority, own, key, certificate.parent)
    check_own(keys, certificate, role, name)
    return keys


def check_address(address: str, *, is_secured: bool) -> str:
    """Return the address for gRPC: host:port or unix:PATH. Only this machine is reached without certificates."""
    if address.startswith("unix:"):
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"transport.address: {address!r} is neither HOST:PORT nor unix:PATH")
    if not is_secured and not is_loopback(host):
        raise ConfigError(
            f"transport.address: {address} is reached from other machines and there is no transport.certificate; "
            "make one with lab certs, or use 127.0.0.1"
        )
    return address


def check_free(address: str) -> None:
    """Raise TransportError when one cannot listen at HOST:PORT; gRPC would say it in lines of its own as well."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or int(port) == 0:
        return
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: one that has just ended
            listener.bind(place)
            listener.listen(1)
    except OSError as error:
        raise taken(address) from error


def taken(address: str) -> TransportError:
    """Return what is raised when one cannot listen there."""
    return TransportError(f"transport.address: cannot listen on {address}; is the port taken?")


def identity_of(names: Iterable[bytes]) -> Identity:
    """Return who a verified certificate belongs to, from its alternative names."""
    identity = find_identity(name.decode(errors="replace") for name in names)
    if identity is None:
        raise TransportError("the certificate says no role; make it with lab certs issue")
    return identity


def check_role(identity: Identity, call: str, allowed: Mapping[str, frozenset[str]] = ALLOWED) -> None:
    """Raise TransportError when this role may not make this call."""
    if identity.role not in allowed[call]:
        raise TransportError(f"{identity.name} is {identity.role}; {call} is for {', '.join(sorted(allowed[call]))}")
