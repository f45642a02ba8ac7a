"""Renders published templates over many conversations with Python's Jinja2, as transformers does.

    python make_template_matrix.py DIR

DIR holds templates (`*.jinja`); DIR/matrix.json is written for the slow test `templates_in_a_folder`
of template.rs. Neither is part of this repository: most templates come without a licence of their
own. Needs jinja2==3.1.6.
"""

import copy
import datetime
import json
import sys
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chat_conversations import CONVERSATIONS, TOOLS

VARIABLES = [
    {},
    {"enable_thinking": False, "thinking": False},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"reasoning_effort": "low", "thinking_effort": "low"},
    {"preserve_thinking": True, "clear_thinking": False, "drop_thinking": False},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
NOW = datetime.datetime(2024, 7, 1, 12, 4, 5)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks tokens for training and writes what it holds."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("write"), [], [], body).set_lineno(line)

    @staticmethod
    def write(caller):
        return caller()


def parsed(messages):
    """Arguments as values, as `Message::parse_arguments` makes them."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            inner = call.get("function", call)
            if isinstance(inner["arguments"], str):
                try:
                    value = json.loads(inner["arguments"])
                except ValueError:
                    continue
                if isinstance(value, dict):
                    inner["arguments"] = value
    return messages


def main():
    folder = Path(sys.argv[1])
    cases = []
    for path in sorted(folder.glob("*.jinja")):
        template = environment().from_string(path.read_text())
        for title, messages in CONVERSATIONS.items():
            for variables in VARIABLES:
                for tools in (None, TOOLS):
                    for generation in (True, False):
                        try:
                            expected = template.render(
                                messages=parsed(copy.deepcopy(messages)),
                                tools=tools,
                                documents=None,
                                add_generation_prompt=generation,
                                **{**SPECIAL, **variables},
                            )
                        except Exception as error:
                            expected = {"error": str(error)}
                        cases.append([path.name, title, variables, bool(tools), generation, expected])
    golden = {"special": SPECIAL, "conversations": CONVERSATIONS, "tools": TOOLS, "cases": cases}
    (folder / "matrix.json").write_text(json.dumps(golden, ensure_ascii=False))
    print(len(cases), "cases,", sum(isinstance(case[-1], dict) for case in cases), "refused")


main()
