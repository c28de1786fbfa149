"""Control a headless Chromium through its debugging pipe, without further packages."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page of a running browser."""

    def __init__(self, requests: int, responses: int) -> None:
        self._requests, self._responses, self._buffer, self._id, self._session = requests, responses, b"", 0, ""
        #: Errors and console messages, such as violations of the content security policy.
        self.messages: list[str] = []

    def open(self, url: str, width: int = 900, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of the given size."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        if dark:
            features = [{"name": "prefers-color-scheme", "value": "dark"}]
            self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._id:
            if answer.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.messages.append(json.dumps(answer["params"]))
        assert "error" not in answer, answer
        return answer["result"]

    def evaluate(self, code: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, code: str, seconds: float = 20.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(code):
            assert time.monotonic() < deadline, f"{code} did not become true; {self.messages}"
            time.sleep(0.02)

    def screenshot(self, path: Path) -> None:
        """Save a picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._responses], [], [], 30)[0], "Chromium does not answer"
            chunk = os.read(self._responses, 2**16)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Run Chromium with a new profile, and yield a page."""
    assert CHROMIUM is not None
    (to_read, requests), (responses, to_write) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    redirected = f'exec "$@" 3<&{to_read} 4>&{to_write}'
    process = subprocess.Popen(
        ["bash", "-c", redirected, "chromium", CHROMIUM, *options],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read), os.close(to_write)
    try:
        page = Page(requests, responses)
        yield page
        page._session = ""
        page.call("Browser.close")
        process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(requests), os.close(responses)
