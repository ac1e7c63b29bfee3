"""Structured output against the JSON-Schema-Test-Suite: python -m benchmarks.json_schema_suite SUITE [MODEL ...]

SUITE is the folder `json` of the sources of the package jsonschema, which carry the official suite:

    pip download --no-binary jsonschema --no-deps jsonschema && tar xzf jsonschema-*.tar.gz

The formats of answers are judged with `pip install 'jsonschema[format-nongpl]'`; formats left unjudged are printed.
Every schema of drafts 2020-12 and 7 must compile or be refused by name. One that compiles must allow no value that the
suite calls invalid, and every answer that a MODEL finishes, greedy and at temperature 1, must validate.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.protocols import Validator

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidValueError
from octavo.grammar.compiler import CompiledForm
from octavo.grammar.definition import form_of
from tests.unit.rambling import TOKENIZER, compiled

DRAFTS: dict[str, type[Validator]] = {"draft2020-12": Draft202012Validator, "draft7": Draft7Validator}
NOT_ASSERTED = {
    "content.json": "contentEncoding and contentMediaType are annotations, as of draft 2019-09 and in jsonschema",
    "ecmascript-regex.json": "U+FEFF is no blank in the regular expressions of Rust, nor in those of Python",
}
"""Files of the suite's optional part with invalid values that Octavo takes, and why."""
_REFUSALS = (
    (r"cannot be enforced: ([$\w]+)(?:,|$)", r"\1"),
    (r"format '(\S+)' is not known", r"format \1"),
    (r"(\$ref) leads", r"\1 elsewhere"),
    (r"(oneOf) is enforced only", r"\1"),
    (r"accepts no value|is false, which", "accepts nothing"),
    (r"the regular expression", "pattern"),
    (r"patternProperty regexes", "patternProperties"),
    (r"(minimum or maximum) cannot", r"\1"),
    (r"\b(multipleOf)\b", r"\1"),
)
"""How refusals name what they are about."""
QUESTION = [{"role": "user", "content": "Make up an example, as JSON."}]


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the suite, with the values that it is to accept and those that it is not."""

    draft: str
    file: str
    description: str
    schema: Any
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.draft}/{self.file}: {self.description}: {json.dumps(self.schema)}"

    @property
    def validator(self) -> Validator:
        """With the formats checked: Octavo enforces those that it does not refuse."""
        draft = DRAFTS[self.draft]
        return draft(self.schema, format_checker=draft.FORMAT_CHECKER)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--max-tokens", type=int, default=100)
    args = parser.parse_args()
    forms, refused = compile_all(list(cases_of(args.suite)))
    print(json.dumps({"compiled": len(forms), "refused": refused.total(), "because of": dict(refused.most_common())}))
    formats = {case.schema["format"] for case, _ in forms if isinstance(case.schema, dict) and "format" in case.schema}
    print(json.dumps({"formats not judged": sorted(formats - set(Draft202012Validator.FORMAT_CHECKER.checkers))}))
    failures = check_values(forms)
    for model in args.models:
        failures += check_answers(model, [case for case, _ in forms], args.max_tokens)
    for failure in failures:
        print(failure)
    sys.exit(bool(failures))


def cases_of(suite: Path) -> Iterator[Case]:
    for draft in DRAFTS:
        for path in sorted((suite / "tests" / draft).rglob("*.json")):
            for group in json.loads(path.read_text()):
                valid, invalid = (
                    tuple(test["data"] for test in group["tests"] if test["valid"] is wanted)
                    for wanted in (True, False)
                )
                schema = _of_draft(group["schema"], draft)
                yield Case(draft, path.name, group["description"], schema, valid, invalid)


def _of_draft(schema: Any, draft: str) -> Any:
    """The schema, saying of which draft it is: where nothing says so the newest is meant."""
    if draft == "draft7" and isinstance(schema, dict):
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return schema


def compile_all(cases: Sequence[Case]) -> tuple[list[tuple[Case, CompiledForm]], Counter[str]]:
    """The cases that compile, and how many name which keyword in their refusal. Exits if one names none."""
    forms: list[tuple[Case, CompiledForm]] = []
    refused: Counter[str] = Counter()
    for case in cases:
        try:
            forms.append((case, compiled(form_of(StructuredOutputsParams(json=case.schema)))))
        except InvalidValueError as refusal:
            refused[_named_in(refusal, case)] += 1
    return forms, refused


def _named_in(refusal: InvalidValueError, case: Case) -> str:
    """What of the schema the refusal speaks of."""
    message = str(refusal)
    for pattern, name in _REFUSALS:
        found = re.search(pattern, message)
        if found is not None:
            return found.expand(name)
    sys.exit(f"{case.name}\nis refused without saying why: {message}")


def check_values(forms: Sequence[tuple[Case, CompiledForm]]) -> list[str]:
    """The values of the suite that a form takes and should not. Counts those it should take and does not: such are
    ways of writing that Octavo leaves out (names in another order, 1.0 for an integer)."""
    counts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    failures = []
    for case, form in forms:
        for value in case.valid:
            accepted = accepts(form, value)
            counts["valid"] += 1
            counts["valid, accepted"] += accepted
            left_out[f"{case.draft}/{case.file}"] += not accepted
        for value in case.invalid:
            accepted = accepts(form, value)
            known = accepted and case.file in NOT_ASSERTED
            counts["invalid"] += 1
            counts["invalid, rejected"] += not accepted
            counts["invalid, accepted: " + case.file] += known
            if accepted and not known:
                failures.append(f"{case.name} takes {json.dumps(value)}")
    print(json.dumps({"values": dict(+counts)}))
    print(json.dumps({"valid values not accepted": dict((+left_out).most_common())}))
    return failures


def accepts(form: CompiledForm, value: Any) -> bool:
    """Whether the form allows this value as `json.dumps` writes it."""
    matcher = form.matcher().library
    token_ids = TOKENIZER.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
    return all(map(matcher.consume_token, token_ids)) and matcher.is_accepting()


def check_answers(model: str, cases: Sequence[Case], max_tokens: int) -> list[str]:
    """The finished answers of a model that are no JSON or do not validate."""
    failures = []
    with LLM(model, max_model_len=512, max_num_seqs=32) as llm:
        for temperature in (0.0, 1.0):
            samplings = [
                SamplingParams(
                    temperature=temperature,
                    seed=seed,
                    max_tokens=max_tokens,
                    structured_outputs=StructuredOutputsParams(json=case.schema),
                )
                for seed, case in enumerate(cases)
            ]
            outputs = [output.outputs[0] for output in llm.chat([QUESTION] * len(cases), samplings, use_tqdm=False)]
            finished = [
                (case, output.text)
                for case, output in zip(cases, outputs, strict=True)
                if output.finish_reason == "stop"
            ]
            verdicts = [verdict(case, text) for case, text in finished]
            wrong = [
                f"{case.name} is answered {text!r}"
                for (case, text), found in zip(finished, verdicts, strict=True)
                if found == "invalid"
            ]
            failures += wrong
            figures = {"answers": len(outputs), "finished": len(finished), **Counter(verdicts)}
            print(json.dumps({"model": Path(model).stem, "temperature": temperature, **figures}), flush=True)
    return failures


def verdict(case: Case, text: str) -> str:
    """`unjudged`: a pattern of the schema is none in Python, which knows no \\p{...}."""
    try:
        return "valid" if case.validator.is_valid(json.loads(text)) else "invalid"
    except re.error:
        return "unjudged"
    except ValueError:
        return "invalid"


if __name__ == "__main__":
    main()
