"""From sampled token ids to text: what each request gets of a step, and when it has ended."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.beam_search import Hypothesis
from octavo.engine.stopping import StopStrings
from octavo.errors import OctavoError, StepError
from octavo.request import CompletionOutput, FinishReason, OutputDelta, PlacedLogprobs, Request, RequestTimes
from octavo.scheduler.outcome import Started
from octavo.scheduler.request_state import NewToken
from octavo.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Answer:
    """The output of one request while it grows.

    A token that ends the answer (EOS, or one of `stop_token_ids`) is counted and reported; its text is not, unless
    `include_stop_str_in_output`. Nothing ends an answer before it has `min_tokens` tokens, except `max_tokens`.
    """

    __slots__ = (
        "_detokenizer",
        "_num_characters",
        "_request",
        "_stop_token_ids",
        "_stops",
        "_unstopped",
        "first_scheduled",
        "first_token",
        "last_token",
        "max_tokens",
        "num_cached_tokens",
        "num_choices",
        "num_output_tokens",
    )

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        sampling = request.sampling
        assert sampling.max_tokens is not None
        self._request = request
        self._detokenizer = tokenizer.detokenizer(sampling.skip_special_tokens)
        self._stops = StopStrings(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        self._unstopped = None if request.unstopped is None else request.unstopped.start()
        self._stop_token_ids = frozenset(sampling.stop_token_ids)
        self.max_tokens = sampling.max_tokens
        self.num_choices = sampling.num_samples if sampling.use_beam_search else request.num_choices
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self._num_characters = 0
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None

    def append(self, token: NewToken, now: float) -> OutputDelta:
        """Takes in a sampled token; the delta has the text that is certain by now."""
        text_offset = self._num_characters
        delta = self._append(token, now)
        if token.logprobs is None and not token.prompt_logprobs:
            return delta
        logprobs = () if token.logprobs is None else (PlacedLogprobs(token.logprobs, text_offset),)
        return replace(delta, logprobs=logprobs, prompt_logprobs=token.prompt_logprobs)

    def _append(self, token: NewToken, now: float) -> OutputDelta:
        token_id = token.token_id
        self.num_output_tokens += 1
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        if self.num_output_tokens > self._request.sampling.min_tokens and self._ends_answer(token_id):
            return self._stop_at(token_id)
        added = self._detokenizer.append(token_id)
        self._num_characters += len(added)
        text, stop = self._release(added)
        if stop is not None:
            return self.delta(text, (token_id,), "stop", stop)
        if token.last:
            return self._end(text, token_id, "stop", None)
        if self.num_output_tokens >= self.max_tokens:
            return self._end(text, token_id, "length", None)
        return self.delta(text, (token_id,))

    def delta(
        self,
        text: str = "",
        token_ids: tuple[int, ...] = (),
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
        error: Exception | None = None,
        completions: tuple[CompletionOutput, ...] = (),
    ) -> OutputDelta:
        return OutputDelta(
            self._request.request_id,
            text,
            token_ids,
            finish_reason,
            stop_reason,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            times=self.times if finish_reason is not None else None,
            error=error,
            completions=completions,
        )

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(self._request.arrival_time, self.first_scheduled, self.first_token, self.last_token)

    def _ends_answer(self, token_id: int) -> bool:
        if token_id in self._stop_token_ids:
            return True
        return token_id in self._request.eos_token_ids and not self._request.sampling.ignore_eos

    def _stop_at(self, token_id: int) -> OutputDelta:
        included = self._request.sampling.include_stop_str_in_output
        text, stop = self._release(self._detokenizer.append(token_id)) if included else ("", None)
        if stop is not None:
            return self.delta(text, (token_id,), "stop", stop)
        return self._end(text, token_id, "stop", token_id if token_id in self._stop_token_ids else None)

    def _end(self, text: str, token_id: int, finish_reason: FinishReason, stop_reason: int | None) -> OutputDelta:
        """The last delta, with everything held back so far; a stop string completed by that still counts."""
        rest, stop = self._release(self._detokenizer.flush())
        text += rest
        if stop is not None:
            return self.delta(text, (token_id,), "stop", stop)
        if self._stops is not None:
            text += self._stops.flush()
        return self.delta(text, (token_id,), finish_reason, stop_reason)

    def _release(self, text: str) -> tuple[str, str | None]:
        """The text that cannot be part of a stop string any more, and the stop string that was completed."""
        if self._stops is None:
            return text, None
        num_unstopped = 0 if self._unstopped is None else self._unstopped.append(text)
        if self.num_output_tokens <= self._request.sampling.min_tokens:
            return text, None
        unstopped = self._stops.flush() + text[:num_unstopped] if num_unstopped else ""
        checked = self._stops.append(text[num_unstopped:])
        return unstopped + checked.text, checked.matched


class OutputProcessor:
    """The answers of all requests in the engine, by request id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._answers: dict[str, Answer] = {}

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

    def token_gaps(self, tokens: Sequence[NewToken], now: float) -> Counter[float]:
        """Seconds since the token before, and how many of the requests of `tokens` waited that long."""
        previous = Counter(self._answers[token.request_id].last_token for token in tokens)
        return Counter({now - last: count for last, count in previous.items() if last is not None})

    def append(self, tokens: Sequence[NewToken], now: float) -> list[OutputDelta]:
        """One delta a token, up to the one that ends a request.

        A request whose text cannot be made ends with an error; the others do not notice.
        """
        deltas: list[OutputDelta] = []
        ended: set[str] = set()
        for token in tokens:
            if token.request_id not in ended:
                deltas.append(self._append(token, now))
                if deltas[-1].finished:
                    ended.add(token.request_id)
        return deltas

    def _append(self, token: NewToken, now: float) -> OutputDelta:
        answer = self._answers[token.request_id]
        try:
            return answer.append(token, now)
        except Exception as error:  # whatever it is, it concerns this request alone
            logger.exception("request %s: token %d could not be turned into text", token.request_id, token.token_id)
            return answer.delta("", (token.token_id,), "error", error=_as_octavo_error(error))

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
        deltas = [answer.append(NewToken(request.request_id, token_id), 0.0) for token_id in hypothesis.token_ids]
        last = deltas[-1]
        assert last.finish_reason is not None
        text = "".join([delta.text for delta in deltas])
        return CompletionOutput(
            index, text, hypothesis.token_ids, last.finish_reason, last.stop_reason,
            cumulative_logprob=hypothesis.logprob,
        )  # fmt: skip

    def close(self, request_id: str, finish_reason: FinishReason, error: Exception | None = None) -> OutputDelta:
        """The last delta of a request that ends for a reason outside its text."""
        return self._answers[request_id].delta("", (), finish_reason, error=error)

    def forget(self, request_id: str) -> Answer:
        """Drops an answer whose last delta has been made."""
        return self._answers.pop(request_id)


def _as_octavo_error(error: Exception) -> OctavoError:
    if isinstance(error, OctavoError):
        return error
    wrapped = StepError(f"a token could not be turned into text: {error}")
    wrapped.__cause__ = error
    return wrapped
