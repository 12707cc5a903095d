"""The requests behind the operator's page.

GET / is the page, GET /events a stream of server-sent events (`state`: JSON; `picture`: JSON with a PNG in base64),
POST /join and POST /command take JSON. A viewer who reads slowly gets the newest and misses what was in between.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rl_lab.core.identity import Identity, find_identity
from rl_lab.human.operators.desk import Refused
from rl_lab.human.web.access import (
    COOKIE,
    MAX_BODY,
    MAX_SESSIONS,
    MAX_STREAMS_EACH,
    OPERATOR_SEATS,
    Access,
    Denied,
    Role,
)
from rl_lab.human.web.billboard import Billboard
from rl_lab.human.web.refusals import Refusals
from rl_lab.human.web.sessions import Sessions

SOCKET_S = 10.0  # seconds that a browser may take for a request
STATE_S = 0.25  # seconds between two states, at most


@dataclass(frozen=True)
class Page:
    """What is behind the page.

    Attributes:
        html: The page itself.
        policy: What it may load and do, for browsers.
        access: Who may do what.
        sessions: The people.
        billboard: What is shown.
        state: Returns what is true now, for JSON.
        is_secure: Whether it is served by HTTPS.
        refusals: Where those go whose requests were not answered.
    """

    html: bytes
    policy: str
    access: Access
    sessions: Sessions
    billboard: Billboard
    state: Callable[[], dict[str, Any]]
    is_secure: bool
    refusals: Refusals = field(default_factory=Refusals)


class PageHandler(BaseHTTPRequestHandler):
    """Answers one browser; `page` is set by whoever serves it."""

    page: Page
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rl-lab", ""
    timeout = SOCKET_S

    def do_GET(self) -> None:
        """Serve the page or the stream."""
        self._answer({"/": self._page, "/events": self._events})

    def do_POST(self) -> None:
        """Take a command."""
        self._answer({"/join": self._join, "/command": self._command})

    def _answer(self, routes: Mapping[str, Callable[[], None]]) -> None:
        try:
            self.page.access.check_host(self.headers.get("Host"))
            route = routes.get(urlsplit(self.path).path)
            if route is None:
                raise Denied(404, "there is nothing here")
            route()
        except Denied as denied:
            self.close_connection = True  # what was sent may not have been read
            self._tell(denied)
            self._reply(denied.status, {"error": str(denied)}, {"Connection": "close"})
        except Refused as refused:
            self._reply(409, {"error": str(refused)})

    def _tell(self, denied: Denied) -> None:
        self.page.refusals.add(self.client_address[0], f"{self.command} {urlsplit(self.path).path}", denied)

    def _page(self) -> None:
        token = parse_qs(urlsplit(self.path).query).get("token", [None])[0]
        if token is not None:
            self._greet(token)
            return
        self._role()
        self._send(200, self.page.html, "text/html; charset=utf-8", {"Content-Security-Policy": self.page.policy})

    def _greet(self, token: str) -> None:
        """Turn a token in the address into a cookie, so that it stays in no history or log."""
        if self.page.access.role_of_token(token) is None:
            raise Denied(401, "the token is wrong")
        safe = "; Secure" if self.page.is_secure else ""
        cookie = f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/{safe}"
        self._send(303, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})

    def _events(self) -> None:
        self.page.access.check_site(self.headers.get("Sec-Fetch-Site"))
        seats = MAX_SESSIONS if self._role() == "operator" else MAX_SESSIONS - OPERATOR_SEATS
        identity, billboard = self._identity(), self.page.billboard
        who = self.client_address[0] if identity is None else identity.name
        if billboard.num_streams >= 2 * seats:
            raise Denied(503, "too many people look on")
        if billboard.num_streams_of(who) >= MAX_STREAMS_EACH:
            raise Denied(503, f"{who} looks on {MAX_STREAMS_EACH} times already")
        self.close_connection = True
        with billboard.watched(who), suppress(OSError):  # until the browser is gone
            self._head(200, "text/event-stream", {"Connection": "close"})
            try:
                self._stream()
            except Denied as denied:  # its certificate was revoked meanwhile: the stream ends, an answer it had
                self._tell(denied)

    def _stream(self) -> None:
        seen = 0
        self._event("state", self.page.state())
        while (news := self.page.billboard.newer(seen, STATE_S)) is not None:
            self._identity()
            seen, shots = news
            for camera, shot in shots.items():
                self._event("picture", {"camera": camera, "png": base64.b64encode(shot.png).decode()})
            self._event("state", self.page.state())

    def _event(self, kind: str, content: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def _join(self) -> None:
        """Let somebody in; a certificate knows the name better than who types it."""
        message, role = self._message()
        identity = self._identity()
        name = message.get("name") if identity is None else identity.name
        self._reply(200, {"session": self.page.sessions.join(name, role), "role": role})

    def _command(self) -> None:
        message, _ = self._message()
        self.page.sessions.command(message)
        self._reply(200, self.page.state())

    def _role(self) -> Role:
        return self.page.access.role(self.headers.get("Cookie"), self._identity())

    def _identity(self) -> Identity | None:
        """Return who the certificate of a browser belongs to; None: it showed none, or was not asked to."""
        certificate = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        if certificate:
            self.page.access.check_serial(str(certificate["serialNumber"]))
        names: Any = (certificate or {}).get("subjectAltName", ())
        return find_identity(value for kind, value in names if kind == "URI")

    def _message(self) -> tuple[dict[str, Any], Role]:
        """Return what was posted, and the role of who did; what is not as the page sends it is denied."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            raise Denied(413, f"a command has at most {MAX_BODY} bytes")
        body = self.rfile.read(int(length))
        self.page.access.check_origin(self.headers.get("Origin"), self.headers.get("Host"))
        role = self._role()
        if self.headers.get_content_type() != "application/json":
            raise Denied(415, "commands are application/json")
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Denied(400, "a command is a JSON object")
        return message, role

    def _reply(self, status: int, content: Any, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._send(status, json.dumps(content).encode(), "application/json", headers)

    def _send(self, status: int, body: bytes, kind: str, headers: Mapping[str, str]) -> None:
        self._head(status, kind, {"Content-Length": str(len(body)), **headers})
        self.wfile.write(body)

    def _head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        fixed = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
        for name, value in {"Content-Type": kind, "Referrer-Policy": "no-referrer", **fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for the run."""
