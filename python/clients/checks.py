"""What the client scripts share: saying what holds, ending at the first difference, and plain HTTP.

Owns Checks and Server (requests of the standard library alone, for what no client package asks). Knows nothing of any
client package. Read next: openai_client.py, anthropic_client.py, lm_eval_shape.py.
"""
import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request

PATIENCE = 60  # seconds until something that must happen soon counts as never happening


class Checks:
    """Counts and prints what holds. The first thing that does not ends the process with 1."""

    def __init__(self):
        self.count = 0

    def that(self, holds, what, detail=""):
        if not holds:
            print(f"FAIL {what}" + (f"\n     {detail}" if detail else ""), flush=True)
            sys.exit(1)
        self.count += 1
        print(f"ok   {what}", flush=True)

    def equal(self, got, wanted, what):
        self.that(got == wanted, what, f"got {got!r}\n     not {wanted!r}")

    def raises(self, kind, call, what, status=None, code=None, param=None):
        """`call` must raise exactly this class of the client package; returns what it raised."""
        try:
            call()
        except Exception as error:  # any other class is a failure with its name, not a traceback
            self.that(type(error) is kind, f"{what}: {kind.__name__}", f"got {type(error).__name__}: {error}")
            for name, wanted in (("status_code", status), ("code", code), ("param", param)):
                if wanted is not None:
                    self.equal(getattr(error, name), wanted, f"  its {name} is {wanted}")
            return error
        return self.that(False, f"{what}: {kind.__name__}", "nothing was raised")

    def soon(self, call, what):
        """`call` must become true; waits for it, and never forever."""
        end = time.monotonic() + PATIENCE
        while not call():
            if time.monotonic() > end:
                self.that(False, what, f"not within {PATIENCE} seconds")
            time.sleep(0.02)
        self.that(True, what)

    def done(self):
        print(f"all {self.count} checks hold", flush=True)


class Server:
    """The server itself, asked without any client package."""

    def __init__(self, url, key=""):
        self.url = url.rstrip("/")
        self.key = key
        self.model = self.get("/v1/models")["data"][0]["id"]
        self.info = self.get("/server_info")

    def request(self, method, path, body=None):
        """(status, text) of any answer, also of errors."""
        request = urllib.request.Request(self.url + path, method=method,
                                         data=None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.key}")  # without a key just "Bearer ", as lm-eval sends it
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE * 5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, method, path, body=None):
        status, text = self.request(method, path, body)
        if status != 200:
            print(f"FAIL {method} {path}: status {status}: {text}", flush=True)
            sys.exit(1)
        return json.loads(text)

    def get(self, path):
        return self.json("GET", path)

    def post(self, path, body):
        return self.json("POST", path, body)

    def tokenize(self, text):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.request("GET", "/metrics")[1].splitlines():
            match = re.fullmatch(r"carpool:(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in match[2] for k, v in labels.items()):
                total += float(match[3])
        return total

    def aborted(self):
        return self.metric("request_success_total", finished_reason="abort")

    def load(self):
        """(running, waiting) requests."""
        load = self.get("/load")
        return load["num_running_reqs"], load["num_waiting_reqs"]


def arguments(description, sections=(), later=()):
    """--url, --api-key and, where there are sections, --only; `later` ones run only when they are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the running server (default: %(default)s)")
    parser.add_argument("--api-key", default="", help="when the server has keys")
    if sections:
        parser.add_argument("--only", default=",".join(sections),
                            help="comma-separated sections (default: %(default)s)" +
                            "".join(f"; also {name}" for name in later))
    return parser


def chosen(only, known):
    names = only.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no section {unknown[0]}: there are {', '.join(known)}")
    return names
