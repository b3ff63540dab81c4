#!/usr/bin/env python3
"""Writes the inputs that fuzzing begins with: data/TARGET/NAME, small files made of the cases below and of templates under
tests/golden. What fuzzing found is added by hand as data/TARGET/found-... and is left alone here.

    tests/fuzz/make_corpora.py
"""

import json
import random
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"


def write(target, inputs):
    folder = HERE / "data" / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if not old.name.startswith("found-"):
            old.unlink()
    for i, text in enumerate(inputs):
        (folder / f"{i:03}").write_bytes(text if isinstance(text, bytes) else text.encode())


def json_inputs():
    yield from ["null", " true ", "false", "0", "-0", "-1.5e-3", "1E+2", "9223372036854775807", "9223372036854775808",
                "18446744073709551615", "18446744073709551616", "-9223372036854775809", "1e308", "1e309", "5e-324", "1e-400",
                "0.1", "2.2250738585072011e-308", "[]", "{}", "[1,[2,[3]]]", '{"a":{"b":[{}]}}', '"\\u0041\\n\\\\\\"\\/"']
    yield from ['"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"\\u0000"', b'"\xf0\x9f\x98\x80"', b'"\xc0\x80"', b'"\xed\xa0\x80"',
                b'"\xff"', b'\xef\xbb\xbf{}', '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "[1,]", "{,}", "01", "1.", ".5", "+1", "NaN",
                "Infinity", "'a'", "[1 2]", "// x\n1", '"\t"', "nul", "1 2", "", " "]
    yield from ["[" * 64 + "]" * 64, "[" * 65 + "]" * 65, '{"a":' * 63 + "[]" + "}" * 63]
    yield json.dumps({"model": "m", "messages": [{"role": "user", "content": "h\u00e9 \u2603"}], "temperature": 0.7, "n": 1, "stop": None})


def http_inputs():
    heads = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /x?y=1&z HTTP/1.0\r\n\r\n", b"HEAD /%41%2f HTTP/1.1\r\nhost:a:80\r\n\r\n",
             b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
             b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;e=1\r\nhello\r\n1\r\n!\r\n0\r\nt: 1\r\n\r\n",
             b"GET http://a/b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"\r\nGET / HTTP/1.1\r\nHost: [::1]:8\r\n\r\n",
             b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"]
    bad = [b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
           b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n b: c\r\n\r\n",
           b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
           b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
           b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
           b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n", b"GET /" + b"a" * 70 + b" HTTP/1.1\r\n\r\n",
           b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 301\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"h: 1\r\n" * 9 + b"\r\n"]
    for i, stream in enumerate(heads + bad):
        yield bytes([i % 2, 7 * i % 256]) + stream
    yield b"\0\3" + b"".join(heads)
    yield b"\1\x11" + heads[3] + heads[5] + bad[5] + heads[0]
    yield b"\0\0POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 21 + b"0\r\n\r\n"


def request_inputs():
    common = {"model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2, "stop": ["a", "b"],
              "stop_token_ids": [1, 2], "presence_penalty": -1, "frequency_penalty": 2, "repetition_penalty": 1.1, "logit_bias": {"5": -100, "7": 3.5},
              "min_tokens": 1, "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}, "routing": "topk", "ignore_eos": True,
              "include_stop_str_in_output": True, "skip_special_tokens": False, "return_token_ids": True, "cache_salt": "x", "user": "u"}
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "reasoning_content": "r"}, {"role": "user", "content": "d", "name": "n"}]
    bodies = [(0, {**common, "prompt": "p", "logprobs": 3, "echo": True, "best_of": 2}), (0, {"prompt": [[1, 2], [3]], "max_tokens": 0, "echo": True}),
              (0, {"prompt": ["a", "b"], "prompt_logprobs": 2, "seed": 18446744073709551615}), (0, {"prompt": [1, 2, 3], "n": 8}),
              (1, {**common, "messages": chat, "logprobs": True, "top_logprobs": 5, "chat_template_kwargs": {"enable_thinking": False}}),
              (1, {"messages": chat[:3], "continue_final_message": True, "add_generation_prompt": False, "reasoning_effort": "low"}),
              (1, {"messages": chat, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}),
              (1, {"messages": chat, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}),
              (2, {"text": "p", "sampling_params": {"max_new_tokens": 5, "temperature": 0, "stop": "x", "n": 1, "min_new_tokens": 2, "regex": None}}),
              (2, {"input_ids": [[1], [2, 3]], "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0, "stream": False}),
              (3, {"model": "m", "max_tokens": 5, "system": "s", "messages": [{"role": "user", "content": "a"}], "stop_sequences": ["b"], "top_k": 3}),
              (3, {"max_tokens": 5, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                                                                                          {"role": "assistant", "content": "b"}], "thinking": {"type": "disabled"}})]
    for api, body in bodies:
        yield bytes([api]) + json.dumps(body).encode()
    for value in ["-1", "0", "1e-9", "1e39", "101", "1e400", "null", '"1"', "[]", "true", "9007199254740993", "1.5"]:
        for key in ("temperature", "top_p", "n", "max_tokens", "seed", "logprobs", "stop_token_ids", "logit_bias"):
            if hash_of(key + value) % 4 == 0:
                yield b"\0" + f'{{"prompt":"p","{key}":{value}}}'.encode()


def hash_of(text):
    return sum(ord(c) * (i + 1) for i, c in enumerate(text))


def template_inputs():
    published = json.loads((GOLDEN / "tokenizer" / "published_templates.json").read_text())
    cases = json.loads((GOLDEN / "tokenizer" / "chat_templates.json").read_text())
    small = [s for s in strings_of(cases) if "{%" in s or "{{" in s]
    for source in sorted({s for s in small if len(s) < 1500}, key=lambda s: (len(s), s))[::3][:60]:
        yield source
    for source in sorted({s for s in strings_of(published) if "{%" in s and len(s) < 6000}, key=len)[:6]:
        yield source + '\n=====\n[{"role":"user","content":"\\u2603 hi"},{"role":"assistant","content":"x","reasoning_content":"y"}]'
    yield "{% for m in messages %}{{ m.content | upper | trim }}{{ m['role'] }}{% endfor %}\n=====\n" + '[{"role":"user","content":"\u2603"}]'
    yield "{{ tools | tojson(indent=2) }}\n=====\n" + '{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"\u2603"}}]}'
    yield "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
    yield "{% for i in range(1000000) %}{% for j in range(1000000) %}{{ i * j }}{% endfor %}{% endfor %}"
    yield "{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}{{ ns.a }}"
    yield "{{ messages[1].content[::-1] ~ messages[1:] | map(attribute='content') | join(', ') | replace('b', '<s>') }}"


def strings_of(value):
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings_of(item)


def output_parser_inputs():
    bar, low = "\uff5c", "\u2581"
    answers = ["plain \u2603 text", "<think>a</think>\nb", "a</think>b", "<think>never ends",
               "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Z\u00fcrich</arg_value>\n<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
               "<think>x</think>hi<tool_call>f</tool_call><tool_call>nothing</tool_call>bye", "<tool_call>get_weather<arg_value>x</arg_value></tool_call>",
               '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a</tool_call>b", "x": null}}\n</tool_call>', '<tool_call>{"name": "f"}{"name": "f"}</tool_call>',
               "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=list>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
               '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="on">true</parameter>\n</invoke>\n</minimax:tool_call>',
               '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>',
               f"<{bar}tool{low}calls{low}begin{bar}><{bar}tool{low}call{low}begin{bar}>function<{bar}tool{low}sep{bar}>f\n```json\n{{}}\n```<{bar}tool{low}call{low}end{bar}>"
               f"<{bar}tool{low}calls{low}end{bar}>", f"<{bar}tool{low}call{low}begin{bar}>f<{bar}tool{low}sep{bar}>{{}}<{bar}tool{low}call{low}end{bar}>",
               '<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
               "<|channel|>final<|message|>done<|return|>"]
    for i, answer in enumerate(answers):
        for formats in range(3):
            yield bytes([(i + formats) % 5, (i * 3 + formats * 4) % 11, [1, 5, 18, 65][(i + formats) % 4]]) + answer.encode()


def grammar_inputs(rng):
    schemas = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 120}, "b": {"type": "string", "maxLength": 3}}, "required": ["a"]},
               {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0.5}, "minItems": 1, "maxItems": 3}, {"enum": ["ab", "abc", 1, None, [1]]},
               {"anyOf": [{"type": "boolean"}, {"const": {"x": 1}}]}, {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}},
               {"type": "string", "pattern": "^a+b?$", "maxLength": 5}, {"type": "string", "format": "date"}, {"type": ["null", "integer"]}, True, {},
               {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
               {"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 12}]}, {"type": "array", "prefixItems": [{"type": "null"}, {"type": "string"}], "items": False},
               {"type": "object", "properties": {"a": True}, "additionalProperties": False}, {"type": "string", "minLength": 2}, {"type": "widget"}, {"not": {}}, False]
    for schema in schemas:
        yield b"\0" + json.dumps(schema).encode() + b"\n=====\n" + bytes(rng.randrange(256) for _ in range(30))
    for regex in ["(a|b)c{1,2}", "a{5,1000}b", "[^b]{2}a", "((a|aa){0,3})+x", "\\d+(\\.\\d+)?", "^abc$", "\u00e9|\u2603", "(?:x|y)*?z", "a{3,1}", "(", "[z-a]", "(?=a)", "\\bx",
                  "(a{1,255}){1,255}", "[\\s\\S]{0,9}", ".*", "(((((a?){9})){9})){9}"]:
        yield b"\1" + regex.encode() + b"\n=====\n" + bytes(rng.randrange(256) for _ in range(20))
    for choices in ["a|ab|abc", "yes|no", "\u2603|\u2603x", "|", ""]:
        yield b"\2" + choices.encode() + b"\n=====\n" + bytes(rng.randrange(256) for _ in range(8))
    yield b"\3\n=====\n" + bytes(rng.randrange(256) for _ in range(80))
    yield b"\4" + b'{"type":"boolean"}' + b"\n=====\n" + b"xy" * 20


def router_inputs(rng):
    specs = ["topk", "prune:k0=2", "prune:k0=0", "oea:k0=1", "oea:k0=2,min_batch=2,max_p=4", "oea:k0=2,p=0.5,k_max=3,underfill=keep", "oea:k0=3,lend=prefill,guard=off",
             "oea:k0=auto,t=4", "oea:k0=2,floor=0.1,norm=topk", "oea:k0=1,norm=none,max_rows=3", "xshare:m=4,k0=1", "xshare:m=60%", "des_vote:m=3,vote=all", "lynx:drop=25%", "lynx_bins:m=3",
             "top_p:p=0.5", "ser:k_min=1,t=0.3", "oea:k0=99", "nothing", "oea:k0=2,k0=3", "oea:", "oea:k0=1e9", "topk:x=1", "lynx:drop=2", "oea:k0=-1,p=nan"]
    for spec in specs:
        rows = b"".join(bytes([rng.choice([0, 0, 0, 1, 2, 8, 64, 72])]) + bytes(rng.randrange(256) for _ in range(12)) for _ in range(rng.randrange(1, 8)))
        yield spec.encode() + b"\n" + bytes([11, rng.randrange(4), rng.randrange(8)]) + rows


def random_inputs(rng, count, longest):
    for _ in range(count):
        yield bytes(rng.randrange(256) for _ in range(rng.randrange(4, longest)))


def text_inputs(rng):
    texts = ["hello world", "caf\u00e9 \u2603 \U0001f600 end", "aaaabaaab", "ab" * 20, "\u2603\u2603"]
    for i, text in enumerate(texts):
        for include in range(2):
            yield bytes([include, i % 2, 0, 2, 1]) + b"ab" + bytes([2]) + "\u2603".encode() + text.encode()
    yield bytes([0, 1, 0, 0]) + b"a\xe2\x82x\xf0\x9f\x98y\xc0\x80\xed\xa0\x80\xff"
    yield from random_inputs(rng, 12, 60)


def npy(descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data


def trace_inputs():
    head = {"carpool_trace": 1, "model": "m", "n_experts": 8, "top_k": 2, "layers": [0, 2], "ranked": True}
    plain = [{"sequence": "a", "position": 0, "experts": [[1, 2], [3, 4]]}, {"sequence": "a", "position": 1, "experts": [[0, 7], [5]]}]
    lines = ["\n".join(json.dumps(x) for x in [head, *plain]) + "\n"]
    lines.append("\n".join(json.dumps(x) for x in [head, {**plain[0], "weights": [[0.5, 0.25], [1, 0.125]]}]))
    scores = [[0.5, None, 2, -1, 0, 0, 1e-9, 3]] * 2
    lines.append("\n".join(json.dumps(x) for x in [head, {**plain[0], "rank": scores, "mix": [[0.125] * 8] * 2}]))
    lines.append(json.dumps(head) + "\n" + json.dumps(plain[0]) + '\n{"sequence": "a", "po')
    yield from lines
    yield "\n".join(json.dumps({"tok": t, "layers": {"0": [1, 2], "1": [3, t]}}) for t in range(3))
    yield "\n".join(json.dumps({"tok": t, "layers": [[1, 2], [3, t]]}) for t in range(3))
    layer = {"selected_experts": [1, 2], "selected_probs": [0.7, 0.3]}
    yield json.dumps({"router_data": [{"token_0": {"layer_0": layer, "layer_2": layer}, "token_1": {"layer_0": layer, "layer_2": layer}}]})
    yield "0.1\t0.2\t0.7\n0.3\t0.3\t0.4\n"
    yield npy("<i2", (2, 1, 2), struct.pack("<4h", 0, 1, 2, 3))
    yield npy("<i4", (1, 2, 2), struct.pack("<4i", 0, 1, 2, 3))
    yield npy("<f4", (1, 2), struct.pack("<2f", 0, 1))


def main():
    rng = random.Random(1)
    write("json", json_inputs())
    write("http", http_inputs())
    write("request", request_inputs())
    write("chat_template", template_inputs())
    write("grammar", grammar_inputs(random.Random(2)))
    write("output_parser", output_parser_inputs())
    write("router", router_inputs(rng))
    write("sampler", random_inputs(rng, 30, 120))
    write("text_stream", text_inputs(rng))
    write("scheduler", random_inputs(rng, 20, 400))
    write("trace", trace_inputs())


if __name__ == "__main__":
    main()
