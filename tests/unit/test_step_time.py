"""The model of how long a step takes, against machines whose law is known."""

from __future__ import annotations

import random

import pytest

from octavo.scheduler.step_time import StepSize, StepTimeModel


class Machine:
    """Seconds are linear in the size of a step, with noise and, at times, an accident."""

    def __init__(self, seed: int, noise: float = 0.0, accidents: float = 0.0, speed: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self.noise = noise
        self.accidents = accidents
        self.speed = speed

    def exact_s(self, size: StepSize) -> float:
        seconds = 3e-3 + 2e-4 * size.num_tokens + 3e-8 * size.num_context_tokens + 5e-5 * size.num_requests
        return seconds / self.speed

    def measured_s(self, size: StepSize) -> float:
        seconds = self.exact_s(size) * self.rng.uniform(1 - self.noise, 1 + self.noise)
        return seconds * (20 if self.rng.random() < self.accidents else 1)

    def size(self) -> StepSize:
        """A step of decoding requests, half of the time with a piece of a prompt."""
        num_requests = self.rng.randrange(1, 100)
        size = StepSize(num_requests, sum(self.rng.randrange(2000) for _ in range(num_requests)), num_requests)
        if self.rng.random() < 0.5:
            size = size.plus(self.rng.randrange(1, 512), self.rng.randrange(20_000))
        return size

    def teach(self, model: StepTimeModel, num_steps: int) -> None:
        for _ in range(num_steps):
            size = self.size()
            model.observe(size, self.measured_s(size))

    def worst_error(self, model: StepTimeModel) -> float:
        sizes = [self.size() for _ in range(200)]
        return max(abs(model.predict_s(size) / self.exact_s(size) - 1) for size in sizes)


def test_an_exact_law_is_found_in_a_few_steps() -> None:
    model, machine = StepTimeModel(), Machine(0)
    assert not model.ready
    machine.teach(model, 100)
    assert model.ready and machine.worst_error(model) < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_accidents_do_not_lead_astray(seed: int) -> None:
    model, machine = StepTimeModel(), Machine(seed, noise=0.1, accidents=0.03)
    machine.teach(model, 2000)
    assert machine.worst_error(model) < 0.1


def test_a_machine_that_becomes_slower_is_followed() -> None:
    model, machine = StepTimeModel(), Machine(0, noise=0.05)
    machine.teach(model, 1000)
    machine.speed = 0.5
    machine.teach(model, 1500)
    assert machine.worst_error(model) < 0.1


def test_an_hour_of_steps_all_alike_is_survived() -> None:
    model, machine = StepTimeModel(), Machine(0, noise=0.05)
    machine.teach(model, 500)
    alike = StepSize(8, 9000.0, 8)
    for _ in range(100_000):
        model.observe(alike, machine.measured_s(alike))
    assert abs(model.predict_s(alike) / machine.exact_s(alike) - 1) < 0.05
    machine.teach(model, 300)
    assert machine.worst_error(model) < 0.2


def test_steps_of_one_batch_size_do_not_hide_what_prompts_cost() -> None:
    """The same six requests from the start, a first step that warms up: part of the law cannot be told apart."""
    model, machine = StepTimeModel(), Machine(0, noise=0.2)
    model.observe(StepSize(180, 2700.0, 6), 0.28)
    decoding = StepSize(6, 2000.0, 6)
    for step in range(300):
        size = decoding if step < 40 else decoding.plus(7 + step % 20, step * 10)
        model.observe(size, machine.measured_s(size))
    for num_tokens in (5, 20, 40):
        size = decoding.plus(num_tokens, 2000)
        assert abs(model.predict_s(size) / machine.exact_s(size) - 1) < 0.2


def test_affordable_tokens_are_the_most_that_fit() -> None:
    model, machine = StepTimeModel(), Machine(0)
    machine.teach(model, 500)
    for seconds, position in ((0.01, 0), (0.01, 100_000), (0.0005, 50_000), (1.0, 0)):
        most = model.affordable_tokens(seconds, position, 512)
        assert most == 512 or model.added_s(most + 1, position) > seconds
        assert most == 0 or model.added_s(most, position) <= seconds
