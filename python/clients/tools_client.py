#!/usr/bin/env python3
"""The stock `openai` and `anthropic` packages against a server of tests whose model says what its prompt tells it to.

    python python/clients/tools_client.py --url http://127.0.0.1:8080 [--only openai,anthropic]

The model's answer is what stands between U+0001 and U+0002 in the last message (src/server/scripted_model_test_util.h),
in the format of GLM-4.7. Sections: openai, anthropic: tools that are chosen freely, required, named, called in parallel
and without arguments, their results, reasoning on and off, and that a stream says what the whole says. Prints every
check and exits 1 at the first difference. Versions: python/requirements.txt.
"""
import json
import sys

import anthropic
import openai

import checks

WEATHER = ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Z\u00fcrich \N{SNOWMAN}</arg_value>"
           "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>")
NOW = "<tool_call>now</tool_call>"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
NOTHING = {"type": "object", "properties": {}}
ARGUMENTS = {"city": "Z\u00fcrich \N{SNOWMAN}", "days": 2}


def script(text):
    return [{"role": "user", "content": f"\x01{text}\x02"}]


class OpenAi:
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}},
             {"type": "function", "function": {"name": "now", "parameters": NOTHING}}]

    def __init__(self, check, server):
        self.check, self.model = check, server.model
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=checks.PATIENCE)

    def chat(self, messages, extra=None, **fields):
        """The whole answer's choice; a stream, and the package's helper for streams, must say the same."""
        request = {"model": self.model, "messages": messages, "tools": self.tools, "temperature": 0, "max_tokens": 2000,
                   "extra_body": extra or {}, **fields}
        whole = self.client.chat.completions.create(**request).choices[0]
        content, reasoning, calls, reason = "", "", [], None
        for chunk in self.client.chat.completions.create(stream=True, **request):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for piece in choice.delta.tool_calls or []:
                    if piece.id:
                        self.check.equal(piece.index, len(calls), "  a new call has the next index")
                        calls.append([piece.function.name, ""])
                    calls[piece.index][1] += piece.function.arguments or ""
                reason = choice.finish_reason or reason
        said = whole.message
        expected = [[call.function.name, call.function.arguments] for call in said.tool_calls or []]
        self.check.equal((content, reasoning, calls, reason),
                         (said.content or "", getattr(said, "reasoning_content", None) or "", expected, whole.finish_reason),
                         "  a stream says the same")
        with self.client.chat.completions.stream(**request) as events:
            for _ in events:
                pass
            snapshot = events.current_completion_snapshot.choices[0].message
        self.check.equal((snapshot.content or "", [[c.function.name, c.function.arguments] for c in snapshot.tool_calls or []]),
                         (content, expected), "  so does the package's helper")
        return whole

    def calls(self, choice):
        return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


def openai_section(check, server):
    s = OpenAi(check, server)
    answer = s.chat(script(f"Two things.</think>I look.\n{WEATHER}{NOW}"))
    check.equal(s.calls(answer), [("get_weather", ARGUMENTS), ("now", {})], "auto: two calls in parallel, one without arguments")
    check.equal((answer.finish_reason, answer.message.content, answer.message.reasoning_content),
                ("tool_calls", "I look.", "Two things."), "content and reasoning beside them")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in answer.message.tool_calls[:1]]
    results.append({"role": "tool", "tool_call_id": answer.message.tool_calls[1].id, "content": "\x01Fine.</think>It is sunny.\x02"})
    history = [*script("-"), answer.message.model_dump(exclude_none=True), *results]
    final = s.chat(history)
    check.equal((final.message.content, final.finish_reason, s.calls(final)), ("It is sunny.", "stop", []),
                "their results lead to an answer")

    check.equal(s.calls(s.chat(script("Hm.</think>" + NOW), tool_choice="required")), [("now", {})], "required: a call is made")
    named = {"type": "function", "function": {"name": "get_weather"}}
    check.equal(s.calls(s.chat(script("</think>" + WEATHER + NOW), tool_choice=named)), [("get_weather", ARGUMENTS)], "named: that one, once")
    check.equal(s.calls(s.chat(script("</think>" + NOW + WEATHER), parallel_tool_calls=False)), [("now", {})], "not in parallel: one")
    none = s.chat(script("</think>Just text."), tool_choice="none")
    check.equal((none.message.content, none.message.tool_calls), ("Just text.", None), "none: text")
    unwilling = s.chat(script("No."), {"chat_template_kwargs": {"enable_thinking": False}},
                       tool_choice={"type": "function", "function": {"name": "now"}})
    check.equal(s.calls(unwilling), [("now", {})], "named: also when the model would say something else")
    stopped = s.chat(script("No."), tool_choice="required", stop="No")
    check.equal((stopped.finish_reason, s.calls(stopped)), ("stop", []), "required, but the client's own stop string cuts it: no call")

    off = {"chat_template_kwargs": {"enable_thinking": False}}
    check.equal(s.chat(script("At once."), off).message.content, "At once.", "reasoning off: all is content")
    check.equal(s.chat(script("At once."), reasoning_effort="none").message.content, "At once.", "the same by reasoning_effort")
    unsplit = s.chat(script("a</think>b"), {"separate_reasoning": False}).message
    check.equal(unsplit.content, "a</think>b", "not separated: as the model wrote it")
    cut = s.chat(script("thinking for long"), max_tokens=8)
    check.equal((cut.message.content, cut.message.reasoning_content, cut.finish_reason), (None, "thinking", "length"),
                "cut within reasoning")


def blocks_of(message):
    return [(b.type, b.text if b.type == "text" else b.thinking if b.type == "thinking" else (b.name, b.input))
            for b in message.content]


def anthropic_section(check, server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=checks.PATIENCE)
    tools = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}, {"name": "now", "input_schema": NOTHING}]

    def create(messages, **fields):
        request = {"model": server.model, "max_tokens": 2000, "messages": messages, "tools": tools, **fields}
        whole = client.messages.create(**request)
        with client.messages.stream(**request) as events:
            streamed = events.get_final_message()
        check.equal((blocks_of(streamed), streamed.stop_reason), (blocks_of(whole), whole.stop_reason), "  a stream says the same")
        return whole

    answer = create(script(f"Two things.</think>I look. {WEATHER}{NOW}"))
    check.equal((blocks_of(answer), answer.stop_reason),
                ([("thinking", "Two things."), ("text", "I look."), ("tool_use", ("get_weather", ARGUMENTS)),
                  ("tool_use", ("now", {}))], "tool_use"), "thinking, text and two uses of tools")
    results = [{"type": "tool_result", "tool_use_id": answer.content[2].id, "content": "sunny"},
               {"type": "tool_result", "tool_use_id": answer.content[3].id,
                "content": [{"type": "text", "text": "\x01Fine.</think>It is sunny.\x02"}]}]
    history = [*script("-"), {"role": "assistant", "content": [b.model_dump() for b in answer.content]},
               {"role": "user", "content": results}]
    final = create(history)
    check.equal((blocks_of(final), final.stop_reason), ([("thinking", "Fine."), ("text", "It is sunny.")], "end_turn"),
                "their results lead to an answer")
    check.equal(blocks_of(create(script("</think>" + NOW), tool_choice={"type": "any"})), [("tool_use", ("now", {}))],
                "any: a call is made")
    check.equal(blocks_of(create(script("</think>" + WEATHER), tool_choice={"type": "tool", "name": "get_weather"})),
                [("tool_use", ("get_weather", ARGUMENTS))], "tool: that one")
    check.equal(blocks_of(create(script("</think>Just text."), tool_choice={"type": "none"})), [("text", "Just text.")], "none: text")
    check.equal(blocks_of(create(script("At once."), thinking={"type": "disabled"})), [("text", "At once.")],
                "thinking disabled: all is text")
    on = create(script("a</think>b"), thinking={"type": "enabled", "budget_tokens": 1024})
    check.equal(blocks_of(on), [("thinking", "a"), ("text", "b")], "thinking enabled")


SECTIONS = {"openai": openai_section, "anthropic": anthropic_section}


def main():
    options = checks.arguments(__doc__, SECTIONS).parse_args()
    names = checks.chosen(options.only, SECTIONS)
    check = checks.Checks()
    server = checks.Server(options.url, options.api_key)
    for name in names:
        print(f"== {name}", flush=True)
        SECTIONS[name](check, server)
    check.done()


if __name__ == "__main__":
    sys.exit(main())
