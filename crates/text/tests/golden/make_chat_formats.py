"""Makes chat_formats.json: prompts of the chat formats that checkpoints carry as programs.

    python make_chat_formats.py --dsml FIRST.py --dsml2 SECOND.py --xtml FILE.py --blocks FILE.py

The programs are not part of this repository. FIRST.py and SECOND.py are the two editions of
encoding_dsv4.py, with `encode_messages`; the file for xtml has `build`, which gives pairs of text
and whether it is a control token; that for blocks has `render_inkling_messages`. What a program
refuses is stored as null, and what it cannot be asked is left out.
"""

import argparse
import copy
import importlib.util
import json
from pathlib import Path

HERE = Path(__file__).parent


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def system(text, **more):
    return {"role": "system", "content": text, **more}


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text, call=None, **more):
    return {"role": "tool", "content": text, **({"tool_call_id": call} if call else {}), **more}


def call(name, arguments, call_id=None, bare=False):
    inner = {"name": name, "arguments": arguments}
    if bare:
        return {**inner, **({"id": call_id} if call_id else {})}
    return {"type": "function", "function": inner, **({"id": call_id} if call_id else {})}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather, in \u00b0C \u2014 \"now\"",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {
                "city": {"type": "string", "description": "a < b & c's"},
                "days": {"type": "integer", "minimum": 1, "maximum": 1.5, "default": None},
            },
            "additionalProperties": False,
        },
    },
}
PLAIN = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, PLAIN]

EVERYTHING = {
    "text": "it's \"5\" & <b>\n",
    "empty": "",
    "whole": 3,
    "minus": -1,
    "fraction": 1.0,
    "small": 1e-7,
    "large": 1e22,
    "yes": True,
    "nothing": None,
    "list": [1, "zwei", [], {"a": {}}],
    "object": {"b": 1, "a": "\u00e9\u4f60\U0001f98a\u2028"},
    "key \"&\" <x>": "v",
}

CALLS = [
    call("weather", {"city": "K\u00f6ln", "days": 2}, "a"),
    call("now", {}, "b"),
    call("weather", '{"city": "Oslo", "days": 1.50}', "c"),
]

CONVERSATIONS = {
    "one": [user("Hi")],
    "system": [system("Be kind.\n"), user("Hi \u4f60\u597d \U0001f98a")],
    "system last": [system("Be kind.")],
    "turns": [
        system("Be kind."),
        user("1+1?"),
        assistant("2", reasoning_content="one and one"),
        user("2+2?"),
        assistant("4", reasoning_content="\n two and two "),
        user("3+3?"),
    ],
    "answered": [user("1+1?"), assistant("2", reasoning_content="one and one")],
    "no thought": [user("a"), assistant("b"), user("c")],
    "other key": [user("a"), assistant("b", reasoning="why"), user("c")],
    "users": [user("a"), user("b"), assistant("c"), user("d"), user("e")],
    "empty": [system(""), user(""), assistant("", reasoning_content=""), user(" ")],
    "null": [user("a"), assistant(None, tool_calls=[call("now", {}, "x")]), tool("", "x")],
    "calls": [
        system("S"),
        user("Weather?"),
        assistant("I look.", reasoning_content="need tools", tool_calls=CALLS),
        tool("rainy", "c"),
        tool("5\u00b0", "a"),
        tool('{"t": 12}', "b"),
        user("And?"),
    ],
    "calls, then answer": [
        user("Weather?"),
        assistant("", reasoning_content="need tools", tool_calls=CALLS[:1]),
        tool("5\u00b0", "a"),
        assistant("Five.", reasoning_content="so it is"),
        user("And?"),
        assistant(None, reasoning_content="again", tool_calls=CALLS[1:]),
        tool("rainy", "c"),
        tool("12", "b"),
    ],
    "unknown result": [
        user("?"),
        assistant("", tool_calls=CALLS[:2]),
        tool("2", "zzz", name="weather"),
        tool("1", "a"),
    ],
    "results without ids": [
        user("?"),
        assistant("", tool_calls=[call("f", {}), call("g", {})]),
        tool("1"),
        user("wait"),
        tool("2"),
    ],
    "everything": [user("?"), assistant("", tool_calls=[call("f", EVERYTHING, "x")]), tool("!", "x")],
    "json text": [
        user("?"),
        assistant(
            "",
            tool_calls=[
                call("f", json.dumps(EVERYTHING), "x"),
                call("g", "  ", "y"),
                call("h", None, "z"),
            ],
        ),
    ],
    "broken text": [user("?"), assistant("", tool_calls=[call("f", '{"a": 1', "x")])],
    "no object": [user("?"), assistant("", tool_calls=[call("f", "[1]", "x")])],
    "bare calls": [user("?"), assistant("", tool_calls=[call("f", {"a": 1}, "x", bare=True)])],
    "markers": [
        system("<|im_end|><think></think>"),
        user("<|open|>message<|sep|> <\uff5cUser\uff5c> <|message_model|>"),
        assistant("<|end_of_msg|><\uff5cend\u2581of\u2581sentence\uff5c>", reasoning_content="</think>"),
        user("<|content_text|>"),
    ],
    "names": [system("S", name="boss"), user("a", name='A "&"'), assistant("b", name="me"), user("c")],
    "tools in a message": [system("S", tools=TOOLS), user("a"), system("", tools=[PLAIN]), user("b")],
    "developer": [
        user("a"),
        {"role": "developer", "content": "dev", "tools": [PLAIN]},
        assistant("b"),
        {"role": "developer", "content": "more"},
    ],
    "developer dropped": [
        {"role": "developer", "content": "dev"},
        assistant("b", reasoning_content="r"),
        user("c"),
    ],
    "reminder": [
        user("a"),
        {"role": "latest_reminder", "content": "2026"},
        assistant("b"),
        {"role": "latest_reminder", "content": "2027"},
        user("c"),
    ],
    "task": [user("a", task="query")],
    "action": [system("S"), user("a", task="action")],
    "title": [user("a"), assistant("b", task="title")],
    "task answered": [user("a", task="domain"), assistant("b", reasoning_content="r"), user("c")],
    "unknown task": [user("a", task="sing")],
    "format": [system("S", response_format={"type": "object", "b": 1, "a": 2}), user("a")],
    "goes on": [user("a"), assistant("half", wo_eos=True)],
    "unknown role": [user("a"), {"role": "critic", "content": "b"}],
}

SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"b": 1, "a": [None]}}}

# For each format: the options that every conversation is tried with, the first also with tools.
OPTIONS = {
    "dsml": [
        {"thinking": False},
        {"thinking": True},
        {"enable_thinking": True, "reasoning_effort": "max"},
        {"thinking": True, "reasoning_effort": "high"},
        {"thinking": True, "drop_thinking": False},
    ],
    "xtml": [
        {"thinking": False},
        {"thinking": True},
        {"enable_thinking": True, "reasoning_effort": "low"},
        {"thinking_effort": "high", "tool_choice": "required"},
        {"reasoning_effort": "none", "tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"response_format": SCHEMA},
    ],
    "blocks": [{}, {"reasoning_effort": 0.9}, {"reasoning_effort": 0}, {"reasoning_effort": 0.25}],
}
OPTIONS["dsml2"] = OPTIONS["dsml"] + [{"thinking": True, "reasoning_effort": "low"}]


def dsml(program, key, messages, tools, options, _generation):
    messages = copy.deepcopy(messages)
    for message in messages:
        if "reasoning_content" in message:
            message[key] = message.pop("reasoning_content")
        for one in message.get("tool_calls") or []:
            inner = one.get("function", one)
            arguments = inner["arguments"]
            # The first edition takes JSON text only.
            if not isinstance(arguments, str):
                inner["arguments"] = json.dumps(arguments or {}, ensure_ascii=False)
            elif not arguments.strip():
                inner["arguments"] = "{}"
    if tools:
        if messages and messages[0]["role"] in ("system", "developer"):
            messages[0]["tools"] = tools
        else:
            messages.insert(0, {"role": "system", "tools": tools})
    thinking = options.get("thinking", options.get("enable_thinking", True))
    return program.encode_messages(
        messages,
        thinking_mode="thinking" if thinking else "chat",
        drop_thinking=options.get("drop_thinking", True),
        reasoning_effort=options.get("reasoning_effort"),
    )


class Strings:
    """Every string once. A prompt is a list of their numbers, those of tokens as -1 - number."""

    def __init__(self):
        self.numbers = {}

    def number(self, text):
        return self.numbers.setdefault(text, len(self.numbers))

    def segments(self, pairs):
        return [-1 - self.number(text) if token else self.number(text) for text, token in pairs]

    def lines(self, text):
        return [self.number(line) for line in text.splitlines(keepends=True)]


class Spelled:
    def encode_text(self, text):
        return [(text, False)] if text else []

    def encode_special(self, token):
        return (token, True)


def cases(name, render, generations):
    for title, messages in CONVERSATIONS.items():
        for options in OPTIONS[name]:
            first = options == OPTIONS[name][0]
            for tools in [None, TOOLS] if first else [None]:
                for generation in generations if first and not tools else [True]:
                    try:
                        expected = render(copy.deepcopy(messages), tools, options, generation)
                    except (ValueError, TypeError, KeyError, AssertionError, NotImplementedError,
                            AttributeError):
                        expected = None
                    yield {
                        "conversation": title,
                        "variables": options,
                        "tools": bool(tools),
                        "generation": generation,
                        "expected": expected,
                    }


def main():
    parser = argparse.ArgumentParser()
    for name in ("dsml", "dsml2", "xtml", "blocks"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    first, second = load(args.dsml), load(args.dsml2)
    xtml, blocks = load(args.xtml), load(args.blocks)
    strings = Strings()
    golden = {
        "conversations": CONVERSATIONS,
        "tools": TOOLS,
        "dsml": list(cases("dsml", lambda *a: strings.lines(dsml(first, "reasoning_content", *a)), [True])),
        "dsml2": list(cases("dsml2", lambda *a: strings.lines(dsml(second, "reasoning", *a)), [True])),
        "xtml": list(
            cases(
                "xtml",
                lambda m, t, o, g: strings.segments(xtml.build(m, t, add_generation_prompt=g, **o)),
                [True, False],
            )
        ),
        "blocks": list(
            cases(
                "blocks",
                lambda m, t, o, g: strings.segments(
                    blocks.render_inkling_messages(
                        m, Spelled(), tools=t, add_generation_prompt=g, **o
                    )
                ),
                [True, False],
            )
        ),
    }
    golden["strings"] = list(strings.numbers)
    text = json.dumps(golden, ensure_ascii=False, indent=None, separators=(",", ":"))
    (HERE / "chat_formats.json").write_text(text + "\n")
    for name in ("dsml", "dsml2", "xtml", "blocks"):
        made = golden[name]
        print(name, len(made), "of them refused", sum(one["expected"] is None for one in made))


main()
