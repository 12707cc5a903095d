"""Who calls a learner: by certificate, unless revoked; on this machine by a secret that only one user can read."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Any

import grpc

from rl_lab.core.errors import ConfigError
from rl_lab.core.identity import Identity
from rl_lab.core.private_directory import private_directory
from rl_lab.core.revocations import Revocations
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.security import check_role, identity_of

TOKEN_KEY = "rl-lab-token"


class Callers:
    """Without either argument everybody who reaches the learner is believed: only its user can open its socket.

    Args:
        revocations: Of the lab whose certificates are asked for.
        token: What processes on this machine must know, where there are no certificates.
    """

    def __init__(self, revocations: Revocations | None = None, token: str | None = None) -> None:
        self._revocations, self._token = revocations, token

    def identify(self, context: grpc.ServicerContext, call: str, claimed: str) -> Identity:
        """Return who calls; raises TransportError for one who may not, Unproven for one without the secret."""
        if self._revocations is None:
            given = str(dict(context.invocation_metadata()).get(TOKEN_KEY, ""))
            if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
                raise Unproven(
                    f"{claimed} does not know this learner's secret: it must run as the same user on this machine, or "
                    "have a certificate (lab certs)"
                )
            return Identity(claimed, "actor")
        proof = context.auth_context()
        identity = identity_of(proof.get("x509_subject_alternative_name", ()))
        check_role(identity, call)
        if is_revoked(proof, self._revocations):
            raise Revoked(identity.name)
        return identity


class Unproven(TransportError):
    """Somebody does not know the secret."""


class Revoked(TransportError):
    """A certificate is not accepted any more.

    Args:
        name: Of its owner.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the certificate of {name} is revoked")
        self.name = name


def is_revoked(proof: Any, revocations: Revocations) -> bool:
    """Return whether the certificate behind a call is revoked; while its list cannot be read, every one is."""
    from cryptography import x509

    (pem,) = proof["x509_pem_cert"]
    try:
        return x509.load_pem_x509_certificate(pem).serial_number in revocations
    except ConfigError as error:
        raise TransportError(f"nobody is let in: {error}") from error


def write_token(port: int) -> str:
    """Make the secret of the learner at a port of this machine, which its user alone can read, and return it."""
    token, path = secrets.token_urlsafe(32), token_path(port)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    return token


def read_token(port: int) -> str | None:
    """Return the secret of the learner at a port, if this user has started one there."""
    try:
        return token_path(port).read_text()
    except OSError:
        return None


def token_path(port: int) -> Path:
    """Return where the secret of the learner at a port lies."""
    return private_directory() / f"rl-lab-{port}.token"
