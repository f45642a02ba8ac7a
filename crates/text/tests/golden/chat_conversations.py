"""Conversations that prompts are made of: turns, thoughts, calls, results, and what goes wrong."""

import json


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
