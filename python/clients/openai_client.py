#!/usr/bin/env python3
"""The stock `openai` package against a running server.

    python python/clients/openai_client.py --url http://127.0.0.1:8080 [--api-key KEY] [--only chat,errors]

Sections: models, chat, choices, completions, structure, errors, keys (with --api-key), cancel; overload only when named, for it
fills the queue: start the server with --max-running-requests 2 --max-queued-requests 4, and a slow model such as
dummy:canary,step_us=20000. Prints every check and exits 1 at the first difference. Versions: python/requirements.txt.
"""
import json
import re
import sys
from typing import Literal, Optional

import openai
import pydantic

import checks

try:
    import jsonschema
except ImportError:  # then only the client's own models judge
    jsonschema = None

QUESTION = [{"role": "user", "content": "Tell me of the sea and of the old ship."}]
PROMPT = "The old lighthouse keeper"
ENDLESS = {"ignore_eos": True}  # go on to max_tokens, so that counts are known
PLAIN = {"routing": "isolated"}  # the same text whoever shares the batch


class Session:
    """The client, the server and the checks of one run."""

    def __init__(self, check, server, options):
        self.check, self.server, self.model = check, server, server.model
        self.url, self.key = server.url + "/v1", options.api_key
        self.other_key = options.other_key
        self.client = self.client_of(options.api_key or "none")

    def client_of(self, key):
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=checks.PATIENCE * 5)

    def chat(self, messages=None, extra=None, **fields):
        fields = {"temperature": 0, "max_tokens": 24, **fields}
        return self.client.chat.completions.create(model=self.model, messages=messages or QUESTION,
                                                   extra_body={**PLAIN, **(extra or {})}, **fields)

    def complete(self, prompt=PROMPT, extra=None, **fields):
        fields = {"temperature": 0, "max_tokens": 24, **fields}
        return self.client.completions.create(model=self.model, prompt=prompt,
                                              extra_body={**PLAIN, **(extra or {})}, **fields)


def models(s):
    listed = s.client.models.list()
    s.check.equal([m.id for m in listed], [s.model], "models.list() has the one model")
    s.check.equal(s.client.models.retrieve(s.model).id, s.model, "models.retrieve() finds it")
    s.check.raises(openai.NotFoundError, lambda: s.client.models.retrieve("no-such-model"),
                   "models.retrieve() of another", 404, "model_not_found")


def joined_chat(stream):
    """What the chunks of a chat stream say together, by index of the choice."""
    texts, reasons, roles, scores, usage = {}, {}, {}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.role:
                roles.setdefault(choice.index, choice.delta.role)
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.logprobs:
                scores.setdefault(choice.index, []).extend(choice.logprobs.content or [])
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, roles, scores, usage


def chat(s):
    raw = s.client.chat.completions.with_raw_response.create(
        model=s.model, messages=QUESTION, temperature=0, max_tokens=24, extra_body=PLAIN)
    whole = raw.parse()
    text = whole.choices[0].message.content
    s.check.that(text, "chat answers with text", repr(whole))
    s.check.equal((whole.object, whole.choices[0].message.role, whole.model), ("chat.completion", "assistant", s.model),
                  "object, role and model are those asked for")
    s.check.equal(whole.usage.prompt_tokens + whole.usage.completion_tokens, whole.usage.total_tokens, "usage adds up")
    s.check.that(whole.usage.prompt_tokens_details.cached_tokens >= 0, "usage says how much of the prompt was cached")
    s.check.equal(raw.headers["x-carpool-routing"], "isolated", "the header says how the request was routed")
    s.check.equal(whole.model_extra["carpool"]["routing"], "isolated", "so does the body")

    texts, reasons, roles, _, usage = joined_chat(s.chat(stream=True, stream_options={"include_usage": True}))
    s.check.equal(texts, {0: text}, "a stream has the same text")
    s.check.equal((reasons, roles), ({0: whole.choices[0].finish_reason}, {0: "assistant"}), "  its end, its role")
    s.check.equal((usage.prompt_tokens, usage.completion_tokens),
                  (whole.usage.prompt_tokens, whole.usage.completion_tokens), "  and the same usage")
    with s.client.chat.completions.stream(
            model=s.model, messages=QUESTION, temperature=0, max_tokens=24, extra_body=PLAIN) as events:
        pieces = [e.delta for e in events if e.type == "content.delta"]
        final = events.current_completion_snapshot  # get_final_completion() refuses what ended by length
    s.check.equal(("".join(pieces), final.choices[0].message.content), (text, text), "the package's event helper agrees")

    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    s.check.equal(s.chat(parts).choices[0].message.content, text, "content as a list of parts is the same prompt")
    longer = [{"role": "system", "content": "You are a sailor."}, *QUESTION, {"role": "assistant", "content": text},
              {"role": "user", "content": "And then?"}]
    s.check.that(s.chat(longer).usage.prompt_tokens > whole.usage.prompt_tokens, "a conversation has a longer prompt")
    five = s.chat(max_tokens=openai.omit, max_completion_tokens=5, extra=ENDLESS)
    s.check.equal((five.usage.completion_tokens, five.choices[0].finish_reason), (5, "length"),
                  "max_completion_tokens ends a text")
    chat_logprobs(s)


def chat_logprobs(s):
    answer = s.chat(logprobs=True, top_logprobs=3)
    whole, content = answer.choices[0], answer.choices[0].logprobs.content
    s.check.equal(len(content), answer.usage.completion_tokens, "logprobs has an entry per token")
    for entry in content:
        best = [t.logprob for t in entry.top_logprobs]
        if len(best) != 3 or best != sorted(best, reverse=True) or entry.logprob != best[0] or best[0] > 0:
            s.check.that(False, "top_logprobs are 3, best first, and greedy takes the best", repr(entry))
    s.check.that(True, "top_logprobs are 3, best first, and greedy takes the best")
    said = b"".join(bytes(entry.bytes) for entry in content).decode(errors="replace")
    s.check.that(said.startswith(whole.message.content), "the tokens' bytes are the text", f"{said!r}")
    _, _, _, scores, _ = joined_chat(s.chat(logprobs=True, top_logprobs=3, stream=True))
    s.check.equal(scores, {0: content}, "a stream has the same logprobs")


def choices(s):
    """n, seed and stop, whole and streamed."""
    def texts_of(answer):
        return [c.message.content for c in sorted(answer.choices, key=lambda c: c.index)]

    three = texts_of(s.chat(n=3, seed=7, temperature=1))
    s.check.equal(len(three), 3, "n = 3 gives three choices")
    s.check.that(len(set(three)) > 1, "  that differ", repr(three))
    s.check.equal(texts_of(s.chat(n=3, seed=7, temperature=1)), three, "the same seed gives the same texts")
    s.check.that(texts_of(s.chat(n=3, seed=8000, temperature=1)) != three, "another seed gives others")
    streamed, reasons, _, _, _ = joined_chat(s.chat(n=3, seed=7, temperature=1, stream=True))
    s.check.equal([streamed[i] for i in range(3)], three, "a stream of three choices has the same texts")
    s.check.equal(len(reasons), 3, "  and three ends")
    s.check.equal(texts_of(s.chat(n=2, temperature=0, seed=1))[1], texts_of(s.chat())[0], "greedy choices are alike")

    free = s.complete(max_tokens=40, extra=ENDLESS).choices[0].text
    stop = free[len(free) // 2:][:4]
    for label, value in (("a stop string", stop), ("a list of them", ["never there", stop])):
        ended = s.complete(max_tokens=40, stop=value, extra=ENDLESS).choices[0]
        s.check.equal((ended.text, ended.finish_reason), (free[:free.index(stop)], "stop"), f"{label} ends the text")
        parts = list(s.complete(max_tokens=40, stop=value, stream=True, extra=ENDLESS))
        s.check.equal("".join(c.text for p in parts for c in p.choices), ended.text, "  also of a stream")


def joined_completion(stream):
    """Text, token ids and scores of one streamed choice."""
    text, ids, tokens, scores, offsets, reason = "", [], [], [], [], None
    for part in stream:
        for choice in part.choices:
            text += choice.text
            ids += (choice.model_extra or {}).get("token_ids") or []
            if choice.logprobs:
                tokens += choice.logprobs.tokens
                scores += choice.logprobs.token_logprobs
                offsets += choice.logprobs.text_offset
            reason = choice.finish_reason or reason
    return text, ids, tokens, scores, offsets, reason


def completions(s):
    whole = s.complete()
    text = whole.choices[0].text
    s.check.that(text and whole.object == "text_completion", "completions answers with text", repr(whole))
    ids = s.server.tokenize(PROMPT)
    s.check.equal(whole.usage.prompt_tokens, len(ids), "usage counts the prompt's tokens")
    s.check.equal(s.complete(ids).choices[0].text, text, "a prompt of token ids has the same text")
    other = "There was once a baker's boy"
    for label, prompts in (("texts", [PROMPT, other]), ("lists of token ids", [ids, s.server.tokenize(other)])):
        two = s.complete(prompts).choices
        s.check.equal([c.index for c in two], [0, 1], f"two {label} give two choices in their order")
        s.check.equal([c.text for c in two], [text, s.complete(other).choices[0].text], "  with their own texts")
    s.check.equal([c.index for c in s.complete([PROMPT, other], n=2, seed=3, temperature=1).choices], [0, 1, 2, 3],
                  "two prompts and n = 2 give four choices")

    echoed = s.complete(echo=True, logprobs=2, extra={"return_token_ids": True}).choices[0]
    scores = echoed.logprobs
    s.check.equal(echoed.text, PROMPT + text, "echo begins with the prompt")
    s.check.equal("".join(scores.tokens), echoed.text, "the tokens are the text")
    s.check.equal(scores.text_offset, [len("".join(scores.tokens[:i])) for i in range(len(scores.tokens))],
                  "text_offset counts characters")
    s.check.equal((scores.token_logprobs[0], scores.top_logprobs[0]), (None, None), "the first token has no score")
    s.check.that(all(len(t) in (2, 3) for t in scores.top_logprobs[1:]), "the others have the best 2, and themselves")
    streamed = joined_completion(s.complete(echo=True, logprobs=2, stream=True, extra={"return_token_ids": True}))
    s.check.equal(streamed, (echoed.text, echoed.model_extra["token_ids"], scores.tokens, scores.token_logprobs,
                             scores.text_offset, echoed.finish_reason), "a stream says the same, tokens and scores too")
    s.check.equal(s.complete(max_tokens=0, echo=True).choices[0].text, PROMPT, "max_tokens 0 with echo is the prompt")

    forced = s.complete(max_tokens=3, logit_bias={str(ids[0]): 100}, extra={"return_token_ids": True}).choices[0]
    s.check.equal(forced.model_extra["token_ids"], [ids[0]] * 3, "logit_bias forces a token")
    penalised = s.complete(frequency_penalty=2, presence_penalty=2, extra={"repetition_penalty": 1.5, "min_p": 0.1})
    s.check.that(penalised.choices[0].text != text, "penalties change the text")
    s.check.equal(s.complete(temperature=1, seed=5, extra={"top_k": 1}).choices[0].text, text, "top_k 1 is greedy")
    s.check.equal(s.complete(temperature=1, seed=5, top_p=1e-6).choices[0].text, text, "so is a tiny top_p")


def errors(s):
    bad, missing = openai.BadRequestError, openai.NotFoundError
    other = s.client.with_options()
    s.check.raises(missing, lambda: other.chat.completions.create(model="no-such-model", messages=QUESTION),
                   "another model", 404, "model_not_found")
    s.check.raises(bad, lambda: s.complete(temperature=-1), "temperature -1", 400, "invalid_value", "temperature")
    s.check.raises(bad, lambda: s.complete(max_tokens="many"), "max_tokens of text", 400, None, "max_tokens")
    s.check.raises(bad, lambda: s.complete(n=1000), "n = 1000", 400, "too_many_items", "n")
    s.check.raises(bad, lambda: s.complete(logprobs=1000), "logprobs = 1000", 400, "too_many_items", "logprobs")
    s.check.raises(bad, lambda: s.complete([0] * (s.server.info["context_length"] + 1)), "a prompt beyond the context",
                   400, "context_length_exceeded")
    s.check.raises(bad, lambda: s.complete([]), "an empty list of prompts", 400, "invalid_value", "prompt")
    s.check.raises(bad, lambda: s.complete([-1]), "a token id below 0", 400, "invalid_value")
    s.check.raises(bad, lambda: s.complete(suffix="x"), "suffix", 400, "unsupported_value", "suffix")
    s.check.raises(bad, lambda: s.complete(extra={"routing": "roulette"}), "an unknown routing", 400, "invalid_value",
                   "routing")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    s.check.raises(bad, lambda: s.chat(tools=[tool]), "tools", 400, "unsupported_value", "tools")
    no_schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "not": {}}}}
    s.check.raises(bad, lambda: s.chat(response_format=no_schema), "a schema that cannot be kept", 400)
    s.check.raises(bad, lambda: s.chat([{"role": "wizard", "content": "x"}]), "an unknown role", 400, "invalid_value",
                   "messages[0].role")
    s.check.raises(bad, lambda: s.complete(temperature=-1, stream=True), "a bad value of a stream", 400)
    s.check.raises(missing, lambda: s.client.embeddings.create(model=s.model, input="x"), "an unknown endpoint", 404,
                   "route_not_found")
    error = s.check.raises(openai.APIStatusError, lambda: s.client.get("/completions", cast_to=object),
                           "GET where POST is", 405, "method_not_allowed")
    s.check.that(error.request_id, "an error names the request, for the log", repr(error.response.headers))
    s.check.equal(error.type, "invalid_request_error", "  and has a type")
    s.check.that(s.complete().choices[0].text, "after all of them the server answers")


def keys(s):
    if not s.key:
        s.check.raises(openai.PermissionDeniedError,
                       lambda: s.client.post(s.server.url + "/admin/policy", cast_to=object, body={"policy": "topk"}),
                       "operators' calls on a server without an admin key", 403, "admin_disabled")
        return
    s.check.raises(openai.AuthenticationError, lambda: s.client_of("wrong").models.list(), "a wrong key", 401,
                   "invalid_api_key")
    s.check.raises(openai.AuthenticationError,
                   lambda: s.client_of("wrong").completions.create(model=s.model, prompt="x", stream=True),
                   "a wrong key for a stream", 401, "invalid_api_key")
    s.check.that(s.client.models.list(), "the right key")


def long_stream(s, client=None, **fields):
    room = s.server.info["context_length"] - 16
    return (client or s.client).completions.create(model=s.model, prompt=[1], temperature=0, max_tokens=room,
                                                   stream=True, extra_body={**PLAIN, **ENDLESS}, **fields)


def cancel(s):
    """Leaving ends the work: a stream that is closed, and a client that does not wait for a whole answer."""
    s.check.soon(lambda: s.server.load() == (0, 0), "the server is idle")
    before = s.server.aborted()
    stream = long_stream(s)
    next(iter(stream))
    s.check.soon(lambda: s.server.load()[0] == 1, "a stream runs")
    stream.close()
    s.check.soon(lambda: s.server.load() == (0, 0), "once it is closed, nothing runs")
    s.check.equal(s.server.aborted() - before, 1, "  and the request counts as aborted")
    stream = long_stream(s, n=4)
    next(iter(stream))
    s.check.soon(lambda: s.server.load()[0] >= 2, "a stream of four choices runs")
    stream.close()
    s.check.soon(lambda: s.server.load() == (0, 0), "once it is closed, nothing runs")
    s.check.equal(s.server.aborted() - before, 5, "  and all four count as aborted")
    room = s.server.info["context_length"] - 16
    s.check.raises(openai.APITimeoutError,
                   lambda: s.client.with_options(timeout=5).completions.create(
                       model=s.model, prompt=[1], max_tokens=room, extra_body={**PLAIN, **ENDLESS}),
                   "a client that gives up on a whole answer")
    s.check.soon(lambda: s.server.load() == (0, 0), "once it is gone, nothing runs")
    s.check.equal(s.server.aborted() - before, 6, "  and the request counts as aborted")


def overload(s):
    """Every place taken, every place of the queue taken: the next is refused at once, and leaving makes room."""
    running, queued = s.server.info["max_running_requests"], s.server.info["max_queued_requests"]
    share = queued if not s.other_key else queued // 4
    s.check.that(running + queued <= 64, f"{running} places and a queue of {queued} can be filled by a test")
    streams = []
    for _ in range(running):
        streams.append(long_stream(s))
        next(iter(streams[-1]))
    streams += [long_stream(s) for _ in range(share)]
    s.check.soon(lambda: s.server.load() == (running, share), f"{running} requests run and {share} wait")
    kind, status, code = ((openai.RateLimitError, 429, "key_queue_full") if s.other_key else
                          (openai.InternalServerError, 503, "overloaded"))
    for label, call in (("one more stream", lambda: long_stream(s)), ("one more request", lambda: s.complete("x")),
                        ("one more chat", s.chat)):
        error = s.check.raises(kind, call, label, status, code)
        s.check.that(int(error.response.headers["retry-after"]) >= 1, "  it says when to come back")
    if s.other_key:
        stream = long_stream(s, s.client_of(s.other_key))
        s.check.soon(lambda: s.server.load() == (running, share + 1), "another key still has room")
        streams.append(stream)
    s.check.that(s.client.models.list(), "what needs no place is answered")
    streams.pop(running).close()

    def next_gets_in():
        try:
            streams.append(long_stream(s))
        except kind:
            return False
        return True

    s.check.soon(next_gets_in, "one that waits leaves: its place is for the next")
    for stream in streams:
        stream.close()
    s.check.soon(lambda: s.server.load() == (0, 0), "when all have left, the server is idle")
    s.check.that(s.complete("x", max_tokens=1).choices, "  and answers")


class Harbour(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    ships: int = pydantic.Field(ge=0, le=400)
    wind: Literal["north", "south"]
    depth: Optional[float] = pydantic.Field(ge=0, le=99.5)


# What grammars are made of, each in a schema that models are asked for.
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer", "exclusiveMinimum": -7, "maximum": 1203}}, "required": ["a"]},
    {"type": "array", "items": {"type": "string", "pattern": "^[A-Z][a-z]{1,5}( [0-9]+)?$"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": "x"}, {"type": ["number", "null"], "minimum": -0.25, "maximum": 2.5}],
     "items": False, "minItems": 2},
    {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "uuid"}]},
    {"allOf": [{"type": "object", "properties": {"a": {"enum": [1, "b", None, [2]]}}, "required": ["a"]},
               {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "properties": {"k": {"const": 1}}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}, "required": ["v", "next"]}}},
    {"type": "string", "minLength": 3, "maxLength": 9},
]


def structure(s):
    for seed in range(4):
        answer = s.client.chat.completions.parse(
            model=s.model, messages=QUESTION, temperature=1, seed=seed, max_tokens=200, response_format=Harbour, extra_body=PLAIN)
        s.check.that(isinstance(answer.choices[0].message.parsed, Harbour), "the package parses the answer into its own model",
                     repr(answer.choices[0].message))
    judged = wrong = 0
    for schema in SCHEMAS:
        wish = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
        for choice in s.chat(temperature=1, seed=5, n=8, max_tokens=400, response_format=wish).choices:
            if choice.finish_reason == "length":  # recursion and strings may go on for longer
                continue
            judged += 1
            value = json.loads(choice.message.content)
            if jsonschema and not jsonschema.Draft202012Validator(schema).is_valid(value):
                wrong += 1
                print(f"{schema}: {choice.message.content}")
    s.check.that(judged >= 5 * 8, "most of them end before max_tokens", str(judged))
    s.check.equal(wrong, 0, "every answer is JSON of its schema" + ("" if jsonschema else " (jsonschema is not installed)"))
    wish = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMAS[0]}}
    whole = s.chat(temperature=1, seed=2, max_tokens=60, response_format=wish).choices[0]
    texts, reasons, *_ = joined_chat(s.chat(temperature=1, seed=2, max_tokens=60, response_format=wish, stream=True))
    s.check.equal((texts[0], reasons[0]), (whole.message.content, whole.finish_reason), "a stream has the same text")
    text = s.chat(temperature=1, seed=1, extra={"regex": r"[A-Z][a-z]+ [0-9]{2}"}).choices[0].message.content
    s.check.that(re.match(r"[A-Z][a-z]", text), "a regular expression holds", text)
    text = s.complete(temperature=1, seed=1, extra={"guided_choice": ["east", "west"]}).choices[0].text
    s.check.that(text in ("east", "west"), "so does a choice", text)
    bad = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"typ": "string"}}}}}
    s.check.raises(openai.BadRequestError, lambda: s.chat(response_format=bad), "an unknown keyword", 400, "unsupported_value")


SECTIONS = {"models": models, "chat": chat, "choices": choices, "completions": completions, "structure": structure, "errors": errors,
            "keys": keys, "cancel": cancel, "overload": overload}
LATER = ("overload",)


def main():
    usual = [name for name in SECTIONS if name not in LATER]
    parser = checks.arguments(__doc__, usual, LATER)
    parser.add_argument("--other-key", default="", help="of a second tenant: overload is then that of one key alone")
    options = parser.parse_args()
    names = checks.chosen(options.only, SECTIONS)
    check = checks.Checks()
    session = Session(check, checks.Server(options.url, options.api_key), options)
    for name in names:
        print(f"== {name}", flush=True)
        SECTIONS[name](session)
    check.done()


if __name__ == "__main__":
    sys.exit(main())
