#!/usr/bin/env python3
"""The stock `anthropic` package against a running server.

    python python/clients/anthropic_client.py --url http://127.0.0.1:8080 [--api-key KEY] [--only messages,errors]

Sections: messages, stream, errors, cancel. Prints every check and exits 1 at the first difference. Versions:
python/requirements.txt.
"""
import itertools
import sys

import anthropic

import checks

QUESTION = [{"role": "user", "content": "Tell me of the sea and of the old ship."}]
GREEDY = {"temperature": 0, "routing": "isolated"}


class Session:
    """The client, the server and the checks of one run."""

    def __init__(self, check, server, key):
        self.check, self.server, self.model, self.key = check, server, server.model, key
        self.client = self.client_of(key or "none")

    def client_of(self, key):
        return anthropic.Anthropic(base_url=self.server.url, api_key=key, max_retries=0, timeout=checks.PATIENCE * 5)

    def create(self, messages=None, extra=None, **fields):
        fields = {"max_tokens": 24, "model": self.model, **fields}
        return self.client.messages.create(messages=QUESTION if messages is None else messages,
                                           extra_body={**GREEDY, **(extra or {})}, **fields)


def prompt_tokens(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def messages(s):
    whole = s.create()
    s.check.equal((whole.type, whole.role, whole.model), ("message", "assistant", s.model), "type, role and model fit")
    s.check.equal([block.type for block in whole.content], ["text"], "its content is one block of text")
    text = whole.content[0].text
    s.check.that(text, "the text is not empty", repr(whole))
    s.check.that(whole.stop_reason in ("end_turn", "max_tokens"), "stop_reason is one of the API's", whole.stop_reason)
    s.check.that(whole.usage.output_tokens <= 24, "usage counts at most max_tokens")
    s.check.equal(whole.model_extra["carpool"]["routing"], "isolated", "the message says how it was routed")
    counted = s.client.messages.count_tokens(model=s.model, messages=QUESTION).input_tokens
    s.check.equal(counted, prompt_tokens(whole.usage), "count_tokens counts what messages counts")

    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    s.check.equal(s.create(parts).content[0].text, text, "content as a list of blocks is the same prompt")
    with_system = s.create(system="You are a sailor.")
    s.check.that(prompt_tokens(with_system.usage) > counted, "a system prompt makes the prompt longer")
    blocks = s.create(system=[{"type": "text", "text": "You are a sailor."}])
    s.check.equal(blocks.content[0].text, with_system.content[0].text, "a system prompt of blocks is the same")
    counted_too = s.client.messages.count_tokens(model=s.model, messages=QUESTION, system="You are a sailor.")
    s.check.equal(counted_too.input_tokens, prompt_tokens(with_system.usage), "count_tokens counts it, too")
    begun = [*QUESTION, {"role": "assistant", "content": text[: len(text) // 2].rstrip()}]
    continued = s.create(begun)
    s.check.that(continued.content[0].text, "an answer that is begun is continued", repr(continued))
    s.check.that(prompt_tokens(continued.usage) > counted, "  after what was begun")

    if len(text) > 8:
        stop = text[len(text) // 2:][:4]
        ended = s.create(stop_sequences=["never there", stop])
        s.check.equal((ended.stop_reason, ended.stop_sequence, "".join(b.text for b in ended.content)),
                      ("stop_sequence", stop, text[: text.index(stop)]), "a stop sequence ends the text and is named")


def stream(s):
    whole = s.create()
    text = whole.content[0].text
    with s.client.messages.stream(model=s.model, max_tokens=24, messages=QUESTION, extra_body=GREEDY) as events:
        pieces = list(events.text_stream)
        final = events.get_final_message()
    s.check.equal("".join(pieces), text, "a stream has the text of the whole")
    s.check.equal((final.content[0].text, final.stop_reason, final.usage.output_tokens),
                  (text, whole.stop_reason, whole.usage.output_tokens), "so has the package's final message")
    kinds = [event.type for event in s.create(stream=True) if event.type != "ping"]
    s.check.equal([kind for kind, _ in itertools.groupby(kinds)],
                  ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
                   "message_delta", "message_stop"], "its events come in the API's order")
    s.check.equal(len(pieces), kinds.count("content_block_delta"), "  with as many deltas as pieces of text")


def errors(s):
    bad = anthropic.BadRequestError
    s.check.raises(anthropic.NotFoundError, lambda: s.create(model="no-such-model"), "another model", 404)
    s.check.raises(bad, lambda: s.create(max_tokens=0), "max_tokens 0", 400)
    s.check.raises(bad, lambda: s.create([]), "no messages", 400)
    s.check.raises(bad, lambda: s.create([{"role": "wizard", "content": "x"}]), "an unknown role", 400)
    s.check.raises(bad, lambda: s.create(extra={"temperature": -1}), "temperature -1", 400)
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    s.check.raises(bad, lambda: s.create(tools=[tool]), "tools", 400)
    s.check.raises(bad, lambda: s.create(stream=True, max_tokens=0), "a bad value of a stream, before it begins", 400)
    picture = [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                                                         "data": "AAAA"}}]}]
    s.check.raises(bad, lambda: s.create(picture), "a picture", 400)
    error = s.check.raises(bad, lambda: s.client.messages.count_tokens(model=s.model, messages=[]),
                           "no messages to count", 400)
    s.check.equal((error.body["type"], error.body["error"]["type"]), ("error", "invalid_request_error"),
                  "an error has the API's shape")
    if s.key:
        s.check.raises(anthropic.AuthenticationError, lambda: s.client_of("wrong").messages.create(
            model=s.model, max_tokens=1, messages=QUESTION), "a wrong key", 401)
    s.check.that(s.create().content[0].text, "after all of them the server answers")


def cancel(s):
    s.check.soon(lambda: s.server.load() == (0, 0), "the server is idle")
    before = s.server.aborted()
    room = s.server.info["context_length"] - 256
    events = s.create(stream=True, max_tokens=room, extra={"ignore_eos": True})
    for event in events:
        if event.type == "content_block_delta":
            break
    s.check.soon(lambda: s.server.load()[0] == 1, "a stream runs")
    events.close()
    s.check.soon(lambda: s.server.load() == (0, 0), "once it is closed, nothing runs")
    s.check.equal(s.server.aborted() - before, 1, "  and the request counts as aborted")


SECTIONS = {"messages": messages, "stream": stream, "errors": errors, "cancel": cancel}


def main():
    options = checks.arguments(__doc__, SECTIONS).parse_args()
    names = checks.chosen(options.only, SECTIONS)
    check = checks.Checks()
    session = Session(check, checks.Server(options.url, options.api_key), options.api_key)
    for name in names:
        print(f"== {name}", flush=True)
        SECTIONS[name](session)
    check.done()


if __name__ == "__main__":
    sys.exit(main())
