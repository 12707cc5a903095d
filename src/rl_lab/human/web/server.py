"""Serves the operator's page by Python's own HTTP server, with TLS where there is a certificate."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import socket
import ssl
import sys
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from importlib.resources import files
from threading import BoundedSemaphore, Thread
from typing import Any

from rl_lab.core import ConfigError
from rl_lab.core.durable import reason
from rl_lab.human.web.access import Access, Listening
from rl_lab.human.web.billboard import Billboard
from rl_lab.human.web.requests import Page, PageHandler
from rl_lab.human.web.sessions import Sessions

PAGE = "data/operator/page.html"
MAX_CONNECTIONS = 128  # a browser keeps up to six
logger = logging.getLogger(__name__)


class PageServer:
    """Owns the socket and its threads.

    Args:
        listening: Where.
        access: Who may do what.
        sessions: The people.
        billboard: What is shown.
        state: Returns what is true now, for JSON.
    """

    def __init__(
        self,
        listening: Listening,
        access: Access,
        sessions: Sessions,
        billboard: Billboard,
        state: Callable[[], dict[str, Any]],
    ) -> None:
        html = files("rl_lab").joinpath(PAGE).read_bytes()
        is_secure = listening.certificate is not None
        page = Page(html, _content_policy(html.decode()), access, sessions, billboard, state, is_secure)
        self._billboard = billboard
        try:
            handler = type("Handler", (PageHandler,), {"page": page})
            self._server = _Server((listening.host, listening.port), handler)
        except OSError as error:
            where = f"{listening.host}:{listening.port}"
            raise ConfigError(
                f"listening: {where} cannot be listened at ({reason(error)}); port 0 takes any"
            ) from error
        if listening.certificate is not None:
            try:
                self._server.socket = _with_tls(self._server.socket, listening.certificate, listening.authority)
            except ConfigError:
                self._server.server_close()
                raise
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        self.url = f"{'https' if is_secure else 'http'}://{host}:{self._server.server_address[1]}/"
        Thread(target=self._server.serve_forever, args=(0.1,), name="operator page", daemon=True).start()

    def close(self) -> None:
        """End all streams and free the port."""
        self._billboard.close()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], handler: type[PageHandler]) -> None:
        self._free = BoundedSemaphore(MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let a thread answer; there are not more of them than there may be connections."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that went away or do not speak HTTP; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError | ValueError):
            logger.exception("the operator's page failed")


def _content_policy(page: str) -> str:
    """Return what the page may do: its own script and style, pictures in it, requests to where it came from."""
    hashes = {
        tag: base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        for tag in ("script", "style")
        if (found := re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
    }
    sources = "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in hashes.items())
    rest = "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {sources}; {rest}"


def _with_tls(plain: socket.socket, certificate: str, authority: str | None) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"listening.certificate: {certificate} is no certificate with its key ({error})") from error
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except OSError as error:
            raise ConfigError(f"listening.authority: {authority} is no certificate ({error})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
