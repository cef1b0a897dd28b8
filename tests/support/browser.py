"""A headless Chromium for flow tests, driven over its debugging pipe: no driver, no port.

    with Browser(tmp_path) as page:
        page.open(kiln.url("/todo/"))
        page.wait("document.querySelectorAll('li').length == 2")
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

PATIENCE = float(os.environ.get("KILN_TEST_PATIENCE", "60"))


def program():
    """The browser's path, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, base: Path, *options: str):
        self.options = options
        self.base = Path(base)
        self.number = 0
        self.session = None
        self.buffer = b""

    def __enter__(self):
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()

        def pipes():
            # 3 is read and 4 written by the browser; away from those numbers first.
            a, b = os.dup(to_read), os.dup(to_write)
            high_a, high_b = os.dup2(a, 100), os.dup2(b, 101)
            os.dup2(high_a, 3)
            os.dup2(high_b, 4)

        self.process = subprocess.Popen(
            [
                program(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                f"--user-data-dir={self.base / 'chromium'}",
                "--remote-debugging-pipe",
                *self.options,
                "about:blank",
            ],
            preexec_fn=pipes,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        return self

    def __exit__(self, kind, value, traceback):
        try:
            session, self.session = self.session, None
            self.call("Browser.close")
        except (OSError, AssertionError):
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)

    def call(self, method: str, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.from_browser, 65536)
            assert part, "the browser has ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    # ---- a page -----------------------------------------------------------------------------
    def open(self, url: str):
        self.run("window.isOld = true")
        self.call("Page.navigate", url=url)
        self.wait(f"!window.isOld && document.readyState == 'complete' && location.href == {json.dumps(url)}")

    def run(self, script: str):
        """The value of the expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float = PATIENCE):
        """Until the expression is true. While a page gives way to the next, it may fail or its world end."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self.run(f"(() => {{ try {{ return !!({condition}) }} catch (e) {{ return false }} }})()"):
                    return
            except AssertionError:
                assert self.process.poll() is None, "the browser has ended"
            assert time.monotonic() < deadline, f"waited in vain for {condition}; the page: {self.run('document.body.innerHTML')[:2000]}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def type(self, selector: str, text: str):
        """Into a field, as a person would: focus, text, events."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def choose_files(self, selector: str, files):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(f) for f in files])
