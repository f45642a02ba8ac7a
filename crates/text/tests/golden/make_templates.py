"""Writes templates.json beside this file: chat templates and what Python's Jinja2 makes of them.

The environment is the one transformers builds (utils/chat_template_utils.py): immutable sandbox,
trim_blocks, lstrip_blocks, loop controls, tojson through json.dumps, raise_exception and
strftime_now. Run by hand when cases change (pip install jinja2==3.1.6); no test needs Python.
"""

import json
import pathlib
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2024, 7, 1, 12, 4, 5)


class Generation(jinja2.ext.Extension):
    """The tag that marks assistant tokens; renders its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


CHAT = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "  Hi é🦊  \n"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "f", "arguments": {"b": 1, "a": [True, None, 1.5, "x\"y"]}}}]},
    {"role": "tool", "content": "ok", "tool_call_id": "c1"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    "required": ["items"], "description": "<a> & 'b' \u00e9 \u2028 \x7f \x01"}}}]

V = {"flag": True, "none": None, "i": 3, "f": 0.1, "s": "it's", "list": [1, "a", None, 2.0],
     "map": {"b": 1, "a": {"x": [], "y": {}}}, "empty": [], "big": 12345678901234567890,
     "floats": [1.0, 1e15, 1e16, 1e22, 1.5e-4, 1e-5, 123456.789, -0.0, 5e-324],
     "text": "  one two  two\tthree\n", "quotes": ["a'b", "a\"b", "a'b\"c", "\n\t\\\x00\x7fé\u2028\u200b\xa0\ufeff\ue000\U0010fffd\U000e0041"]}

CASES = {
    "print": "{{ flag }} {{ none }} {{ i }} {{ f }} {{ s }} {{ undefined_name }} {{ big }}",
    "print_list": "{{ list }}|{{ map }}|{{ empty }}|{{ (1, 'a') }}|{{ (1,) }}|{{ () }}",
    "print_floats": "{% for x in floats %}{{ x }} {% endfor %}{{ floats }}",
    "print_quotes": "{{ quotes }}",
    "string_filter": "{{ f | string + '!' }} {{ flag | string }} {{ list | string }}",
    "tilde": "{{ 'a' ~ 1 ~ none ~ true }}",
    "tojson": "{{ map | tojson }} {{ list | tojson }} {{ s | tojson }} {{ none | tojson }}"
              " {{ flag | tojson }} {{ floats | tojson }} {{ big | tojson }}",
    "tojson_escapes": "{{ quotes | tojson }} {{ tools | tojson }}",
    "tojson_indent": "{{ map | tojson(indent=2) }}\n{{ tools | tojson(indent=4) }}",
    "tojson_indent_forms": "{{ list | tojson(indent=0) }} {{ list | tojson(indent='\t') }}"
                           " {{ list | tojson(indent=none) }} {{ list | tojson(indent=true) }}",
    "tojson_ascii": "{{ messages[1].content | tojson(ensure_ascii=true) }} {{ quotes | tojson(true) }}",
    "tojson_separators": "{{ map | tojson(separators=(',', ':')) }}"
                         " {{ map | tojson(indent=1, separators=[';', '=']) }}",
    "tojson_sort": "{{ map | tojson(sort_keys=true) }} {{ {2: 1, 1: 2} | tojson(sort_keys=true) }}",
    "tojson_keys": "{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }}",
    "tojson_positional": "{{ map | tojson(false, 2) }}",
    "tojson_tuple": "{{ (1, 2) | tojson }} {{ map.items() | list | tojson }}",
    "loop_controls": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}"
                     "{% if x > 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "loop_variables": "{% for x in list %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.first }}/"
                      "{{ loop.last }}/{{ loop.length }}/{{ loop.revindex }}/{{ loop.previtem }}/"
                      "{{ loop.nextitem }};{% endfor %}",
    "loop_else_filter": "{% for x in list if x is none %}n{% else %}e{% endfor %}"
                        "{% for x in empty %}n{% else %}e{% endfor %}",
    "loop_unpack": "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}"
                   "{% for k, v in map | items %}{{ k }};{% endfor %}"
                   "{% for k, v in map | dictsort %}{{ k }};{% endfor %}",
    "loop_recursive": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}"
                      "({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(a=0, found=false) %}{% for x in [1, 2, 3] %}"
                 "{% set ns.a = ns.a + x %}{% if x == 2 %}{% set ns.found = true %}{% endif %}"
                 "{% endfor %}{{ ns.a }} {{ ns.found }}",
    "scope": "{% set x = 1 %}{% for y in [1] %}{% set x = 2 %}{% endfor %}{{ x }}"
             "{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "set_block": "{% set x %}a{{ i }}b{% endset %}[{{ x }}]{% set y | upper %}abc{% endset %}{{ y }}",
    "macro": "{% macro m(a, b='d', c=none) %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}"
             "{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}",
    "macro_recursive": "{% macro m(x) %}{% if x is mapping %}{% for k in x %}{{ k }}:{{ m(x[k]) }},"
                       "{% endfor %}{% else %}{{ x }}{% endif %}{% endmacro %}{{ m(map) }}",
    "macro_caller": "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}",
    "strip": "[{{ text.strip() }}][{{ text.lstrip() }}][{{ text.rstrip() }}][{{ text | trim }}]"
             "[{{ '--x-'.strip('-') }}][{{ 'abcab'.lstrip('ab') }}][{{ 'xyx'.rstrip('x') }}]"
             "[{{ '\x1c\u00a0a\u2003'.strip() }}]",
    "split": "{{ text.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }}"
             " {{ 'a-b-c'.rsplit('-', 1) }} {{ ''.split(',') }} {{ ''.split() }}"
             " {{ 'a</think>b'.split('</think>')[-1] }} {{ 'a\nb\r\nc\n'.splitlines() }}",
    "methods": "{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'ab cd'.title() }}{{ 'ab'.capitalize() }}"
               "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abcb'.find('b') }}"
               "{{ 'abcb'.rfind('b') }}{{ 'abcb'.count('b') }}{{ 'abcb'.replace('b', 'x', 1) }}"
               "{{ ','.join(['a', 'b']) }}{{ '{} {x}'.format(1, x=2) }}{{ '12'.isdigit() }}"
               "{{ 'ab'.isalpha() }}{{ ' '.isspace() }}",
    "methods_more": "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }}"
                    " {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'x'.partition('=') }}",
    "dict_methods": "{{ map.get('b') }}{{ map.get('zz') }}{{ map.get('zz', 7) }}"
                    "{{ map.keys() | list }}{{ map.values() | list }}{{ 'a' in map }}{{ 'c' not in map }}",
    "dict_method_wins": "{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}"
                        "{{ v['items'] }}{% endfor %}",
    "slices": "{{ list[1:] }}{{ list[:-1] }}{{ list[::-1] }}{{ 'abc'[1] }}{{ 'abc'[-1] }}"
              "{{ 'abc'[::-1] }}{{ messages[-1].role }}{{ list[::2] }}",
    "none_tests": "{{ none is none }}{{ nope is defined }}{{ none is defined }}{{ s is string }}"
                  "{{ i is number }}{{ map is mapping }}{{ list is sequence }}{{ list is iterable }}"
                  "{{ s is iterable }}{{ flag is boolean }}{{ true is true }}{{ i is odd }}"
                  "{{ messages[2].content is none }}{{ messages[2].zz is defined }}{{ f is float }}",
    "defaults": "{{ nope | default('d') }}{{ none | default('d') }}{{ none | default('d', true) }}"
                "{{ nope or 'x' }}{{ '' or 'y' }}{{ 0 and 1 }}{{ [] or 'z' }}",
    "filters": "{{ list | length }}{{ [3, 1, 2] | sort }}{{ ['a', 'b'] | join('-') }}"
               "{{ messages | map(attribute='role') | list }}{{ list | first }}{{ list | last }}"
               "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
               "{{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join(',') }}"
               "{{ [1, 1, 2] | unique | list }}{{ 'a b' | replace(' ', '_') }}{{ [1, 2] | sum }}"
               "{{ '3' | int + 1 }}{{ 'ab' | upper }}{{ -2 | abs }}{{ 2.567 | round(1) }}"
               "{{ 'x' | indent }}{{ [1, 2, 3] | batch(2) | list }}{{ 'a\nb' | indent(2) }}"
               "{{ [1, 2] | reverse | list }}{{ '<a>' | safe }}{{ {'k': 1} | items | list }}",
    "escapes": "{{ '<>&\"' }}{{ messages[0].content }}{{ '<' ~ '&' }}{{ '<' | e }}",
    "arithmetic": "{{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 3 }} {{ 2 ** 3 }} {{ -7 // 2 }} {{ 1 + 1.0 }}"
                  " {{ 6 / 2 }} {{ 'a' * 3 }} {{ [1] + [2] }}",
    "comparisons": "{{ 1 < 2 }}{{ 'a' == 'a' }}{{ 1 == 1.0 }}{{ not none }}{{ 1 in [1] }}"
                   "{{ 'b' in 'abc' }}{{ 'a' if false else 'b' }}[{{ 'a' if false }}]{{ true == 1 }}",
    "whitespace": "  {% if true %}\n  a\n  {% endif %}\n  {%- if true %}\n  b {%- endif %}\n"
                  "{# c #}\n  {# d #}  \n x {{- ' y ' -}} z\n  {%+ if true %}p{% endif +%}\n q\n\n",
    "raw": "{% raw %}{{ x }}{% endraw %}",
    "generation": "a\n  {% generation %}\n{{ i }}{% set z = 1 %}\n  {% endgeneration %}\n"
                  "{{ z is defined }}{%- generation -%} x {%- endgeneration -%} y",
    "crlf": "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc",
    "date": "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S %A %j %p %I') }}"
            "|{{ strftime_now('%-d %B, %y%%') }}",
    "date_probe": "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}"
                  "{{ raise_exception is defined }}",
    "with": "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}",
    "filter_block": "{% filter upper %}abc{{ i }}{% endfilter %}",
    "nested_data": "{% set d = {'a': {'b': [1, {'c': 2}]}} %}{{ d.a.b[1].c }}{{ d['a']['b'][0] }}"
                   "{{ d | length }}",
    "dict_call": "{{ dict(a=1, b='x') }}{{ dict(map, z=1) | tojson }}",
    "roles": "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
             "{% if m.tool_calls is defined and m.tool_calls %}{% for c in m.tool_calls %}"
             "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
             "{% elif m.content %}{{ m.content | trim }}{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ eos_token }}{{ pad_token }}",
    "last_user": "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}"
                 "{% set index = (messages | length - 1) - loop.index0 %}"
                 "{% if ns.last < 0 and m.role == 'user' %}{% set ns.last = index %}{% endif %}"
                 "{% endfor %}{{ ns.last }}",
    "format_filter": "{{ '%s-%d-%.2f' | format('a', 3, 1.5) }}",
    "undefined_arg": "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
    "none_attr": "{{ none.x is defined }}{{ messages[2].content.x is defined }}",
    "chained": "{{ (text.strip().split(' ') | first).upper()[0] }}",
    "comment_in_string": "{{ '{# not a comment #}' }}{{ '{% if %}' }}",
    "inline_if_list": "{{ [1 if flag else 2, 'x'] }}",
    "kwargs": "{{ enable_thinking }}{{ enable_thinking is false }}",
}

REFUSED = {
    "raise": "{{ raise_exception('roles must alternate') }}",
}
FAILS = {
    "attribute_of_undefined": "a\n{{ nope.x }}",
    "add_undefined": "{{ 'a' + nope }}",
    "add_none": "{{ 'a' + none }}",
    "unknown_filter_late": "{{ i.nothing() }}",
    "tojson_undefined": "{{ nope | tojson }}",
    "divide_by_zero": "{{ 1 // 0 }}",
}


def main():
    env = environment()
    context = dict(messages=CHAT, tools=TOOLS, add_generation_prompt=True, documents=None,
                   bos_token="<s>", eos_token="</s>", enable_thinking=False, **V)
    out = {"note": __doc__.strip().split("\n\n")[1], "jinja2": jinja2.__version__,
           "messages": CHAT, "tools": TOOLS, "variables": V, "cases": [], "fails": []}
    for name, template in CASES.items():
        try:
            expected = env.from_string(template).render(**context)
        except Exception as error:
            raise SystemExit(f"{name}: {error!r}")
        out["cases"].append({"name": name, "template": template, "expected": expected})
    for name, template in {**FAILS, **REFUSED}.items():
        try:
            print(name, repr(env.from_string(template).render(**context)))
            raise SystemExit(f"{name} does not fail")
        except Exception as error:
            out["fails"].append({"name": name, "template": template, "python": repr(error)})
    path = pathlib.Path(__file__).with_name("templates.json")
    path.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
