"""From sampled token ids to text: what each request gets of a step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from octavo.engine.answer import Answer
from octavo.engine.beam_search import Hypothesis
from octavo.errors import OctavoError, StepError
from octavo.request import CompletionOutput, FinishReason, OutputDelta, Request
from octavo.scheduler.outcome import NewToken, Started
from octavo.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class OutputProcessor:
    """The answers of all requests in the engine, by request id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._answers: dict[str, Answer] = {}
        self._going_on = _GoingOn((), [])

    def prepare(self, request: Request) -> Answer:
        """An answer to open once the request has been accepted."""
        return Answer(request, self._tokenizer)

    def open(self, request_id: str, answer: Answer) -> None:
        self._answers[request_id] = answer

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    @property
    def request_ids(self) -> list[str]:
        return list(self._answers)

    def mark_started(self, started: Sequence[Started], now: float) -> None:
        for start in started:
            answer = self._answers[start.request_id]
            answer.first_scheduled = now
            answer.num_cached_tokens = start.num_cached_tokens

    def token_gaps(self, request_ids: Sequence[str], others: Sequence[NewToken], now: float) -> Counter[float]:
        """Seconds since the token before, and how many waited that long: of the requests that go on, and the others."""
        previous = Counter([self._answers[token.request_id].last_token for token in others])
        if request_ids is self._going_on.request_ids:
            previous[self._going_on.last_token] += len(request_ids)
        else:
            previous.update([self._answers[request_id].last_token for request_id in request_ids])
        return Counter({now - last: count for last, count in previous.items() if last is not None})

    def append(self, tokens: Sequence[NewToken], now: float) -> list[OutputDelta]:
        """One delta a token, up to the one that ends a request.

        A request whose text cannot be made ends with an error; the others do not notice.
        """
        deltas: list[OutputDelta] = []
        ended: set[str] = set()
        for token in tokens:
            request_id = token.request_id
            if request_id in ended:
                continue
            try:
                delta = self._answers[request_id].append_token(token, now)
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this request alone
                delta = self._failed(self._answers[request_id], token.token_id, error)
            deltas.append(delta)
            if delta.finish_reason is not None:
                ended.add(request_id)
        return deltas

    def go_on(self, request_ids: Sequence[str], token_ids: Sequence[int], now: float) -> list[OutputDelta]:
        """One delta for each request, which has got a token of which there is nothing else to say.

        The answers to one and the same object of ids are looked up once.
        """
        if request_ids is not self._going_on.request_ids:
            self._going_on = _GoingOn(request_ids, [self._answers[request_id] for request_id in request_ids])
        self._going_on.last_token = now
        deltas: list[OutputDelta] = []
        for answer, token_id in zip(self._going_on.answers, token_ids, strict=True):
            try:
                deltas.append(answer.append(token_id, now))
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this request alone
                deltas.append(self._failed(answer, token_id, error))
        return deltas

    def _failed(self, answer: Answer, token_id: int, error: Exception) -> OutputDelta:
        logger.exception("request %s: token %d could not be turned into text", answer.request_id, token_id)
        return answer.delta("", (token_id,), "error", error=_as_octavo_error(error))

    def complete(self, request: Request, hypotheses: Sequence[Hypothesis], now: float) -> OutputDelta:
        """The last delta of a request under beam search: its texts, of which there is at least one."""
        answer = self._answers[request.request_id]
        answer.first_token = answer.last_token = now
        answer.num_output_tokens = sum(len(hypothesis.token_ids) for hypothesis in hypotheses)
        completions = tuple(self._completion(request, index, hypothesis) for index, hypothesis in enumerate(hypotheses))
        return answer.delta(finish_reason=completions[0].finish_reason, completions=completions)

    def _completion(self, request: Request, index: int, hypothesis: Hypothesis) -> CompletionOutput:
        """The text of a hypothesis is what its tokens would give one after the other."""
        answer = Answer(request, self._tokenizer)
        deltas = [answer.append(token_id, 0.0) for token_id in hypothesis.token_ids]
        last = deltas[-1]
        assert last.finish_reason is not None
        text = "".join([delta.text for delta in deltas])
        return CompletionOutput(
            index, text, hypothesis.token_ids, last.finish_reason, last.stop_reason,
            cumulative_logprob=hypothesis.logprob,
        )  # fmt: skip

    def close(self, request_id: str, finish_reason: FinishReason, error: Exception | None = None) -> OutputDelta:
        """The last delta of a request that ends for a reason outside its text."""
        return self._answers[request_id].close(finish_reason, error)

    def forget(self, request_id: str) -> Answer:
        """Drops an answer whose last delta has been made."""
        return self._answers.pop(request_id)


class _GoingOn:
    """Requests that go on together, their answers, and when they all got their last token."""

    __slots__ = ("answers", "last_token", "request_ids")

    def __init__(self, request_ids: Sequence[str], answers: list[Answer]) -> None:
        self.request_ids = request_ids
        self.answers = answers
        self.last_token: float | None = None


def _as_octavo_error(error: Exception) -> OctavoError:
    if isinstance(error, OctavoError):
        return error
    wrapped = StepError(f"a token could not be turned into text: {error}")
    wrapped.__cause__ = error
    return wrapped
