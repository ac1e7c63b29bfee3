"""Calls of tools against BFCL v4: python -m benchmarks.bfcl MODEL DATA [--category simple_python] [--count 100]
    [--tool-choice auto] [--tool-call-parser NAME]

DATA is the folder `bfcl_eval/data` of the package bfcl-eval (install it with --no-deps, in an environment of its own).
Every answer must be a call that parses and whose arguments validate; accuracy is the share of calls that the
benchmark's own possible answers accept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from octavo.chat.format import ChatParsers
from octavo.config import EngineArgs
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.build import build_engine
from octavo.metrics.totals import EngineTotals
from octavo.server.app import create_app
from octavo.server.in_process import post
from octavo.server.settings import ServerSettings

# Of Python, Java and JavaScript.
_TYPES = {
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "double": "number",
    "long": "integer",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
    "char": "string",
    "String": "string",
    "Boolean": "boolean",
    "any": None,
    "": None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--category", default="simple_python")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tool-choice", default="required", choices=["auto", "required"])
    parser.add_argument("--tool-call-parser", metavar="NAME", help="default: as the model's chat template says")
    args = parser.parse_args()
    questions = _lines(args.data / f"BFCL_v4_{args.category}.json")[: args.count]
    truths = _lines(args.data / "possible_answer" / f"BFCL_v4_{args.category}.json")[: args.count]
    bodies = [_body(question, args.tool_choice) for question in questions]
    began = time.monotonic()
    answers = asyncio.run(_ask(args.model, args.tool_call_parser, bodies))
    verdicts = [
        _verdict(answer, body, truth["ground_truth"][0])
        for answer, body, truth in zip(answers, bodies, truths, strict=True)
    ]
    figures: dict[str, Any] = {"category": args.category, "tool_choice": args.tool_choice}
    figures |= {"tool_call_parser": args.tool_call_parser, "questions": len(verdicts)}
    figures |= {verdict: verdicts.count(verdict) for verdict in ("right", "wrong", "no call", "cut", "invalid")}
    print(json.dumps(figures | {"seconds": round(time.monotonic() - began)}))
    if figures["invalid"]:
        sys.exit(1)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _body(question: dict[str, Any], tool_choice: str) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {**function, "parameters": _schema(function["parameters"])}}
        for function in question["function"]
    ]
    return {
        "model": "model",
        "messages": question["question"][0],
        "tools": tools,
        "tool_choice": tool_choice,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_completion_tokens": 256,
    }


def _schema(node: Any) -> Any:
    """JSON Schema from the benchmark's dialect, which has types of programming languages."""
    if isinstance(node, list):
        return [_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    fields = {key: _schema(value) for key, value in node.items() if key not in ("default", "optional")}
    kind = fields.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        del fields["type"]
        fields |= {} if _TYPES[kind] is None else {"type": _TYPES[kind]}
    return fields


async def _ask(model: str, tool_call_parser: str | None, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    totals = EngineTotals()
    engine = AsyncEngine(build_engine(EngineArgs(model, max_model_len=4096, max_num_seqs=16), listeners=(totals,)))
    app = create_app(engine, ServerSettings(("model",), parsers=ChatParsers(tool_call_parser)), totals)
    engine.start()
    try:
        answers = await asyncio.gather(
            *(post(app, "/v1/chat/completions", json.dumps(body).encode()) for body in bodies)
        )
    finally:
        await engine.shutdown(0)
    return [json.loads(answer.body) for answer in answers]


def _verdict(answer: dict[str, Any], body: dict[str, Any], truth: dict[str, Any]) -> str:
    if "choices" not in answer:
        print(answer, file=sys.stderr)
        return "invalid"
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut"
    calls = choice["message"].get("tool_calls")
    if not calls:
        return "no call"
    function = calls[0]["function"]
    tool = next((tool["function"] for tool in body["tools"] if tool["function"]["name"] == function["name"]), None)
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return "invalid"
    if tool is None or not Draft202012Validator(tool["parameters"]).is_valid(arguments):
        return "invalid"
    return "right" if function["name"] in truth and _accepts(truth[function["name"]], arguments) else "wrong"


def _accepts(expected: dict[str, list[Any]], arguments: dict[str, Any]) -> bool:
    """Each argument is one of the values possible for it; one that may be left out has "" among these."""
    if not set(arguments) <= set(expected):
        return False
    return all(
        any(_same(value, arguments[name]) for value in values) if name in arguments else "" in values
        for name, values in expected.items()
    )


def _same(expected: Any, given: Any) -> bool:
    """Texts without case, blanks and punctuation, as the benchmark compares them."""
    if isinstance(expected, str) and isinstance(given, str):
        return _bare(expected) == _bare(given)
    if isinstance(expected, list) and isinstance(given, list):
        return len(expected) == len(given) and all(map(_same, expected, given))
    if isinstance(expected, dict) and isinstance(given, dict):
        return _accepts(expected, given)
    return bool(expected == given)


def _bare(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


if __name__ == "__main__":
    main()
