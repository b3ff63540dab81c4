"""Renders published chat templates with Jinja2 on a matrix of conversations and writes checksums of the results.

  python make_published_templates.py --templates FOLDER [--out tests/golden/tokenizer/published_templates.json]

The templates themselves are not kept: the file has the conversations, tools and variables, and for each template, by its
name and checksum, the checksum of each rendering (or "error   " where Jinja2 raises), 8 hexadecimal digits each, in the
order conversations x tools x add_generation_prompt x variables.
"""
import argparse
import itertools
import json
import pathlib

import jinja2

from make_chat_template import make_environment

MAKER = "python/golden/make_published_templates.py"


def user(content, **more):
    return {"role": "user", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, number=0):
    return {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, **more):
    return {"role": "tool", "content": content, **more}


SEAT = call("seat", {"row": 2, "names": ["Ann", "Bo\u00e9"], "heavy": False, "note": None, "share": 0.5, "why": "it's \"late\"\n<b> & more", "deep": {"k": [1, {}]}})
ROAD = call("road", {"to": "\u6771\u4eac", "by": "night"}, 1)
CONVERSATIONS = [
    [user("Who rides?")],
    [system("You drive a wagon."), user("Who rides?")],
    [system("  You drive.\n"), user(" One \n"), assistant(" Two \n\n"), user("Three"), assistant("Four"), user("Five /nothink")],
    [user("One"), assistant("Two", reasoning_content="They asked.\n"), user("Three"), assistant("Four", reasoning_content="\nStill asking. ")],
    [user("One"), assistant("<think>\nHm.\n</think>\n\nTwo"), user("Three"), assistant("<think>\n\n</think>\n\nFour")],
    [user("Seat us"), assistant("", tool_calls=[SEAT]), result("{\"ok\": true}", tool_call_id="functions.seat:0", name="seat")],
    [user("Seat us"), assistant("I will.", reasoning_content="Seats.", tool_calls=[SEAT]), result("done"), assistant("Seated.", reasoning_content="Good."), user("Thanks")],
    [system("Help."), user("Both"), assistant(None, tool_calls=[SEAT, ROAD]), result("one"), result("two"), user("And?")],
    [user("Both"), assistant("a", tool_calls=[SEAT]), result("one"), assistant("b", tool_calls=[ROAD]), result("two"), assistant("Done.")],
    [user([{"type": "text", "text": "Look "}, {"type": "text", "text": "here"}]), assistant([{"type": "text", "text": "I see."}]), user("So?")],
    [system([{"type": "text", "text": "Be kind."}]), user([{"type": "image"}, {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "x"}}])],
    [user("Seat us"), assistant("", tool_calls=[SEAT]), result([{"type": "text", "text": "fine"}, {"output": "well"}])],
    [user("Flat"), assistant("", tool_calls=[{"name": "road", "arguments": {"to": "here"}}]), result("ok")],
    [user("Text"), assistant("", tool_calls=[call("road", "{\"to\": \"here\"}")]), result("ok")],
    [{"role": "developer", "content": "Be brief."}, user("Who?"), assistant("I.", thinking="Me."), user("Why?"), assistant("So.", thinking="So?")],
    [user("Seat us"), assistant("", thinking="Use it.", tool_calls=[SEAT]), result({"ok": True})],
    [user("\u732b <|end|> [gMASK] </think> {{ x }} {% if %} \U0001F600 \\n"), assistant("<tool_call>no</tool_call>\t"), user("")],
    [system(""), user("x", name="Ann"), assistant("y", name="Bo"), {"role": "critic", "content": "z"}],
    [result("alone"), user("x")],
    [assistant("I begin."), user("x"), user("y"), assistant("", tool_calls=[])],
    [],
    [{"role": "system", "content": "Dated.", "current_date": "2026-11-29", "current_location": "Bonn"}, user("Where?")],
]
TOOLS = [
    {"type": "function", "function": {"name": "seat", "description": "Seats people.\nQuickly \u2014 \"now\".", "parameters": {"type": "object", "required": ["row", "names"], "properties": {
        "row": {"type": "integer", "description": "Which row", "minimum": 1, "default": 1}, "names": {"type": "array", "items": {"type": "string"}},
        "heavy": {"type": "boolean", "default": False}, "share": {"type": "number", "nullable": True}, "note": {"type": ["string", "null"], "description": "A note"},
        "side": {"type": "string", "enum": ["left", "right"], "default": "left"}, "deep": {"type": "object", "properties": {"k": {"type": "array", "items": {"type": "integer"}}}, "required": ["k"]},
        "any": {"oneOf": [{"type": "string", "description": "text"}, {"type": "number", "default": 2}]}}}}},
    {"type": "function", "function": {"name": "road", "description": "Finds a road", "parameters": {"type": "object", "properties": {"to": {"type": "string"}, "free": {"type": "object"}, "grid": {
        "type": "array", "items": {"type": "array", "items": {"type": "number"}}}}}, "strict": True}},
    {"type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
VARIABLES = [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True, "reasoning_effort": "high", "clear_thinking": False},
             {"thinking": False, "builtin_tools": ["browser", "python"], "model_identity": "You are a wagon."}]


def fnv1a32(text):
    h = 0x811C9DC5
    for byte in text.encode("utf-8"):
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return f"{h:08x}"


def render_all(template):
    out = []
    for messages, tools, prompt, variables in itertools.product(CONVERSATIONS, (None, TOOLS), (False, True), VARIABLES):
        try:
            # transformers passes tools and documents always, as None when there are none.
            text = template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, bos_token="<|begin|>", eos_token="<|end|>", **variables)
            out.append(fnv1a32(text))
        except Exception:
            out.append("error   ")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--templates", required=True)
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer/published_templates.json"))
    args = parser.parse_args()
    environment, templates = make_environment(), []
    for path in sorted(pathlib.Path(args.templates).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        results = render_all(environment.from_string(source))
        templates.append({"name": path.name, "checksum": fnv1a32(source), "results": "".join(results)})
        print(path.name, len(results), "renderings,", results.count("error   "), "of them errors")
    value = {"made_by": MAKER, "jinja2": jinja2.__version__, "conversations": CONVERSATIONS, "tools": TOOLS, "variables": VARIABLES, "templates": templates}
    pathlib.Path(args.out).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
