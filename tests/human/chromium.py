"""Headless Chromium by the WebDriver protocol and the standard library alone. Debian: chromium, chromium-driver."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how the protocol marks an element
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
)
KEYS = {"right": "\ue014", "up": "\ue013"}
LONG_S = 60.0


def skip_without_chromium():
    for program in ("chromedriver", "chromium"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt install chromium chromium-driver)")


class Browser:
    """One tab; every method talks to ChromeDriver."""

    def __init__(self, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._session = ""
        self._until(lambda: self._ask("GET", "/status")["ready"])
        options = {"args": [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,860"]}
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
        self._session = "/session/" + self._ask("POST", "/session", wanted)["sessionId"]

    def open(self, url):
        self._ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def is_enabled(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return Boolean(e && !e.disabled)", selector)

    def click(self, selector):
        self._ask("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector, text):
        self._ask("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, selector):
        """Hold the mouse down on an element."""
        origin = {ELEMENT: self._find(selector)}
        self._act("pointer", [{"type": "pointerMove", "origin": origin, "x": 0, "y": 0}, {"type": "pointerDown"}])

    def release(self):
        self._act("pointer", [{"type": "pointerUp"}])

    def key_down(self, key):
        self._act("key", [{"type": "keyDown", "value": KEYS.get(key, key)}])

    def key_up(self, key):
        self._act("key", [{"type": "keyUp", "value": KEYS.get(key, key)}])

    def resize(self, width, height):
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def kill(self):
        """End the browser as a crash does: no page gets to say goodbye."""
        for pid in _descendants(self._driver.pid):
            os.kill(pid, signal.SIGKILL)

    def close(self):
        self.kill()
        self._driver.kill()
        self._driver.wait()

    def _find(self, selector):
        return self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _act(self, kind, actions):
        steps = [{"button": 0, **action} if action["type"].startswith("pointer") else action for action in actions]
        self._ask("POST", "/actions", {"actions": [{"type": kind, "id": kind, "actions": steps}]})

    def _ask(self, method, path, content=None):
        url = f"http://127.0.0.1:{self._port}{self._session}{path}"
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LONG_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def _until(self, is_true):
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                if is_true():
                    return
            except OSError:
                pass  # it is not listening yet
            assert time.monotonic() < deadline, "chromedriver does not answer"
            time.sleep(0.05)


def _descendants(pid):
    children = [
        int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
    ]
    return [*children, *(found for child in children for found in _descendants(child))]
