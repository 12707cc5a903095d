"""Who may look and who may act: addresses, tokens, origins and limits of the operator's page.

On loopback everybody at this machine may act. Elsewhere a certificate of the lab or a token is asked for. There is one
token to act and one to look; it comes once, in the address of the page, and lives on in a cookie that other sites'
pages cannot send. A request that changes something must come from the page itself.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Literal

from rl_lab.core import ConfigError
from rl_lab.core.identity import Identity, is_loopback
from rl_lab.core.revocations import Revocations

Role = Literal["operator", "viewer"]
COOKIE = "lab_operator"
MIN_TOKEN = 16
NAME = re.compile(r"[\w.@+-][\w.@+ -]{0,31}")
MAX_BODY = 4_096  # bytes of a command
MAX_SESSIONS, MAX_COMMANDS_PER_S = 16, 60.0
OPERATOR_SEATS = 4  # of the sessions: viewers leave them free
MAX_STREAMS_EACH = 12  # of one person or, where names are not known, one address


class Denied(Exception):
    """A request that is not answered: an HTTP status and a line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


@dataclass(frozen=True)
class Listening:
    """Where the page is served.

    Attributes:
        host: Address to listen at; other machines reach it only where it is not loopback.
        port: Its port; 0: any free one.
        operator_token: Whoever has it may act; beyond loopback this or `authority` is needed. At least 16 characters;
            `generate` makes one.
        viewer_token: Whoever has it may look; null: only operators may.
        certificate: A PEM file with the certificate of this machine and its key, for HTTPS; null: HTTP.
        allow_plain_http: Serve other machines without a certificate: whoever listens on the way can read the token and
            move the robot.
        authority: ca.pem of `lab certs`: browsers then need a certificate of the role operator or viewer, whose name is
            the person's, and no token; null: none is asked for.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    operator_token: str | None = None
    viewer_token: str | None = None
    certificate: str | None = None
    authority: str | None = None
    allow_plain_http: bool = False


class Access:
    """Decides about requests.

    Args:
        listening: Where the page is served.
    """

    def __init__(self, listening: Listening) -> None:
        token = listening.operator_token
        self.operator_token = secrets.token_urlsafe(24) if token == "generate" else token
        self._viewer_token, self._needs_identity = listening.viewer_token, listening.authority is not None
        authority = listening.authority
        self._revocations = None if authority is None else Revocations(Path(authority).parent)
        is_local = is_loopback(listening.host)
        if self._needs_identity and listening.certificate is None:
            raise ConfigError("listening.authority: certificates are shown by HTTPS, which needs listening.certificate")
        for key, value in (("operator_token", self.operator_token), ("viewer_token", self._viewer_token)):
            if value is not None and len(value) < MIN_TOKEN:
                raise ConfigError(f"listening.{key}: at least {MIN_TOKEN} characters (generate makes a token)")
        is_open = self.operator_token is None and not self._needs_identity
        if is_open and (not is_local or self._viewer_token is not None):
            raise ConfigError(
                f"listening.operator_token: missing, but {listening.host} is for other machines, or there are viewers "
                "(generate makes a token; without one, listening.host is 127.0.0.1)"
            )
        if not is_local and listening.certificate is None and not listening.allow_plain_http:
            raise ConfigError(
                f"listening.certificate: missing, but {listening.host} is for other machines: who listens on the way "
                "could read the token and move the robot (listening.allow_plain_http=true where nobody does)"
            )
        self._is_open = is_open
        self._scheme = "http" if listening.certificate is None else "https"

    def role(self, cookie: str | None, identity: Identity | None = None) -> Role:
        """Return what the owner of a cookie or a certificate may do. Raises Denied for strangers."""
        if self._is_open:
            return "operator"
        if self._needs_identity:
            if identity is None or identity.role not in ("operator", "viewer"):
                raise Denied(403, "this certificate is not for people: lab certs issue NAME --role operator or viewer")
            return "operator" if identity.role == "operator" else "viewer"
        role = self.role_of_token(_cookie_value(cookie))
        if role is None:
            raise Denied(401, "open the page with its token: /?token=...")
        return role

    def role_of_token(self, token: str | None) -> Role | None:
        """Return what a token stands for; compared in constant time."""
        if token is None:
            return None
        given = token.encode()
        if self.operator_token is not None and hmac.compare_digest(given, self.operator_token.encode()):
            return "operator"
        if self._viewer_token is not None and hmac.compare_digest(given, self._viewer_token.encode()):
            return "viewer"
        return None

    def check_serial(self, serial: str) -> None:
        """Raise Denied for the serial number of a revoked certificate, and for all while their list is damaged."""
        try:
            if self._revocations is not None and int(serial, 16) in self._revocations:
                raise Denied(403, "this certificate is revoked")
        except ConfigError as error:
            raise Denied(403, f"nobody is let in: {error}") from error

    def check_host(self, host: str | None) -> str:
        """Return the host a request was sent to; a name that somebody let point here (DNS rebinding) is denied."""
        name = _host_name(host or "")
        if not name or (self._is_open and not is_loopback(name)):
            raise Denied(421, "this page is not served under that name")
        return host or ""

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Raise Denied where a request that changes something does not come from the page itself."""
        if origin != f"{self._scheme}://{self.check_host(host)}":
            raise Denied(403, "requests come from the page itself")

    def check_site(self, site: str | None) -> None:
        """Raise Denied where a browser says that another site's page asks; whoever is no browser says nothing."""
        if site not in (None, "same-origin", "none"):
            raise Denied(403, "streams are for the page itself")


def check_name(name: object) -> str:
    """Return a person's name. Raises Denied where it could not be one."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Denied(400, "a name is 1 to 32 letters, digits or any of . @ + - _ and blanks")
    return name.strip()


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _cookie_value(cookie: str | None) -> str | None:
    try:
        found = SimpleCookie(cookie or "").get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value
