# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven over its debugging pipe: messages are JSON that ends in a zero byte."""
import base64
import json
import os
import subprocess
import tempfile
import time


class Browser:
    """A browser with one page."""

    def __init__(self, program="chromium"):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_browser, browser_writes = os.pipe()
        browser_reads, to_browser = os.pipe()

        def place():  # the browser reads commands from descriptor 3 and writes answers to 4
            moved = os.dup(browser_reads), os.dup(browser_writes)
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
             "--ignore-certificate-errors", "--hide-scrollbars", "--force-device-scale-factor=1", "--user-data-dir=" + self.profile.name],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(browser_writes)
        os.close(browser_reads)
        self.reader, self.writer = os.fdopen(from_browser, "rb"), os.fdopen(to_browser, "wb")
        self.rest, self.number, self.session = b"", 0, None
        self.problems = []  # exceptions of scripts, errors on the console, refusals of the content security policy
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.reader.fileno(), 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        self.writer.flush()
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError("%s: %s" % (method, answer["error"]))
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(answer["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            entry = answer.get("params", {}).get("entry", {})
            if answer.get("method") == "Log.entryAdded" and entry["level"] == "error":
                self.problems.append(entry["text"])

    def view(self, width, height, dark=False, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait(self, what, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise RuntimeError("waited too long until " + what + "; the page says: " + self.evaluate("document.body.innerText")[:500])
            time.sleep(0.1)

    def screenshot(self, path, whole=True, **options):
        options.setdefault("format", "png")
        if whole and "clip" not in options:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **options)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (RuntimeError, BrokenPipeError):
            pass
        self.process.wait(30)
        self.profile.cleanup()
