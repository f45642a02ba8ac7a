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

from chat_conversations import CONVERSATIONS, TOOLS

HERE = Path(__file__).parent


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
