"""A real browser, driven by the WebDriver protocol: plain HTTP, no library."""

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time

import httpx

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]


def missing():
    """What is not there, for the reason of a skip; nothing if all is."""
    wanted = {"chromium": "chromium", "chromedriver": "chromium-driver"}
    gone = [package for command, package in wanted.items() if shutil.which(command) is None]
    return f"no browser (Debian: {' '.join(gone)})" if gone else ""


class Browser:
    """One window. Everything that it asked the network for is known."""

    def __init__(self, width=1280, height=900):
        self._home = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            [shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        started = next(line for line in self._driver.stdout if "started successfully on port" in line)
        port = re.search(r"port (\d+)", started)[1]
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=200)
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={self._home.name}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 180_000, "pageLoad": 180_000},  # milliseconds: a machine may be busy
        }
        self._session = ""
        self._session = f"/session/{self._post('/session', capabilities={'alwaysMatch': wanted})['sessionId']}"
        self.requests = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._client.delete(self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(20)
            self._driver.stdout.close()
            self._client.close()
            self._home.cleanup()

    def _post(self, path, **body):
        answer = self._client.post(self._session + path, json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value.get("message")
        return value

    def go(self, url):
        """Open a page."""
        self._post("/url", url=url)

    def run(self, script, *arguments):
        """What a script returns."""
        return self._post("/execute/sync", script=script, args=list(arguments))

    def tool(self, command, **parameters):
        """A command of the browser's own tools."""
        return self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def until(self, script, seconds=120.0):
        """Wait until a script returns something true, which is returned; or else the last."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def size(self, width, height, phone=False):
        """Another window."""
        self.tool(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def scheme(self, name):
        """Light or dark."""
        self.tool("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def key(self, key, code=0, text=""):
        """A key that is pressed and let go."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.tool("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.tool("Input.dispatchKeyEvent", type="keyUp", **about)

    def picture(self, whole=False):
        """What is seen, as PNG; or the whole page."""
        return base64.b64decode(self.tool("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def asked(self):
        """The addresses of all requests so far."""
        for entry in self._post("/se/log", type="performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
        return self.requests

    def complaints(self):
        """What the browser's console has of errors, since the last time."""
        return [entry["message"] for entry in self._post("/se/log", type="browser") if entry["level"] == "SEVERE"]
