#!/usr/bin/env python3
"""Checks the page at / of a running server in headless Chromium: a chat that streams, and the live view of distinct
experts that changes when the policy is switched.

    python/clients/page_check.py --url http://127.0.0.1:8080 --admin-key KEY [--screenshot page.png]

Needs the package `playwright` and Chromium (Debian: chromium). The server runs a model with a chat template under
`topk`, allows a policy switch by KEY, and shares routing between all rows (one key, or none).
"""

import argparse
import json
import re
import shutil
import threading
import urllib.request

from checks import Checks
from playwright.sync_api import sync_playwright

ROWS = 24


class Crowd:
    """Keeps a batch of ROWS rows decoding until it is stopped, so that there is something to see."""

    def __init__(self, url):
        self.url, self.wanted = url, True
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        body = {"prompt": ["The old lighthouse"] * ROWS, "max_tokens": 900, "ignore_eos": True, "temperature": 1}
        while self.wanted:
            request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                             {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()

    def stop(self):
        self.wanted = False
        self.thread.join()


def number(page, name):
    found = re.search(r"[\d.]+", page.inner_text("#" + name))
    return float(found.group()) if found else None


def say(page, text):
    """Sends a message; returns the lengths of the answer as it grew, and its note."""
    page.evaluate("""() => {
        window.lengths = [];
        new MutationObserver(() => {
            const answers = document.querySelectorAll('.message:not(.user)');
            if (answers.length) window.lengths.push(answers[answers.length - 1].textContent.length);
        }).observe(document.getElementById('messages'), {childList: true, characterData: true, subtree: true});
    }""")
    notes = page.locator(".note").count()
    page.fill("#prompt", text)
    page.click("#send")
    page.locator(".note").nth(notes).wait_for(state="attached")
    page.locator("#send:not([disabled])").wait_for(timeout=120_000)
    return sorted(set(page.evaluate("window.lengths"))), page.locator(".note").last.inner_text()


def look(page):
    """Distinct experts per layer that are loaded, and that plain routing would load, in five looks at a full batch."""
    experts, plain = [], []
    for _ in range(400):
        if (number(page, "rows") or 0) > ROWS / 2 and len(experts) < 5:
            experts.append(number(page, "experts"))
            plain.append(number(page, "plain"))
        page.wait_for_timeout(600)
        if len(experts) == 5:
            break
    return experts, plain


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--admin-key", required=True)
    parser.add_argument("--policy", default="oea:k0=3")
    parser.add_argument("--screenshot")
    options = parser.parse_args()
    checks = Checks()
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        trouble = []
        page.on("console", lambda m: trouble.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("request", lambda r: trouble.append("asks " + r.url) if not r.url.startswith((options.url, "data:")) else None)
        page.goto(options.url + "/")
        page.locator("#policy", has_text="topk").wait_for()
        page.fill("#tokens", "300")
        lengths, note = say(page, "Tell me of the sea.")
        checks.that(len(lengths) >= 4, f"the answer grew in {len(lengths)} steps to {max(lengths)} characters")
        checks.that("topk" in note, "its note says how it was routed")
        crowd = Crowd(options.url)
        try:
            experts, plain = look(page)
            checks.equal(experts, plain, "under topk what is loaded is what plain routing loads")
            checks.that(len(experts) == 5 and min(experts) > 20, f"and that is {experts} experts per layer")
            checks.that(page.locator(".layer").count() >= 2, "one bar per layer")
            page.fill("#newpolicy", options.policy)
            page.fill("#adminkey", "wrong")
            page.click("#switch button")
            page.wait_for_selector("#switched.error")
            page.fill("#adminkey", options.admin_key)
            page.click("#switch button")
            page.locator("#switched", has_text="now").wait_for()
            page.wait_for_timeout(2000)  # the shown means forget the steps before the switch
            experts, plain = look(page)
            checks.that(len(experts) == 5 and all(e < 0.9 * q for e, q in zip(experts, plain)),
                        f"after the switch {experts} are loaded where plain routing would load {plain}")
            _, note = say(page, "And of the <b>mountains</b>?")
            checks.that(options.policy in note, "a note names the new policy")
            checks.that(page.locator("#messages b").count() == 0, "what the user typed is shown as text")
            page.fill("#users", "8")
            lengths, _ = say(page, "Once more.")
            checks.that(max(lengths) > 0, "of several answers at once the first is shown")
            if options.screenshot:
                page.screenshot(path=options.screenshot)
        finally:
            crowd.stop()
        trouble = [t for t in trouble if "status of 401" not in t and "status of 403" not in t]  # the wrong key
        checks.equal(trouble, [], "no errors in the console, and no other machine was asked for anything")
        browser.close()


if __name__ == "__main__":
    main()
