"""Headless Chromium for tests of the page, driven by its DevTools protocol over two pipes; no further library.

See https://chromedevtools.github.io/devtools-protocol for the protocol. Names resolve to nothing, so that a page which
asks another host for anything fails, and every request is recorded.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.browser
_SECONDS = 30.0
_RECORD_VIOLATIONS = """
window.policyReports = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.policyReports.push(`${event.violatedDirective}: ${event.blockedURI || event.sample} (${event.sourceFile})`));
"""


class BrowserError(Exception):
    """The browser answered with an error, or not in time."""


class Browser:
    """A browser with one tab, with a profile of its own.

    Args:
        folder: An empty folder for its profile.
        width: The width of the window, in CSS pixels.
        height: Its height.
    """

    def __init__(self, folder: Path, width: int = 1400, height: int = 900) -> None:
        assert CHROMIUM is not None
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._session = ""
        to_read, self._orders = os.pipe()
        self._messages, to_write = os.pipe()
        self.process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                f"--window-size={width},{height}",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=lambda: _take_pipes(to_read, to_write),
        )
        os.close(to_read)
        os.close(to_write)
        threading.Thread(target=self._read, daemon=True).start()
        targets = self._call("Target.getTargets", session="")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self._call("Target.attachToTarget", {"targetId": page, "flatten": True}, session="")
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", {"source": _RECORD_VIOLATIONS})
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._orders)  # Chromium ends when its pipe does.
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def forget(self) -> None:
        """Leave the page, and forget all that was recorded of it."""
        self.call("Page.navigate", {"url": "about:blank"})
        self.wait_for("document.readyState === 'complete' && location.href === 'about:blank'")
        self.events.clear()

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a method of the tab, and return its result."""
        return self._call(method, parameters, session=self._session)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the page, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", metrics)

    def use_theme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        """Open a page from scratch, and wait until it is loaded."""
        self.call("Page.navigate", {"url": "about:blank"})
        self.wait_for("document.readyState === 'complete' && location.href === 'about:blank'")
        self.call("Page.navigate", {"url": url})
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are waited for."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", parameters)
        if "exceptionDetails" in result:
            raise BrowserError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = _SECONDS) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.value(f"Boolean({expression})"):
                    return
            except BrowserError:
                pass  # The page is being replaced.
            if time.monotonic() > deadline:
                complaints = "; ".join(self.complaints())
                raise BrowserError(f"not true after {seconds:g} s: {expression}; {complaints}")
            time.sleep(0.02)

    def wait_ready(self, page: str = "", seconds: float = _SECONDS) -> None:
        """Wait until the page marks itself as complete."""
        mark = "document.documentElement.dataset.ready"
        self.wait_for(f"{mark} === {json.dumps(page)}" if page else mark, seconds)

    def press(self, key: str) -> None:
        """Press and release a key, such as `j` or `Enter`."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, **(text if kind == "keyDown" else {})})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse from a point of the page to another, in CSS pixels."""
        held = {"button": "left", "clickCount": 1}
        points = [("mousePressed", start), *(("mouseMoved", _between(start, end, n / 5)) for n in range(1, 6))]
        for kind, (x, y) in [*points, ("mouseReleased", end)]:
            self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "buttons": 1, **held})

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        found = self.call("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))

    def requests(self) -> list[str]:
        """Return the URL of every request so far; `data:` URLs are none."""
        sent = (each["params"]["request"]["url"] for each in self._of("Network.requestWillBeSent"))
        return [url for url in sent if not url.startswith("data:")]

    def foreign_requests(self, *hosts: str) -> list[str]:
        """Return the URLs of requests to other hosts and ports than these."""
        return [url for url in self.requests() if urlsplit(url).netloc not in hosts]

    def received_bytes(self) -> int:
        """Return the number of bytes that arrived over the network so far."""
        return round(sum(each["params"]["encodedDataLength"] for each in self._of("Network.loadingFinished")))

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, exceptions, and reports of the content security policy."""
        found = [
            f"{each['params']['entry']['level']}: {each['params']['entry']['text']}"
            f" {each['params']['entry'].get('url', '')}"
            for each in self._of("Log.entryAdded")
            if each["params"]["entry"]["level"] in ("error", "warning")
        ]
        for each in self._of("Runtime.exceptionThrown"):
            details = each["params"]["exceptionDetails"]
            found.append(str(details.get("exception", {}).get("description") or details.get("text")))
        for each in self._of("Runtime.consoleAPICalled"):
            if each["params"]["type"] in ("error", "warning", "assert"):
                found.append(str([item.get("value", item.get("description")) for item in each["params"]["args"]]))
        try:
            found += self.value("window.policyReports || []")
        except BrowserError:
            pass
        return found

    def _of(self, method: str) -> Iterator[dict[str, Any]]:
        return (event for event in list(self.events) if event["method"] == method)

    def _call(self, method: str, parameters: dict[str, Any] | None = None, *, session: str) -> dict[str, Any]:
        number = next(self._numbers)
        answers = self._answers[number] = queue.Queue()
        order = {"id": number, "method": method, "params": parameters or {}}
        if session:
            order["sessionId"] = session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        try:
            answer = answers.get(timeout=_SECONDS)
        except queue.Empty:
            raise BrowserError(f"{method} was not answered within {_SECONDS:g} s") from None
        finally:
            del self._answers[number]
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> None:
        with os.fdopen(self._messages, "rb", buffering=0) as messages:
            rest = b""
            while chunk := messages.read(1 << 20):
                *whole, rest = (rest + chunk).split(b"\0")
                for text in whole:
                    message = json.loads(text)
                    waiting = self._answers.get(message.get("id", 0))
                    if waiting is not None:
                        waiting.put(message)
                    elif "method" in message:
                        self.events.append(message)


@contextmanager
def opened_browser(folder: Path, width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """Start a browser with a profile below a folder, and end it afterwards."""
    with Browser(folder / "chromium", width, height) as browser:
        yield browser


def _between(start: tuple[float, float], end: tuple[float, float], share: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _take_pipes(orders: int, messages: int) -> None:
    """In the child: make the pipes its descriptors 3 and 4, and let it inherit no others."""
    high = max(orders, messages, 4) + 1
    os.dup2(orders, high)
    os.dup2(messages, high + 1)
    os.dup2(high, 3)
    os.dup2(high + 1, 4)
    os.closerange(5, 4096)
