"""A headless Chromium, driven over the WebDriver protocol with the standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)


def missing():
    """Which of the two programs are not installed, as text; empty where both are."""
    wanted = {"chromium": find_chromium(), "chromedriver": shutil.which("chromedriver")}
    return ", ".join(name for name, path in wanted.items() if path is None)


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One window with a profile of its own in ``folder``; the processes that it starts end with it."""

    def __init__(self, folder: Path, size=(1280, 1000)):
        self.folder, self.size = folder, size

    def __enter__(self):
        self.output = (self.folder / "chromedriver.log").open("w+b")
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=self.output, stderr=subprocess.STDOUT
        )
        try:
            self.port = self._port()
            profile = self.folder / "profile"
            options = {
                "binary": find_chromium(),
                "args": [
                    *FLAGS,
                    f"--user-data-dir={profile}",
                    f"--window-size={self.size[0]},{self.size[1]}",
                ],
            }
            wanted = {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            body = {"capabilities": {"alwaysMatch": wanted}}
            self.session = f"/session/{self._send('POST', '/session', body)['sessionId']}"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._send("DELETE", self.session)
        finally:
            self._end()

    def _end(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        self.output.close()

    def _port(self):
        for _ in range(300):
            said = Path(self.output.name).read_text(errors="replace")
            if found := re.search(r"started successfully on port (\d+)", said):
                return int(found[1])
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"chromedriver did not start: {said}")

    def _send(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        text = json.dumps({} if body is None else body) if method == "POST" else None
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message']}")
        return answer

    def post(self, path, **body):
        return self._send("POST", self.session + path, body)

    def open(self, path: Path):
        self.post("/url", url=path.resolve().as_uri())

    def run(self, script, *arguments):
        """The value of a script, which returns it."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def wait_for(self, script, *arguments, seconds=30):
        """The first true value of a script."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.run(script, *arguments):
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s in vain for: {script}")

    def move(self, x, y):
        """Move the mouse to a point of the window, by way of another one."""
        at = {"type": "pointerMove", "origin": "viewport", "duration": 20}
        path = [{**at, "x": round(x) + 2, "y": round(y) + 2}, {**at, "x": round(x), "y": round(y)}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": path}
        self.post("/actions", actions=[mouse])

    def press(self, key):
        """Press a key on what has the focus."""
        stroke = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": stroke}])

    def show_as(self, media, scheme="light"):
        """Lay the page out for "print" or "screen", for a light or a dark one."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._tell("Emulation.setEmulatedMedia", media=media, features=features)

    def on_a_phone(self, width, height):
        """Lay pages out for a small screen that is touched; (0, 0) for the window again."""
        phone = width > 0
        self._tell("Emulation.setTouchEmulationEnabled", enabled=phone)
        if phone:
            size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}
            self._tell("Emulation.setDeviceMetricsOverride", **size)
        else:
            self._tell("Emulation.clearDeviceMetricsOverride")

    def _tell(self, command, **parameters):
        """Give a command of the DevTools protocol."""
        self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def resize(self, width, height):
        self.post("/window/rect", width=width, height=height)

    def logs(self, kind):
        return self.post("/se/log", type=kind)

    def screenshot(self, path: Path):
        path.write_bytes(base64.b64decode(self._send("GET", f"{self.session}/screenshot")))
