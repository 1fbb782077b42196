"""A headless Chromium that a test drives by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Tab:
    """The one page of the browser."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._calls = 0

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._calls += 1
        call = {"id": self._calls, "method": method, "params": arguments}
        await self._connection.write_message(json.dumps(call))
        while True:
            answer = json.loads(await self._connection.read_message())
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def value(self, script: str) -> Any:
        """Evaluate an expression of JavaScript."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait_for(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression of JavaScript is true."""
        deadline = time.monotonic() + seconds
        while not await self.value(script):
            assert time.monotonic() < deadline, f"{script} is not true"
            await asyncio.sleep(0.05)

    async def picture(self, path: Path, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await asyncio.sleep(0.3)  # the page adapts itself at its next frame
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


def browse(directory: Path, url: str, use: Callable[[Tab], Awaitable[None]]) -> None:
    """Open a page in a browser that keeps its files in `directory`, and use it."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--remote-debugging-port=0", f"--user-data-dir={directory}"]
    with subprocess.Popen(
        [CHROMIUM, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as browser:
        try:
            asyncio.run(_use(directory, url, use))
        finally:
            browser.terminate()


async def _use(directory: Path, url: str, use: Callable[[Tab], Awaitable[None]]) -> None:
    from tornado.httpclient import AsyncHTTPClient
    from tornado.websocket import websocket_connect

    port_file = directory / "DevToolsActivePort"
    deadline = time.monotonic() + 60
    while not port_file.exists() or "\n" not in port_file.read_text():
        assert time.monotonic() < deadline, "the browser does not start"
        await asyncio.sleep(0.05)
    port = port_file.read_text().split()[0]
    listed = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
    (page,) = [one for one in json.loads(listed.body) if one["type"] == "page"]
    connection = await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 26)
    tab = Tab(connection)
    await tab.call("Page.enable")
    await tab.call("Page.navigate", url=url)
    await use(tab)
    connection.close()
