"""What listeners make of what the engine reports."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.metrics.activity import ActivityMeter
from octavo.metrics.histogram import Histogram, one_two_five
from octavo.metrics.stats import RequestStats, StatsListener, StepStats
from octavo.metrics.totals import EngineTotals
from octavo.request import RequestTimes


def step(**fields: int) -> StepStats:
    nothing = dict.fromkeys(StepStats.__dataclass_fields__, 0)
    return StepStats(**(nothing | {"num_blocks": 10, "seconds": 0.01} | fields))  # type: ignore[arg-type]


@given(
    st.lists(st.floats(0, 100), min_size=1, unique=True).map(sorted),
    st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5))),
)
def test_histogram_counts_like_numpy(bounds: list[float], observations: list[tuple[float, int]]) -> None:
    histogram = Histogram(bounds)
    for value, count in observations:
        histogram.observe(value, count)
    values = np.repeat([v for v, _ in observations] or [0.0], [c for _, c in observations] or [0])
    assert histogram.cumulative() == [int((values <= bound).sum()) for bound in bounds] + [len(values)]
    np.testing.assert_allclose(histogram.total, values.sum(), rtol=1e-9, atol=1e-9)


def test_one_two_five() -> None:
    assert one_two_five(60) == (1, 2, 5, 10, 20, 50)
    assert one_two_five(1) == (1,)


def test_steps_add_up_and_gauges_are_the_last() -> None:
    totals: EngineTotals = EngineTotals()
    listener: StatsListener = totals
    listener.on_step(step(num_prompt_tokens=5, num_output_tokens=1, num_running=2, num_blocks_used=4))
    listener.on_step(
        step(
            num_output_tokens=3, num_running=1, num_waiting=7, num_preempted=2, num_prefix_queries=9, num_prefix_hits=4
        )
    )
    assert (totals.prompt_tokens, totals.generation_tokens, totals.preemptions) == (5, 4, 2)
    assert (totals.prefix_queries, totals.prefix_hits) == (9, 4)
    assert (totals.num_running, totals.num_waiting, totals.kv_usage) == (1, 7, 0.0)
    assert totals.step_tokens.cumulative()[-1] == 2 and totals.step_tokens.total == 9


def test_a_report_without_a_step_is_no_step() -> None:
    totals = EngineTotals()
    totals.on_step(step())
    assert totals.step_tokens.cumulative()[-1] == 0


def test_request_times_enter_where_they_were_reached() -> None:
    totals = EngineTotals()
    served = RequestTimes(arrival=10.0, first_scheduled=11.0, first_token=13.0, last_token=17.0)
    totals.on_request(RequestStats(7, 5, 0, 20, "stop", served, finished=17.5))
    never_ran = RequestTimes(arrival=10.0)
    totals.on_request(RequestStats(7, 0, 0, 20, "abort", never_ran, finished=12.0))
    one_token = RequestTimes(arrival=0.0, first_scheduled=0.5, first_token=1.0, last_token=1.0)
    totals.on_request(RequestStats(1, 1, 0, 1, "length", one_token, finished=1.0))
    assert totals.finished == {"stop": 1, "length": 1, "abort": 1, "error": 0}
    assert totals.e2e_latency.total == 7.5 + 2.0 + 1.0
    assert totals.queue_time.total == 1.0 + 0.5
    assert totals.time_to_first_token.total == 3.0 + 1.0
    assert totals.prefill_time.total == 2.0 + 0.5
    assert totals.inference_time.total == 6.0 + 0.5
    assert totals.decode_time.total == 4.0
    assert totals.time_per_output_token.total == 1.0 and totals.time_per_output_token.cumulative()[-1] == 1
    assert totals.request_generation_tokens.total == 6 and totals.request_max_tokens.total == 41


def test_token_gaps_count_every_request() -> None:
    totals = EngineTotals()
    totals.on_token_gap(0.5, 3)
    assert totals.inter_token_latency.cumulative()[-1] == 3 and totals.inter_token_latency.total == 1.5


def test_activity_is_of_the_interval_and_nothing_when_idle() -> None:
    totals = EngineTotals()
    meter = ActivityMeter(totals)
    assert meter.read(10) is None
    totals.on_step(
        step(
            num_prompt_tokens=40,
            num_output_tokens=20,
            num_running=1,
            num_blocks_used=5,
            num_prefix_queries=40,
            num_prefix_hits=10,
        )
    )
    activity = meter.read(10)
    assert activity is not None
    assert (activity.prompt_tokens_per_s, activity.generation_tokens_per_s) == (4.0, 2.0)
    assert (activity.num_running, activity.kv_usage, activity.prefix_hit_rate) == (1, 0.5, 0.25)
    assert "4.0 tokens/s" in str(activity) and "50.0%" in str(activity) and "25.0%" in str(activity)
    stalled = meter.read(10)
    assert stalled is not None and stalled.generation_tokens_per_s == 0, "a request is still running"
    totals.on_step(step())
    assert meter.read(10) is None
