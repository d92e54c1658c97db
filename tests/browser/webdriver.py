# SPDX-License-Identifier: Apache-2.0
"""A small client of the W3C WebDriver protocol, on Python's standard library: what the tests of the page need."""
import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name that the protocol gives to references
TAB, ENTER, RIGHT, SHIFT, SPACE = "\ue004", "\ue007", "\ue014", "\ue008", "\ue00d"


def missing():
    """What of the browser is not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class DriverError(Exception):
    pass


class Browser:
    def __init__(self, width=1000, height=800):
        self.folder = tempfile.TemporaryDirectory(prefix="moebius-browser-")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                break
        self.base = f"http://127.0.0.1:{found.group(1)}"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                            f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}"],
                   "perfLoggingPrefs": {"enableNetwork": True}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += "/session/" + answer["sessionId"]
        # Counts what the page's policy stops, from before the page's own script runs.
        self.cdp("Page.addScriptToEvaluateOnNewDocument", source="window.reports = []; addEventListener('securitypolicyviolation', "
                 "(e) => window.reports.push(e.violatedDirective + ' ' + e.blockedURI));")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        except (DriverError, OSError):
            pass
        self.driver.terminate()
        self.driver.wait()
        self.folder.cleanup()

    def call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as e:
            raise DriverError(f"{path}: {e.read().decode()[:400]}") from None

    def cdp(self, command, **arguments):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": arguments})

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, css):
        return self.call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def find_all(self, css):
        return [e[ELEMENT] for e in self.call("POST", "/elements", {"using": "css selector", "value": css})]

    def click(self, css):
        self.call("POST", f"/element/{self.find(css)}/click")

    def role(self, element):
        return self.call("GET", f"/element/{element}/computedrole")

    def label(self, element):
        return self.call("GET", f"/element/{element}/computedlabel")

    def text(self, css):
        return self.run("const e = document.querySelector(arguments[0]); return e ? e.textContent : null", css)

    def fill(self, css, text):
        self.run("const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('change'))", css, text)

    def keys(self, text):
        """Keys pressed one after another, wherever the focus is."""
        actions = [{"type": kind, "value": c} for c in text for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def focused(self):
        return self.run("return document.activeElement.id || document.activeElement.textContent")

    def until(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s; the page says {self.text('#state')!r}")
            time.sleep(0.02)
        return value

    def screenshot(self, path):
        with open(path, "wb") as out:
            out.write(base64.b64decode(self.call("GET", "/screenshot")))

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def requests(self):
        """Addresses that were asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
