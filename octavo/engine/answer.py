"""The answer to one request: what its tokens say, where they end it, and when they came."""

from __future__ import annotations

from octavo.engine.stopping import StopStrings
from octavo.request import CompletionOutput, FinishReason, OutputDelta, PlacedLogprobs, Request, RequestTimes
from octavo.scheduler.outcome import NewToken
from octavo.scheduler.request_state import ending_token_ids
from octavo.tokenizer.tokenizer import Tokenizer


class Answer:
    """The output of one request while it grows.

    A token that ends the answer (EOS, or one of `stop_token_ids`) is counted and reported; its text is not, unless
    `include_stop_str_in_output`. Nothing ends an answer before it has `min_tokens` tokens, except `max_tokens`.
    """

    __slots__ = (
        "_detokenizer",
        "_ending_token_ids",
        "_min_tokens",
        "_num_characters",
        "_num_prompt_tokens",
        "_reports_logprobs",
        "_request",
        "_stops",
        "_unstopped",
        "first_scheduled",
        "first_token",
        "last_token",
        "max_tokens",
        "num_cached_tokens",
        "num_choices",
        "num_output_tokens",
        "request_id",
    )

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        sampling = request.sampling
        assert sampling.max_tokens is not None
        self._request = request
        self.request_id = request.request_id
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._detokenizer = tokenizer.detokenizer(sampling.skip_special_tokens)
        self._stops = StopStrings(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        self._unstopped = None if request.unstopped is None else request.unstopped.start()
        self._ending_token_ids = frozenset(ending_token_ids(request))
        self._min_tokens = sampling.min_tokens
        self.max_tokens = sampling.max_tokens
        self.num_choices = sampling.num_samples if sampling.use_beam_search else request.num_choices
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self._reports_logprobs = sampling.logprobs is not None
        self._num_characters = 0  # of the text so far, where log probabilities are told with their place in it
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None

    def append_token(self, token: NewToken, now: float) -> OutputDelta:
        """Takes in a token with what there is to say about it."""
        text_offset = self._num_characters
        delta = self.append(token.token_id, now, last=token.last)
        if token.logprobs is None and not token.prompt_logprobs:
            return delta
        logprobs = () if token.logprobs is None else (PlacedLogprobs(token.logprobs, text_offset),)
        return delta._replace(logprobs=logprobs, prompt_logprobs=token.prompt_logprobs)

    def append(self, token_id: int, now: float, *, last: bool = False) -> OutputDelta:
        """Takes in a token, of a complete answer the `last`; the delta has the text that is certain by now."""
        self.num_output_tokens = num_tokens = self.num_output_tokens + 1
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        if token_id in self._ending_token_ids and num_tokens > self._min_tokens:
            return self._stop_at(token_id)
        text = self._detokenizer.append(token_id)
        if self._reports_logprobs:
            self._num_characters += len(text)
        if self._stops is not None:
            text, stop = self._release(text)
            if stop is not None:
                return self.delta(text, (token_id,), "stop", stop)
        if last:
            return self._end(text, token_id, "stop", None)
        if num_tokens >= self.max_tokens:
            return self._end(text, token_id, "length", None)
        return OutputDelta(
            self.request_id, text, (token_id,), None, None, self._num_prompt_tokens, self.num_cached_tokens, num_tokens
        )

    def close(self, finish_reason: FinishReason, error: Exception | None = None) -> OutputDelta:
        """The last delta, for a reason outside the text: what could have become a stop string will not any more."""
        text = "" if self._stops is None else self._stops.flush()
        return self.delta(text, (), finish_reason, error=error)

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
            self.request_id,
            text,
            token_ids,
            finish_reason,
            stop_reason,
            self._num_prompt_tokens,
            self.num_cached_tokens,
            self.num_output_tokens,
            None if finish_reason is None else self.times,
            error,
            completions=completions,
        )

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(self._request.arrival_time, self.first_scheduled, self.first_token, self.last_token)

    def _stop_at(self, token_id: int) -> OutputDelta:
        included = self._request.sampling.include_stop_str_in_output
        text, stop = self._release(self._detokenizer.append(token_id)) if included else ("", None)
        if stop is not None:
            return self.delta(text, (token_id,), "stop", stop)
        return self._end(
            text, token_id, "stop", token_id if token_id in self._request.sampling.stop_token_ids else None
        )

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
        if self.num_output_tokens <= self._min_tokens:
            return text, None
        unstopped = self._stops.flush() + text[:num_unstopped] if num_unstopped else ""
        checked = self._stops.append(text[num_unstopped:])
        return unstopped + checked.text, checked.matched
