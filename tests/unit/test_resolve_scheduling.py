"""From scheduling flags to what the scheduler is told; what has no effect is refused."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from octavo.cli.sizes import parse_seconds
from octavo.config import EngineArgs, PrefillLimits, QueueLimits, SchedulingConfig, ServiceTargets
from octavo.engine.resolve_scheduling import check_scheduling_args, resolve_scheduling
from octavo.errors import ConfigError
from octavo.scheduler.policies.registry import POLICIES


def test_the_defaults_bound_nothing_and_are_fair() -> None:
    assert resolve_scheduling(EngineArgs()) == SchedulingConfig(policy="fair")


def test_every_flag_arrives() -> None:
    args = EngineArgs(
        scheduling_policy="fair", tenant_weights=(("a", 2.0),), long_prefill_token_threshold=100,
        max_num_partial_prefills=4, max_long_partial_prefills=2, target_ttft_s=0.5, target_tpot_s=0.05,
        max_num_queued_reqs=7, max_num_queued_tokens=900, queue_timeout_s=3.0,
    )  # fmt: skip
    check_scheduling_args(args)
    assert resolve_scheduling(args) == SchedulingConfig(
        "fair", (("a", 2.0),), PrefillLimits(100, 4, 2), ServiceTargets(0.5, 0.05), QueueLimits(7, 900, 3.0)
    )


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"scheduling_policy": "lifo"}, "--scheduling-policy is 'lifo'"),
        ({"long_prefill_token_threshold": -1}, "--long-prefill-token-threshold is -1"),
        ({"max_num_queued_reqs": 0}, "--max-num-queued-reqs is 0"),
        ({"max_num_queued_tokens": True}, "--max-num-queued-tokens is True"),
        ({"target_ttft_s": 0.0}, "--target-ttft is 0.0"),
        ({"queue_timeout_s": float("nan")}, "--queue-timeout is nan"),
        ({"tenant_weights": (("a", 0.0),)}, "'a' is 0.0"),
        ({"max_long_partial_prefills": 2}, "without --long-prefill-token-threshold"),
        (
            {"long_prefill_token_threshold": 9, "max_long_partial_prefills": 3, "max_num_partial_prefills": 2},
            "at most --max-num-partial-prefills, 2",
        ),
        ({"tenant_weights": (("a", 2.0),), "scheduling_policy": "fcfs"}, "it must be fair"),
    ],
)
def test_what_means_nothing_is_refused(args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_scheduling_args(EngineArgs(**args))


def test_the_configuration_knows_which_policies_know_priorities() -> None:
    for name, policy in POLICIES.items():
        assert SchedulingConfig(policy=name).honours_priority == policy.displaces_any


def test_times_as_people_write_them() -> None:
    assert [parse_seconds(text) for text in ("500ms", "2s", "0.5", "1min", "3")] == [0.5, 2.0, 0.5, 60.0, 3.0]
    for text in ("0", "fast", "5h", "-1s"):
        with pytest.raises(typer.BadParameter):
            parse_seconds(text)
