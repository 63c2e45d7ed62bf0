#!/usr/bin/env python3
"""Drives the page of `agoge serve` with headless Chromium over the DevTools protocol: types, streams, stops, edits, retries, compares,
exports, and takes screenshots at desktop and phone width, light and dark. Python's own library and Debian's chromium only.

    chat_page.py http://127.0.0.1:8000 OUT_DIR        (a server with at least one adapter, to compare)
"""
import base64, json, os, subprocess, sys, tempfile, time


class Browser:
    def __init__(self):
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

        def fds():
            os.dup2(to_child, 3)
            os.dup2(from_child, 4)

        # dup2 onto 3 and 4 must not close what it copies from
        to_child, from_child = os.dup2(to_child, 20), os.dup2(from_child, 21)
        self.process = subprocess.Popen(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--mute-audio",
                                         "--hide-scrollbars", f"--user-data-dir={self.profile.name}", "about:blank"], preexec_fn=fds,
                                        pass_fds=(3, 4, 20, 21), stderr=subprocess.DEVNULL)
        self.n, self.rest, self.requests, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Network":
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.inp, 1 << 20)
            line, self.rest = self.rest.split(b"\0", 1)
            got = json.loads(line)
            if got.get("method") == "Network.requestWillBeSent":
                self.requests.append(got["params"]["request"]["url"])
            if got.get("id") == self.n:
                if "error" in got:
                    raise SystemExit(f"{method}: {got['error']}")
                return got["result"]

    def js(self, code):
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{code}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, code, seconds=60):
        end = time.time() + seconds
        while not self.js(code):
            if time.time() > end:
                raise SystemExit("never came true: " + code)
            time.sleep(0.05)

    def key(self, key, code, modifiers=0):
        text = "\r" if key == "Enter" else None
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def look(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def shot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()


def check(condition, what):
    print("ok  " if condition else "BAD ", what)
    if not condition:
        raise SystemExit(1)


def main():
    url, out = sys.argv[1].rstrip("/"), sys.argv[2]
    os.makedirs(out, exist_ok=True)
    b = Browser()
    idle = "document.getElementById('stop').hidden"
    b.look(1280, 800, False)
    b.call("Page.navigate", url=url + "/")
    b.until("document.readyState === 'complete' && document.getElementById('model').options.length > 0")
    b.shot(f"{out}/empty-desktop-light.png")

    # Type and stream.
    b.js("document.getElementById('max_tokens').value = 80; document.getElementById('temperature').value = 0; keepSettings()")
    b.js("document.getElementById('input').focus()")
    b.type("Name three colours and say where they are seen.")
    b.key("Enter", 13)
    b.until("!" + idle)
    b.until("chat.turns[0].answers[0].text.length > 20")
    check(not b.js(idle), "the answer streams: part of it is there before its end")
    b.until(idle)
    answer = b.js("chat.turns[0].answers[0].text")
    check(len(answer) > 40 and b.js("document.querySelector('.answer .text').textContent.length") > 40, "the whole answer is shown")

    # Stop with Escape.
    b.js("document.getElementById('max_tokens').value = 3000; document.getElementById('input').focus()")
    b.type("Write a very long story about a mill.")
    b.key("Enter", 13)
    b.until("chat.turns.length === 2 && chat.turns[1].answers[0].text.length > 20")
    b.key("Escape", 27)
    b.until(idle)
    check(b.js("chat.turns[1].answers[0].note") == "stopped", "Escape stops an answer")
    b.js("document.getElementById('max_tokens').value = 60")

    # Retry and edit.
    b.js("document.querySelectorAll('[aria-label^=\"Ask \"]')[0].click()")
    b.until("chat.turns.length === 1 && " + idle)
    check(b.js("chat.turns[0].answers[0].text").startswith(answer[:40]), "retrying a greedy answer gives it again")
    b.js("document.querySelector('[aria-label=\"Edit this message\"]').click()")
    b.until("document.activeElement.className === 'edit'")
    b.js("document.activeElement.value = 'Name one river.'")
    b.key("Enter", 13)
    b.until("chat.turns[0].user === 'Name one river.' && " + idle)
    check(b.js("chat.turns.length") == 1, "an edited message is asked again")

    # Two models side by side.
    names = b.js("[...document.getElementById('model').options].map(o => o.value)")
    if len(names) > 1:
        b.js(f"document.getElementById('model').value = {json.dumps(names[0])}; document.getElementById('other').value = {json.dumps(names[1])};"
             "document.getElementById('compare').click(); document.getElementById('input').focus()")
        b.type("What do you like about rivers?\nAnswer with ```text\na block\n``` if you can.")
        b.key("Enter", 13)
        b.until("chat.turns.length === 2")
        b.until(idle)
        check(b.js("chat.turns[1].answers.map(a => a.model)") == names[:2] and b.js("chat.turns[1].answers.every(a => a.text)"), "two models answer side by side")
        b.js("document.querySelectorAll('input[type=radio]')[0].click()")
        check(b.js("chat.turns[1].pick") == 0, "one of them is kept")

    # What is exported, what is kept, who was asked.
    row = json.loads(b.js("exportRows()"))
    check([m["role"] for m in row["messages"]] == ["user", "assistant"] * b.js("chat.turns.length"), "the export is a row of messages")
    with open(f"{out}/conversation.jsonl", "w") as f:
        f.write(b.js("exportRows()"))
    for width, height, name in (1280, 800, "desktop"), (390, 844, "phone"):
        for dark in False, True:
            b.look(width, height, dark)
            time.sleep(0.2)
            b.js("toEnd()")
            b.shot(f"{out}/talk-{name}-{'dark' if dark else 'light'}.png")
            check(b.js("document.documentElement.scrollWidth <= innerWidth"), f"nothing is cut off at {width} pixels")
    b.js("document.getElementById('settings').open = true")
    b.shot(f"{out}/settings-phone-dark.png")
    b.look(1280, 800, False)
    b.shot(f"{out}/settings-desktop-light.png")
    before = b.js("JSON.stringify(chat.turns.map(t => t.user))")
    b.call("Page.reload")
    b.until("document.readyState === 'complete' && typeof chat === 'object' && document.getElementById('model').options.length > 0")
    check(b.js("JSON.stringify(chat.turns.map(t => t.user))") == before, "the conversation is still there after a reload")
    unnamed = b.js("[...document.querySelectorAll('button, input, select, textarea')].filter(e => !e.hidden && !(e.labels && e.labels.length) && "
                   "!e.getAttribute('aria-label') && !e.textContent.trim()).length")
    check(unnamed == 0, "every control has a name")
    others = sorted({r for r in b.requests if not r.startswith((url, "data:", "blob:", "about:"))})
    check(not others, f"no request leaves for another place {others}")
    b.close()


main()
