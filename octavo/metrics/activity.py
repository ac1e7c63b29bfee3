"""What happened in the last few seconds, for the log."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.metrics.totals import EngineTotals


@dataclass(frozen=True, slots=True)
class Activity:
    """Rates over one interval, and the state at its end. Shares are 0 to 1."""

    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    num_running: int
    num_waiting: int
    kv_usage: float
    prefix_hit_rate: float
    goodput: float | None = None  # share of the requests that ended within their targets; None: none was judged
    step_limit_s: float | None = None
    step_predicted_s: float | None = None
    num_late: int = 0

    def __str__(self) -> str:
        return self._basics() + self._service_level()

    def _service_level(self) -> str:
        """What the targets made of the last step, and of the interval; nothing without targets."""
        parts = []
        if self.goodput is not None:
            parts.append(f"within targets {self.goodput:.1%}")
        if self.step_limit_s is not None:
            parts.append(f"step limit {self.step_limit_s * 1e3:.0f} ms")
            if self.step_predicted_s is not None:
                parts.append(f"predicted {self.step_predicted_s * 1e3:.0f} ms")
        if self.num_late:
            parts.append(f"late {self.num_late}")
        return "".join(f", {part}" for part in parts)

    def _basics(self) -> str:
        return (
            f"prompt {self.prompt_tokens_per_s:.1f} tokens/s, generation {self.generation_tokens_per_s:.1f} tokens/s, "
            f"running {self.num_running}, waiting {self.num_waiting}, "
            f"KV cache {self.kv_usage:.1%}, prefix hits {self.prefix_hit_rate:.1%}"
        )


class ActivityMeter:
    """Turns totals into the activity since the last reading."""

    def __init__(self, totals: EngineTotals) -> None:
        self._totals = totals
        self._prompt_tokens = totals.prompt_tokens
        self._generation_tokens = totals.generation_tokens
        self._prefix_queries = totals.prefix_queries
        self._prefix_hits = totals.prefix_hits
        self._judged = totals.judged_requests
        self._within = totals.requests_within_targets

    def read(self, seconds: float) -> Activity | None:
        """The activity of the last `seconds`, or None when nothing was computed and nothing is under way."""
        totals = self._totals
        prompt = totals.prompt_tokens - self._prompt_tokens
        generation = totals.generation_tokens - self._generation_tokens
        queries = totals.prefix_queries - self._prefix_queries
        hits = totals.prefix_hits - self._prefix_hits
        self._prompt_tokens += prompt
        self._generation_tokens += generation
        self._prefix_queries += queries
        self._prefix_hits += hits
        goodput = self._read_goodput()
        if not (prompt or generation or totals.num_running or totals.num_waiting):
            return None
        return Activity(
            prompt_tokens_per_s=prompt / seconds,
            generation_tokens_per_s=generation / seconds,
            num_running=totals.num_running,
            num_waiting=totals.num_waiting,
            kv_usage=totals.kv_usage,
            prefix_hit_rate=hits / queries if queries else 0.0,
            goodput=goodput,
            step_limit_s=totals.limit_s,
            step_predicted_s=totals.predicted_s,
            num_late=totals.num_late,
        )

    def _read_goodput(self) -> float | None:
        judged = self._totals.judged_requests - self._judged
        within = self._totals.requests_within_targets - self._within
        self._judged += judged
        self._within += within
        return within / judged if judged else None
