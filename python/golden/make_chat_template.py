"""Renders chat templates with Jinja2, set up as transformers does, and writes the golden file of src/text's tests.

  python make_chat_template.py [--out tests/golden/tokenizer/chat_templates.json]

The templates are written here, each to exercise a part of the language; none is taken from a model. Each case has
the template, its variables and either the output or "error": true where Jinja2 raises.
"""
import argparse
import json
import pathlib

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MESSAGES = [
    {"role": "system", "content": "You drive a wagon."},
    {"role": "user", "content": "  Who rides?\n"},
    {"role": "assistant", "content": "<think>\nCount them.\n</think>\n\nThree riders.", "tool_calls": [
        {"type": "function", "function": {"name": "seat", "arguments": {"row": 2, "names": ["Ann", "Bo\u00e9"], "heavy": False, "note": None}}}]},
    {"role": "tool", "content": "{\"ok\": true}"},
    {"role": "user", "content": [{"type": "text", "text": "And now?"}, {"type": "image"}, {"type": "text", "text": "\u732b <tag> & 'q' \"d\""}]},
]
TOOLS = [{"type": "function", "function": {"name": "seat", "description": "Seats people.\nQuickly.", "parameters": {
    "type": "object", "properties": {"row": {"type": "integer", "minimum": 1}, "share": {"type": "number", "default": 0.5}}, "required": ["row"]}}}]
VALUES = {"n": 7, "m": -3, "x": 2.5, "s": "Hello, World", "u": "na\u00efve \u00c9cole \u732b", "e": "", "l": [3, 1, 2], "w": ["b", "A", "c"],
          "d": {"b": 1, "a": [1, {"k": "v"}], "C": None}, "t": True, "f": False, "z": None, "pad": " \t a b  c \n", "long": "a\nbb\n\nccc"}

TEMPLATES = {  # name: template; rendered with MESSAGES, TOOLS and VALUES
    "plain chat": "{% for message in messages %}<|{{ message.role }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
                  "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "trimmed chat": "{{- bos_token }}\n{%- for m in messages -%}\n    {%- if m.role == 'user' and m.content is string %}\n        {{- '[U]' + m.content | trim + '[/U]' }}\n"
                    "    {%- elif m['role'] in ['assistant', 'tool'] -%}\n {{ m.role | upper ~ ':' ~ loop.index }}\n    {% else %}\n   other {{ loop.index0 }}\n  {% endif %}\n{%- endfor %}\nend\n",
    "tools": "{% if tools %}# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{{ tool.function | tojson(indent=2) }}\n{{ tool.function.parameters.properties.row | tojson(indent=4) }}\n"
             "{% for name, p in tool.function.parameters.properties.items() %}{{ name }}: {{ p.type }}{% if not loop.last %}, {% endif %}{% endfor %}\n{% endfor %}{% endif %}",
    "tool calls": "{% for m in messages if m.tool_calls is defined %}{% for c in m.tool_calls %}{% set c = c.function if c.function else c %}<call>{{ c.name }}"
                  "{% for k, v in c.arguments | items %}<k>{{ k }}</k><v>{{ v if v is string else v | tojson }}</v>{% endfor %}</call>{% endfor %}{% endfor %}",
    "thinking": "{% for m in messages %}{% if m.role == 'assistant' %}{% set content = m.content %}{% if '</think>' in content %}"
                "{% set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
                "{% set content = content.split('</think>')[-1].lstrip('\\n') %}[{{ thought }}|{{ content }}]{% endif %}{% endif %}{% endfor %}",
    "last user": "{% set ns = namespace(last=-1, seen=[]) %}{% for m in messages[::-1] %}{% set i = (messages | length - 1) - loop.index0 %}"
                 "{% if ns.last < 0 and m.role == 'user' and m.content is string %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}",
    "content parts": "{% macro show(content, sep=' ', mark=none) %}{% if content is string %}{{ content }}{% elif content is iterable and content is not mapping %}"
                     "{% for part in content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part['type'] }}>{% endif %}{{ sep if not loop.last }}{% endfor %}"
                     "{% else %}?{% endif %}{{ mark if mark is not none }}{% endmacro %}{% for m in messages %}{{ show(m.content) }}|{{ show(m.content, '-', mark='!') }}\n{% endfor %}",
    "recursive macro": "{% macro type(s, depth=0) %}{{ '  ' * depth }}{% if s is mapping %}{\n{% for k in s %}{{ '  ' * depth }}{{ k }}:{{ type(s[k], depth + 1) }}{% endfor %}}"
                       "{% elif s is sequence and s is not string %}[{% for i in s %}{{ type(i, depth + 1) }},{% endfor %}]{% else %}{{ s }}{% endif %}\n{% endmacro %}{{ type(tools[0]) }}",
    "loop fields": "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                   "{{ loop.previtem if loop.previtem is defined }}{{ loop.nextitem | default('none') }};{% endfor %}",
    "loop else and control": "{% for x in [] %}a{% else %}empty{% endfor %}{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"
                             "{% for x in range(6) if x is odd %}{{ x }}/{{ loop.length }} {% else %}never{% endfor %}{% for x in l if x > 9 %}{% else %}none{% endfor %}",
    "nested loops": "{% for a in [1, 2] %}{% for b in 'xy' %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "scopes": "{% set v = 'out' %}{% for i in [1, 2] %}{{ v }}{% set v = 'in' %}{{ v }}{% endfor %}{{ v }}{% if true %}{% set v = 'if' %}{% endif %}{{ v }}"
              "{% macro m() %}{{ v }}{% set v = 'macro' %}{{ v }}{% endmacro %}{{ m() }}{{ v }}{% for v in [1] %}{{ v }}{% endfor %}{{ v }}",
    "set forms": "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set c %}block {{ a }}{% endset %}{{ c }}{{ c | length }}{% set ns = namespace() %}{% set ns.x = 5 %}{{ ns.x }}"
                 "{% set ns.x = ns.x + 1 %}{{ ns['x'] }}{% set q = (1, 2) %}{{ q[1] }}{% set r = 1, %}{{ r | length }}{{ ns.nothing is defined }}",
    "whitespace": "  {% if t %}\n  a\n    {%- if t +%}\n  b\n  {%+ endif %}\n{% endif %}\n  {# note #}\n x {#- gone -#} y\n{{ 'v' }}\n\n  {{- 'w' -}}  \n z{% raw %}{{ raw }}{% endraw %}\n{% raw -%}  \n {% if %} {%- endraw %}\n!",
    "line ends": "a\r\nb\r{% if t %}\r\nc{% endif %}\r\n",
    "only a newline": "\n",
    "two newlines": "x\n\n",
    "literals": "{{ 1 }}{{ 1.0 }}{{ 1e3 }}{{ 2.5e-7 }}{{ 1e16 }}{{ 123456789.125 }}{{ 1_000 }}{{ 0.1 + 0.2 }}{{ true }}{{ False }}{{ none }}{{ None is none }}{{ 'a' 'b' }}{{ \"q'\\\"\\n\\t\\u732b\\x41\\\\\\d\" }}",
    "printing": "{{ l }}{{ d }}{{ w }}{{ [1.5, true, none, 'it\\'s', \"a\\\"b'c\", 'n\\n'] }}{{ {} }}{{ [] }}{{ ['\u732b'] }}{{ nothing }}{{ (1, 2)[0] }}",
    "arithmetic": "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ 7 / 2 }}{{ 6 / 2 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}{{ 2 * 3 + 4 }}{{ 2 + 3 * 4 }}{{ (2 + 3) * 4 }}{{ -n + +m }}"
                  "{{ 1 - -1 }}{{ 'ab' * 3 }}{{ 2 * 'x' }}{{ l + [9] }}{{ true + 1 }}{{ n * x }}{{ 1 ~ 2 ~ none ~ t }}{{ 1 + 2 ~ 3 + 4 if false }}{{ '1' ~ 2 + 3 if false else 'ok' }}{{ 5 - 2 - 1 }}{{ -2 | abs }}",
    "comparison": "{{ 1 < 2 }}{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ 1 == true }}{{ 'a' < 'b' }}{{ 'a' == 'a' }}{{ '1' == 1 }}{{ none == none }}{{ l == [3, 1, 2] }}{{ d != {} }}{{ 2 >= 2 }}{{ 2 <= 1 }}"
                  "{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ nothing == nothing2 }}{{ nothing == none }}{{ nothing == false }}",
    "membership": "{{ 'World' in s }}{{ 'x' not in s }}{{ 3 in l }}{{ 4 in l }}{{ 'b' in d }}{{ 1 in d }}{{ 'a' in nothing }}{{ not 'a' in w }}{{ '' in s }}{{ 'role' in messages[0] }}",
    "logic": "{{ 1 and 2 }}{{ 0 and 2 }}{{ 0 or 'x' }}{{ '' or none or 3 }}{{ not 0 }}{{ not not 'a' }}{{ t and not f or z }}{{ 'a' if t else 'b' }}{{ 'a' if f else 'b' }}{{ 'a' if f }}{{ 'a' if f else 'b' if f else 'c' }}",
    "access": "{{ d.a[1].k }}{{ d['a'][0] }}{{ d.missing }}{{ d['missing'] | default('D') }}{{ l[-1] }}{{ l[5] }}{{ s[0] }}{{ s[-1] }}{{ u[2] }}{{ z.x }}{{ s.nothing }}{{ l.0 }}{{ messages[0]['role'][0] }}",
    "slices": "{{ l[1:] }}{{ l[:-1] }}{{ l[::-1] }}{{ l[::2] }}{{ s[1:4] }}{{ s[-5:] }}{{ s[:-7] }}{{ s[::-1] }}{{ u[1:8:2] }}{{ u[::-2] }}{{ l[5:] }}{{ l[-9:2] }}{{ s[3:1] }}{{ s[10:2:-3] }}{{ e[::-1] }}{{ l[:] }}{{ l[-2:-9:-1] }}",
    "string methods": "[{{ pad.strip() }}][{{ pad.lstrip() }}][{{ pad.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ s.split(', ') }}][{{ pad.split() }}][{{ 'a,b,c'.split(',', 1) }}][{{ ' a b c '.split(none, 1) }}][{{ ''.split() }}][{{ ''.split(',') }}]"
                      "[{{ s.startswith('Hell') }}{{ s.endswith('x') }}{{ s.startswith(('x', 'H')) }}][{{ s.upper() }}{{ u.upper() }}{{ u.lower() }}][{{ s.replace('o', '00') }}{{ s.replace('l', '', 1) }}]"
                      "[{{ \"it's a dog-day\".title() }}{{ 'hELLO wORLD'.capitalize() }}][{{ s.find('W') }}{{ u.find('\u732b') }}{{ s.find('?') }}{{ s.count('l') }}][{{ ','.join(w) }}][{{ s.removeprefix('He') }}{{ s.removesuffix('ld') }}]",
    "dict methods": "{{ d.items() | list }}{{ d.keys() | list }}{{ d.values() | list }}{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 4) }}{{ dict(a=1, b='x') }}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "tests": "{{ n is defined }}{{ nothing is defined }}{{ nothing is undefined }}{{ nothing is not defined }}{{ z is none }}{{ s is string }}{{ l is string }}{{ d is mapping }}{{ l is mapping }}{{ l is iterable }}{{ s is iterable }}{{ n is iterable }}"
             "{{ s is sequence }}{{ d is sequence }}{{ n is sequence }}{{ n is number }}{{ t is number }}{{ x is number }}{{ s is number }}{{ n is integer }}{{ t is integer }}{{ x is float }}{{ t is boolean }}{{ t is true }}{{ n is true }}{{ f is false }}"
             "{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}{{ n is eq 7 }}{{ n is equalto(8) }}{{ n is ne 7 }}{{ n is lt 9 }}{{ n is gt 9 }}{{ n is ge 7 }}{{ n is le 6 }}{{ n is in [7] }}{{ not n is odd }}{{ n is defined and s is string }}",
    "filters": "{{ pad | trim }}|{{ s | length }}{{ l | length }}{{ d | count }}{{ u | length }}|{{ s | upper | lower }}|{{ s | first }}{{ l | last }}{{ [] | first }}|{{ l | join(', ') }}{{ w | join }}{{ messages | join('/', attribute='role') }}|"
               "{{ nothing | default('x') }}{{ e | default('y') }}{{ e | default('y', true) }}{{ z | d('q') }}|{{ s | replace('o', '0') }}{{ s | replace('o', '0', 1) }}|{{ s | list }}{{ d | list }}|{{ d | items | list }}|{{ 'abc' | reverse }}{{ l | reverse | list }}",
    "more filters": "{{ w | map('upper') | list }}{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('tool_calls', 'defined') | list | length }}"
                    "{{ [0, 1, '', 'a'] | select | list }}{{ l | select('odd') | list }}{{ l | reject('gt', 1) | list }}{{ messages | selectattr('tool_calls') | map(attribute='role') | list }}|{{ 12 | string + '!' }}{{ '12' | int + 1 }}{{ 'x' | int }}{{ 'x' | int(5) }}"
                    "{{ '3.7' | int }}{{ 3.7 | int }}{{ '2.50' | float }}{{ 'q' | float }}{{ ' 7 ' | int }}|{{ '<b>' | safe }}|{{ long | indent }}|{{ long | indent(2, true) }}|{{ long | indent(3, blank=true) }}|{{ long | indent('> ', first=true) }}|"
                    "{{ d | dictsort }}{{ d | dictsort(true) }}{{ {'x': 2, 'y': 1} | dictsort(by='value') }}{{ {'x': 2, 'y': 1} | dictsort(reverse=true) }}|{{ w | sort }}{{ w | sort(case_sensitive=true) }}{{ l | sort(reverse=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | join('') }}"
                    "|{{ \"it's a dog-day (now)\" | title }}{{ 'aBC dEF' | capitalize }}{{ -5 | abs }}{{ -5.5 | abs }}",
    "tojson": "{{ d | tojson }}{{ s | tojson }}{{ u | tojson }}{{ x | tojson }}{{ 1.0 | tojson }}{{ 1e20 | tojson }}{{ z | tojson }}{{ t | tojson }}{{ [] | tojson }}{{ {} | tojson(indent=2) }}{{ [[], {}] | tojson(indent=1) }}{{ pad | tojson }}"
              "{{ '<>&\\'\"\\\\/\\x01\\x7f' | tojson }}{{ messages | tojson }}{{ d | tojson(indent=3) }}{{ u | tojson(ensure_ascii=true) }}{{ '\\U0001F600' | tojson(ensure_ascii=true) }}{{ d | tojson(separators=(',', ':')) }}{{ {'b': 1, 'a': {'d': 2, 'c': 3}} | tojson(sort_keys=true) }}{{ d | tojson(indent=0) }}",
    "filter precedence": "{{ 'a' ~ 'b' | upper }}{{ ('a' ~ 'b') | upper }}{{ 1 + 2 | string | length }}{{ -1 | abs }}{{ 'a' in 'A' | lower }}{{ not e | length }}{{ l | length > 2 and true }}{{ s | lower is string }}{{ n is string | string }}",
    "calls": "{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{% macro two(a, b=a, c=n) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ two(1) }}{{ two(1, 2) }}{{ two(b=4, a=3) }}{{ two('x', c='y') }}{{ two() }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
    "dates": "{{ strftime_now('%Y-%m-%d') }}",
    "comments": "{# a\nb #}x{# {{ no }} #}\n  {#- c -#}  y",
    "braces": "{ {{ '}}' }} {{ {'a': {'b': 1}}['a']['b'] }} } %} {{ {'a': {}} }}{ {",
    "error: raise": "a{{ raise_exception('roles must alternate') }}",
    "error: attribute of undefined": "{{ nothing.x }}",
    "error: item of undefined": "{{ nothing['x'] }}",
    "error: add text and number": "{{ 'a' + 1 }}",
    "error: add undefined": "{{ 'a' + nothing }}",
    "error: loop over number": "{% for x in 5 %}{% endfor %}",
    "error: loop over none": "{% for x in none %}{% endfor %}",
    "error: unpack": "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "error: division by zero": "{{ 1 // 0 }}",
    "error: order": "{{ 'a' < 1 }}",
    "error: append": "{% set l = [] %}{{ l.append(1) }}",
    "error: undefined to JSON": "{{ nothing | tojson }}",
    "error: unknown filter": "{{ 1 | frobnicate }}",
    "error: unknown test": "{{ 1 is frobnicated }}",
    "error: unknown tag": "{% frobnicate %}",
    "error: unknown function": "{{ frobnicate(1) }}",
    "error: not closed": "{% if t %}",
    "error: closed twice": "{% endif %}",
    "error: bad expression": "{{ 1 + }}",
    "error: two values": "{{ 1 2 }}",
    "error: too many arguments": "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "error: unknown keyword": "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "error: private attribute": "{{ s.__class__.__mro__ }}",
    "error: huge range": "{{ range(1000000000) }}",
}


def make_environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

        @jinja2.pass_eval_context
        def _support(self, context, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: "2026-11-29"
    return env


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer/chat_templates.json"))
    out = pathlib.Path(parser.parse_args().out)
    env = make_environment()
    variables = {**VALUES, "tools": TOOLS, "bos_token": "<|begin|>"}
    cases = []
    for name, template in TEMPLATES.items():
        case = {"name": name, "template": template}
        try:
            case["output"] = env.from_string(template).render(messages=MESSAGES, add_generation_prompt=True, **variables)
        except Exception:
            case["error"] = True
        if name.startswith("error: ") != ("error" in case):
            raise SystemExit(f"case {name!r}: {case}")
        cases.append(case)
    value = {"made_by": "python/golden/make_chat_template.py", "jinja2": jinja2.__version__, "messages": MESSAGES, "variables": variables, "cases": cases}
    out.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
