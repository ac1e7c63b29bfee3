"""What a form costs and whether it holds: python -m benchmarks.structured_output MODEL {cost,valid}

`cost`: tokens a second of 16 requests at once with a JSON Schema, against the same requests without, of the same
lengths; and how long a first compilation takes. `valid`: 200 realistic schemas, greedy and at temperature 1; every
answer that was finished must validate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from benchmarks.machine import state_now
from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from octavo.grammar.definition import form_of
from tests.schema_generator import realistic_schemas, validator_of

NUM_REQUESTS = 16
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string", "maxLength": 30}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "zip"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 10, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "biography": {"type": "string", "minLength": 200, "maxLength": 400},
        "email": {"type": "string", "pattern": "^[a-z]{3,10}@[a-z]{3,10}\\.com$"},
        "languages": {"type": "array", "items": {"enum": ["Deutsch", "français", "日本語"]}, "maxItems": 3},
        "address": ADDRESS,
    },
    "required": ["name", "age", "biography", "email", "languages", "address"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Make up a person, as JSON."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("what", choices=["cost", "valid"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    with LLM(args.model, max_model_len=2048, max_num_seqs=NUM_REQUESTS, enable_prefix_caching=False) as llm:
        if args.what == "cost":
            measure_cost(llm)
        else:
            check_validity(llm, args.count, args.max_tokens)


def measure_cost(llm: LLM) -> None:
    print_compile_times(llm)
    formal = sampling_of(1, StructuredOutputsParams(json=PERSON))
    every = [replace(formal, seed=seed) for seed in range(NUM_REQUESTS)]
    outputs, _ = run(llm, every)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    free = [
        replace(sampling, structured_outputs=None, max_tokens=length, ignore_eos=True)
        for sampling, length in zip(every, lengths, strict=True)
    ]
    one_by_one = [replace(sampling, logprobs=0) for sampling in every]
    free_with_logprobs = [replace(sampling, logprobs=0) for sampling in free]
    cases = {"free": free, "form": every, "free, logprobs": free_with_logprobs, "form, no jumps": one_by_one}
    best = dict.fromkeys(cases, 0.0)
    for _ in range(3):
        for name, samplings in cases.items():
            best[name] = max(best[name], run(llm, samplings)[1])
    rates = {name: round(rate) for name, rate in best.items()}
    print(json.dumps({"tokens": sum(lengths), "tokens_per_s": rates, **asdict(state_now())}))


def print_compile_times(llm: LLM) -> None:
    llm._engine.input._grammars.warm_up()
    schemas = realistic_schemas(50, seed=99)
    times = []
    for schema in schemas:
        began = time.perf_counter()
        llm._engine.input.compile(form_of(StructuredOutputsParams(json=schema)), "json").matcher()
        times.append(1000 * (time.perf_counter() - began))
    ordered = sorted(times)
    figures = {"first": times[0], "median": ordered[len(ordered) // 2], "worst": ordered[-1]}
    print(json.dumps({"compile_ms": {name: round(value, 2) for name, value in figures.items()}}))


def check_validity(llm: LLM, count: int, max_tokens: int) -> None:
    schemas = realistic_schemas(count)
    for temperature in (0.0, 1.0):
        outputs, rate = run(
            llm,
            [
                replace(sampling_of(temperature, StructuredOutputsParams(json=schema)), max_tokens=max_tokens)
                for schema in schemas
            ],
        )
        finished = [output.outputs[0].finish_reason == "stop" for output in outputs]
        wrong = sum(
            not validator_of(schema).is_valid(json.loads(output.outputs[0].text))
            for schema, output, ended in zip(schemas, outputs, finished, strict=True)
            if ended
        )
        print(json.dumps({"temperature": temperature, "schemas": count, "finished": sum(finished), "invalid": wrong,
                          "tokens_per_s": round(rate)}))  # fmt: skip
        if wrong:
            sys.exit(1)


def sampling_of(temperature: float, form: StructuredOutputsParams) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=1, max_tokens=400, structured_outputs=form)


def run(llm: LLM, samplings: Sequence[SamplingParams]) -> tuple[list[RequestOutput], float]:
    """The answers, and tokens a second of all together."""
    began = time.perf_counter()
    outputs = llm.chat([QUESTION] * len(samplings), samplings, use_tqdm=False)
    seconds = time.perf_counter() - began
    return outputs, sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


if __name__ == "__main__":
    main()
