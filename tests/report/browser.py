"""A real Chromium, driven over the DevTools protocol by pipe: no package, no port, no network."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCHER = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)


class BrowserError(AssertionError):
    """Chromium is missing, hangs or refuses a command."""


def find_chromium():
    given = os.environ.get("CHROMIUM")
    found = [given] if given else [shutil.which(name) for name in NAMES]
    path = next((one for one in found if one), None)
    if path is None:
        raise BrowserError("Chromium is not installed: run `make browser`, or set CHROMIUM=/path.")
    return path


class Browser:
    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        commands, self._send = _pipe()
        self._receive, answers = _pipe()
        arguments = [find_chromium(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(commands), str(answers), *arguments],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.events = []

    def close(self):
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        os.close(self._receive)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, timeout=60, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self, deadline, method):
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._receive], [], [], left)[0]:
                raise BrowserError(f"{method}: Chromium did not answer in time.")
            chunk = os.read(self._receive, 1 << 20)
            if not chunk:
                raise BrowserError(f"{method}: Chromium ended with {self._process.wait()}.")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, **view):
        return Page(self, path, **view)


class Page:
    """A file in a tab of its own, offline, with everything it says recorded."""

    def __init__(self, browser, path, *, width=1280, height=900, dark=False, mobile=False):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        self.resize(width, height, mobile)
        self.theme(dark)
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'true'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def resize(self, width, height=900, mobile=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def theme(self, dark, media=""):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def evaluate(self, expression):
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression, timeout=30):
        deadline = time.monotonic() + timeout
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise BrowserError(f"still false: {expression}; the page said {self.complaints()}")
            time.sleep(0.02)

    def press(self, key, code, number, text=""):
        pressed = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", **(pressed | {"type": kind}))

    def point_at(self, selector, across=0.5, down=0.5, kind="mouseMoved"):
        """Move the mouse over an element; ``kind`` may press or release the button there."""
        self.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"(() => {{ const box = document.querySelector({selector!r}).getBoundingClientRect();"
            "return [box.x, box.y, box.width, box.height]; })()"
        )
        x, y = box[0] + across * box[2], box[1] + down * box[3]
        for step in (2, 0):  # a pointer that appears is not one that moves
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)
        if kind != "mouseMoved":
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, selector, start, end):
        """Press the button at one share of an element's width and release it at another."""
        self.point_at(selector, start, kind="mousePressed")
        self.point_at(selector, end, kind="mouseReleased")

    def _own(self, method):
        events = (event for event in self.browser.events if event.get("sessionId") == self.session)
        return [event["params"] for event in events if event["method"] == method]

    def complaints(self):
        """Exceptions, console errors and warnings, and what the browser itself logged."""
        said = [f"exception {one}" for one in self._own("Runtime.exceptionThrown")]
        for one in self._own("Runtime.consoleAPICalled"):
            if one["type"] in ("error", "warning", "assert"):
                said.append(f"console {one['args']}")
        said += [f"log {one['entry']}" for one in self._own("Log.entryAdded")]
        return said

    def requested(self):
        """The addresses that the page asked for."""
        return [one["request"]["url"] for one in self._own("Network.requestWillBeSent")]

    def screenshot(self, path, full=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self._target)


def _pipe():
    """A pipe whose ends are far from the descriptors that Chromium wants."""
    ends = []
    for end in os.pipe():
        ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20))
        os.close(end)
    return ends
