"""From flags to what the scheduler is told."""

from __future__ import annotations

from numbers import Integral, Real

from octavo.config import EngineArgs, PrefillLimits, QueueLimits, SchedulingConfig, ServiceTargets
from octavo.errors import ConfigError
from octavo.scheduler.policies.registry import POLICIES


def check_scheduling_args(args: EngineArgs) -> None:
    """Raises `ConfigError` for values that mean nothing, and for limits without what they limit."""
    if args.scheduling_policy not in ("auto", *POLICIES):
        known = ", ".join(POLICIES)
        raise ConfigError(f"--scheduling-policy is {args.scheduling_policy!r}; it must be auto or one of {known}")
    for flag, count, least in (
        ("--long-prefill-token-threshold", args.long_prefill_token_threshold, 0),
        ("--max-num-partial-prefills", args.max_num_partial_prefills, 1),
        ("--max-long-partial-prefills", args.max_long_partial_prefills, 1),
        ("--max-num-queued-reqs", args.max_num_queued_reqs, 1),
        ("--max-num-queued-tokens", args.max_num_queued_tokens, 1),
    ):
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < least):
            raise ConfigError(f"{flag} is {count!r}; it must be an integer of at least {least}")
    for flag, seconds in (
        ("--target-ttft", args.target_ttft_s),
        ("--target-tpot", args.target_tpot_s),
        ("--queue-timeout", args.queue_timeout_s),
    ):
        if seconds is not None and (not isinstance(seconds, Real) or not 0 < seconds < float("inf")):
            raise ConfigError(f"{flag} is {seconds!r}; it must be a time above 0")
    for name, weight in args.tenant_weights:
        if not isinstance(weight, Real) or not 0 < weight < float("inf"):
            raise ConfigError(f"the weight of the API key {name!r} is {weight!r}; it must be a number above 0")
    _check_combinations(args)


def resolve_scheduling(args: EngineArgs) -> SchedulingConfig:
    """The automatic policy is `fair`, which with a single tenant is first come, first served."""
    max_partial, max_long = args.max_num_partial_prefills, args.max_long_partial_prefills or 1
    return SchedulingConfig(
        policy="fair" if args.scheduling_policy == "auto" else args.scheduling_policy,
        weights=args.tenant_weights,
        prefill=PrefillLimits(args.long_prefill_token_threshold or None, max_partial, max_long),
        targets=ServiceTargets(args.target_ttft_s, args.target_tpot_s),
        queue=QueueLimits(args.max_num_queued_reqs, args.max_num_queued_tokens, args.queue_timeout_s),
    )


def _check_combinations(args: EngineArgs) -> None:
    max_partial, max_long = args.max_num_partial_prefills, args.max_long_partial_prefills
    if max_long is not None and not args.long_prefill_token_threshold:
        raise ConfigError(
            f"--max-long-partial-prefills is {max_long}, but no prompt is long without --long-prefill-token-threshold"
        )
    if max_long is not None and max_partial is not None and max_long > max_partial:
        raise ConfigError(
            f"--max-long-partial-prefills is {max_long}; it must be at most --max-num-partial-prefills, {max_partial}"
        )
    if args.tenant_weights and args.scheduling_policy not in ("auto", "fair"):
        raise ConfigError(
            f"weights of API keys have no effect with --scheduling-policy {args.scheduling_policy}; it must be fair"
        )
