"""The page of `malt run --dashboard`, and the requests that it makes.

The page can stop the job, so every request needs a token, which only the launcher's user sees on
standard error. Two attacks of other sites through the user's browser are refused besides:

- a name of the attacker's that leads to this host (DNS rebinding): the Host header must be an
  address, localhost, or this host's name;
- a form or script of another site (CSRF): a POST has the token in a header of its own, which other
  sites cannot set, and an Origin header, if there is one, that names this server.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from malt._errors import ConfigError
from malt._launch.scale import COUNT, LEAVE
from malt._watching.board import SAMPLE_SECONDS, Sent
from malt._watching.http_server import Handler, Server
from malt._watching.page import assembled

# By path: the name of the number in the query, and what it is about.
_CHANGES = {"/scale": ("count", COUNT), "/leave": ("rank", LEAVE)}
_MOST_READERS = 16  # of events


class Dashboard:
    """Serves the page on a socket that listens, as long as this process lives.

    Attributes:
        url: where it is, with the token.
    """

    def __init__(
        self,
        listening: socket.socket,
        events: Callable[[Sent], dict[str, Any]],
        stop: Callable[[], None],
        scale: Callable[[str, int], str] | None,
    ) -> None:
        """Begin to serve.

        Args:
            listening: the socket.
            events: returns what has happened since the last call with the same argument.
            stop: stops the job.
            scale: changes the job and says what was done (`malt._launch.scale.ask`); None: the job
                is not elastic.
        """
        self.events, self.stop, self.scale = events, stop, scale
        self.readers = threading.Semaphore(_MOST_READERS)
        self.page = assembled("live.html")
        self.names = ("localhost", socket.gethostname().lower())
        self._token = secrets.token_urlsafe()
        host, port = listening.getsockname()[:2]
        shown = self.names[1] if ipaddress.ip_address(host).is_unspecified else host
        shown = f"[{shown}]" if ":" in shown else shown
        self.url = f"http://{shown}:{port}/?token={self._token}"
        Server(listening, type("Requests", (_Requests,), {"dashboard": self}))

    def is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())


class _Requests(Handler):
    dashboard: Dashboard

    def do_GET(self) -> None:  # noqa: N802
        asked = _split(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        if not self._is_allowed(token):
            return
        if asked.path == "/":
            nonce = secrets.token_urlsafe()
            page = self.dashboard.page.replace("NONCE", nonce).encode()
            policy = (
                f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
                "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'"
            )
            self.answer(
                *(200, "text/html; charset=utf-8", page),
                Content_Security_Policy=policy,
                Cache_Control="no-store",
                Referrer_Policy="no-referrer",
            )
        elif asked.path == "/events":
            self._send_events()
        else:
            self._say(404, "there is no such page")

    def do_POST(self) -> None:  # noqa: N802
        asked = _split(self.path)
        origin = self.headers.get("Origin")
        if not self._is_allowed(self.headers.get("X-Malt-Token", "")):
            return
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            self._say(403, "this request comes from another site")
        elif asked.path == "/stop":
            self.dashboard.stop()
            self._say(200, "the ranks are being stopped")
        elif asked.path in _CHANGES:
            self._change(asked.path, parse_qs(asked.query))
        else:
            self._say(404, "there is no such action")

    def _is_allowed(self, token: str) -> bool:
        if not self.dashboard.is_token(token):
            text = "the token is missing or wrong: open the URL that `malt run` has printed"
            self._say(403, text)
            return False
        self.keep()
        name = _split(f"//{self.headers.get('Host', '')}").hostname or ""
        if name not in self.dashboard.names and not _is_address(name):
            self._say(403, f"this server is not {name}: use its address, or localhost")
            return False
        return True

    def _change(self, path: str, query: Mapping[str, Sequence[str]]) -> None:
        name, what = _CHANGES[path]
        number = query.get(name, [""])[0]
        if self.dashboard.scale is None:
            self._say(409, "ranks can leave and be added only in a job of `malt run --elastic`")
            return
        try:
            self._say(200, self.dashboard.scale(what, int(number)))
        except ConfigError as error:
            self._say(409, str(error))
        except ValueError:
            self._say(409, f"{name}={number!r} is not a number")

    def _send_events(self) -> None:
        """Send what has happened, again and again, until the reader has gone or is too slow."""
        if not self.dashboard.readers.acquire(blocking=False):
            self._say(503, f"{_MOST_READERS} pages are open already: close one")
            return
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            sent: Sent = {}
            while True:
                text = json.dumps(self.dashboard.events(sent), allow_nan=False)
                self.wfile.write(f"data: {text}\n\n".encode())
                time.sleep(SAMPLE_SECONDS)
        finally:
            self.dashboard.readers.release()

    def _say(self, code: int, text: str) -> None:
        self.answer(code, "text/plain; charset=utf-8", f"{text}\n".encode())


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # "//[", for one
        return urlsplit("")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
