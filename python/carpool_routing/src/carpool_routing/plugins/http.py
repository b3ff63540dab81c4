"""The plug-in over the server's own port: counters in /metrics, the policy under /admin/policy.

`Endpoints` is ASGI middleware: it adds the counters of all workers, under carpool's names, to what the server answers to
GET /metrics (or answers alone where the server has no such page), shows everything as JSON under /carpool, and switches
between plain routing and the configured policy. That is what `carpool bench-serve --ab-via admin` needs.
"""
from __future__ import annotations

import hmac
import json
import os
import pathlib
from typing import Any, Awaitable, Callable

from .host import state_directory
from .settings import from_environment

KEY = "CARPOOL_ADMIN_KEY"
_NAMES = {"calls": "moe_layer_steps_total", "distinct_experts": "moe_distinct_experts_total",
          "distinct_plain": "moe_distinct_experts_plain_total", "slots": "moe_slots_total",
          "rerouted_rows": "moe_rerouted_tokens_total", "underfilled_rows": "moe_underfilled_tokens_total"}


def workers(directory: pathlib.Path) -> list[dict[str, Any]]:
    """The last words of every worker."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("worker-*.json"))]


def prometheus(states: list[dict[str, Any]]) -> str:
    """The counters in Prometheus' text format; steps are those that the plug-in looked at."""
    sums: dict[str, int] = {}
    for state in states:
        for name, value in state["counters"].items():
            sums[name] = sums.get(name, 0) + value
    lines = []
    for name, value in sums.items():
        group, _, reason = name.partition(".")
        if reason:
            lines.append(f'carpool:moe_rows_total{{reason="{reason}"}} {value}')
        else:
            lines.append(f'carpool:{_NAMES[group]}{{steps="decode"}} {value}')
    for kind, title in (("left_plain", "steps_left_plain_total"), ("refusals", "refusals_total")):
        counts: dict[str, int] = {}
        for state in states:
            for reason, value in state[kind].items():
                counts[reason] = counts.get(reason, 0) + value
        for reason, value in counts.items():
            escaped = reason.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'carpool:{title}{{reason="{escaped}"}} {value}')
    return "".join(line + "\n" for line in lines)


class Endpoints:
    """ASGI middleware around the server's application."""

    def __init__(self, app: Any):
        self.app, self.state = app, state_directory()
        settings = from_environment()
        self.policy = settings.policy if settings else "topk"

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]):
        path = scope.get("path") if scope["type"] == "http" else None
        if path in ("/metrics", "/metrics/") and scope["method"] == "GET":
            return await self._metrics(scope, receive, send)
        if path == "/carpool" and scope["method"] == "GET":
            return await _answer(send, 200, {"policy": self.current(), "workers": workers(self.state)})
        if path == "/admin/policy":
            return await self._policy(scope, receive, send)
        return await self.app(scope, receive, send)

    def current(self) -> str:
        try:
            return (self.state / "policy").read_text().strip()
        except FileNotFoundError:
            return self.policy

    async def _metrics(self, scope: Any, receive: Any, send: Any) -> None:
        """The server's own page, whatever it is, and ours after it."""
        status, headers, body = 500, [], b""

        async def collect(message: Any) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status, headers = message["status"], message.get("headers", [])
            else:
                body += message.get("body", b"")

        # Compressed pages could not be added to.
        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, receive, collect)
        if status == 404:
            status, headers, body = 200, [(b"content-type", b"text/plain; version=0.0.4")], b""
        if status == 200:
            body += prometheus(workers(self.state)).encode()
        kept = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        kept.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": kept})
        await send({"type": "http.response.body", "body": body})

    async def _policy(self, scope: Any, receive: Any, send: Any) -> None:
        key = os.environ.get(KEY, "")
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not key:
            return await _answer(send, 403, {"error": {"message": f"{KEY} is not set: the policy cannot be switched"}})
        if not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return await _answer(send, 401, {"error": {"message": "the admin key is wrong or missing"}})
        if scope["method"] == "GET":
            return await _answer(send, 200, {"policy": self.current()})
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            wanted = json.loads(body)["policy"]
        except (ValueError, KeyError, TypeError):
            wanted = None
        if wanted not in ("topk", self.policy):
            sentence = f"the policy of this server is topk or {self.policy}, fixed when it was started"
            return await _answer(send, 400, {"error": {"message": sentence}})
        scratch = self.state / "policy.tmp"
        scratch.write_text(wanted)
        scratch.replace(self.state / "policy")
        return await _answer(send, 200, {"policy": wanted})


async def _answer(send: Any, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
