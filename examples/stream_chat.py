"""Stream one chat answer from an OpenAI-compatible server: stream_chat.py BASE_URL QUESTION [MODEL]"""

import sys
import time

from openai import OpenAI


def main(base_url: str, question: str, model: str | None = None) -> None:
    client = OpenAI(base_url=base_url, api_key="none")
    model = model or client.models.list().data[0].id
    start = time.perf_counter()
    first = None
    usage = None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_completion_tokens=128,
        stream=True,
        stream_options={"include_usage": True},
    )
    print(f"\n> {question}\n")
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.perf_counter()
            print(chunk.choices[0].delta.content, end="", flush=True)
    end = time.perf_counter()
    if first is None or usage is None:
        raise SystemExit("the server sent no text")
    speed = (usage.completion_tokens - 1) / (end - first)
    print(f"\n\n{usage.completion_tokens} tokens, first after {first - start:.2f} s, then {speed:.0f} tokens/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
