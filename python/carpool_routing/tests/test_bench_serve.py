"""`carpool bench-serve --ab` against a server with SGLang's interfaces and the plug-in: it switches, counts and compares.

CARPOOL_BINARY names the carpool binary; without it the test is skipped.
"""
import asyncio
import http.server
import json
import os
import subprocess
import threading

import pytest

torch = pytest.importorskip("torch")
from carpool_routing.plugins import sglang as plugin  # noqa: E402
from test_sglang import POLICY, decode, server  # noqa: E402, F401  (server is a fixture)

BINARY = os.environ.get("CARPOOL_BINARY", "")


def handler_of(runner, app, lock):
    class Handler(http.server.BaseHTTPRequestHandler):
        """/generate as SGLang streams it; everything else is the application's."""

        def log_message(self, *args):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path != "/generate":
                return self.application(body)
            request = json.loads(body)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for step in range(request["sampling_params"]["max_new_tokens"]):
                with lock:
                    runner.forward(decode([(step + row) % 40 for row in (1, 7, 12, 30)]))
                meta = {"completion_tokens": step + 1, "prompt_tokens": 4, "cached_tokens": 0, "finish_reason": None}
                self.wfile.write(f"data: {json.dumps({'text': 'a' * (step + 1), 'meta_info': meta})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def do_GET(self):
            self.application(b"")

        def application(self, body):
            got = []

            async def receive():
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message):
                got.append(message)

            headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            asyncio.run(app.outer({"type": "http", "method": self.command, "path": self.path, "headers": headers},
                                  receive, send))
            if plugin.host() is not None:
                plugin.host().publish()
            self.send_response(got[0]["status"])
            for name, value in got[0]["headers"]:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(b"".join(m.get("body", b"") for m in got[1:]))

    return Handler


@pytest.mark.skipif(not BINARY, reason="CARPOOL_BINARY does not name the carpool binary")
def test_bench_serve_compares_plain_routing_with_the_plug_in(server, monkeypatch, tmp_path):
    monkeypatch.setenv("CARPOOL_POLICY", POLICY)
    monkeypatch.setenv("CARPOOL_ADMIN_KEY", "secret")
    runner, _, app = server()
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(runner, app, threading.Lock()))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    command = [BINARY, "bench-serve", f"http://127.0.0.1:{web.server_address[1]}", "--backend", "sglang", "--ab", "topk",
               "--ab", POLICY, "--ab-via", "admin", "--admin-key", "secret", "--concurrency", "2", "--repeat", "2",
               "--num-prompts", "4", "--random-input-len", "4", "--random-output-len", "6", "--random-range-ratio", "1",
               "--warmup-requests", "0", "--vocab-size", "40", "--json", str(tmp_path / "ab.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    web.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "ab.json").read_text())["results"]
    by_policy = {row["policy"]: row for row in rows}
    ran = by_policy[POLICY]
    assert ran["rerouted_tokens"] > 0 and 0 < ran["distinct_experts"] < ran["distinct_experts_plain"], ran
    assert by_policy["topk"]["rerouted_tokens"] == 0
