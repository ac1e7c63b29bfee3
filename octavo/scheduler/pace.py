"""How long a step may take, so that requests that decode keep their pace while prompts use what is left."""

from __future__ import annotations

from octavo.config import ServiceTargets
from octavo.scheduler.step_budget import UNBOUNDED_S
from octavo.scheduler.step_time import StepSize, StepTimeModel

MOST_SAVED_STEPS = 4.0
"""Time saved by steps shorter than the target is kept up to so many targets."""
SHORTEST_STEP = 0.5
"""Steps that make up for lost time take at least this share of the target, or prompts would stand still."""
PRESSING_AGE = 0.5
"""From this share of the TTFT target on, a request that waits presses: time saved is spent on it."""


class Pace:
    """Measures steps, learns what they cost, and bounds the next one.

    A step is timed from one `begin` to the next, so that everything the engine does between counts. TPOT is a mean over
    an answer: a step may be longer than the target when others were shorter. What was saved is spent only under
    pressure, when a request is about to miss its TTFT. Where nothing is decided by time it `learns` nothing, and no
    step pays for it.
    """

    def __init__(self, targets: ServiceTargets, *, learns: bool = True) -> None:
        self.learns = learns
        self.model = StepTimeModel()
        self._targets = targets
        self._saved_s = 0.0
        self._began: float | None = None
        self._size = StepSize()
        self._decoding = False

    def begin(self, now: float) -> None:
        """A step begins: if it follows another without a pause, that one is over."""
        if self._began is not None:
            seconds = now - self._began
            self.model.observe(self._size, seconds)
            if self._decoding:
                self._save(seconds)
        self._began = now
        self._size = StepSize()

    def note_size(self, size: StepSize, *, decoding: bool) -> None:
        """What the step that began will compute, and whether any request decodes in it."""
        self._size = size
        self._decoding = decoding

    @property
    def predicted_s(self) -> float | None:
        """How long the step that began should take; None while too little is known."""
        return self.model.predict_s(self._size) if self.model.ready else None

    def pause(self) -> None:
        """The step that began says nothing about time: it failed, or nothing follows it."""
        self._began = None

    def late_s(self, arrival_s: float, num_tokens: int) -> float | None:
        """From when on a request that still waits will miss its TTFT target, having `num_tokens` to compute."""
        if self._targets.ttft_s is None:
            return None
        return arrival_s + self._targets.ttft_s - (self.model.added_s(num_tokens, 0) if self.model.ready else 0.0)

    def presses(self, arrival_s: float | None) -> bool:
        """Whether somebody who arrived then, and has no token yet, should have one soon."""
        ttft_s = self._targets.ttft_s
        if ttft_s is None or arrival_s is None or self._began is None:
            return False
        return self._began - arrival_s > PRESSING_AGE * ttft_s

    def limit_s(self, *, decoding: bool, pressed: bool) -> float:
        """How long the step that began may take; unbounded while nobody decodes or too little is known."""
        target_s = self._targets.tpot_s
        if target_s is None or not decoding or not self.model.ready:
            return UNBOUNDED_S
        if self._saved_s < 0.0:
            return max(target_s + self._saved_s, SHORTEST_STEP * target_s)
        return target_s + self._saved_s if pressed else target_s

    def _save(self, seconds: float) -> None:
        target_s = self._targets.tpot_s
        if target_s is not None:
            most_s = MOST_SAVED_STEPS * target_s
            self._saved_s = min(max(self._saved_s + target_s - seconds, -most_s), most_s)
