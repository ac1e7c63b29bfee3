"""`python -m tests.server.alphabet_server`: the server as a process, over the fake engine.

Arguments: --step-s S, --failures N, --shutdown-timeout S, --log-format FORMAT,
--log-stats-interval S, --receive-timeout S.
"""

from __future__ import annotations

import argparse
import sys

from octavo.metrics.totals import EngineTotals
from octavo.server.listen import bind
from octavo.server.logs import configure_logging
from octavo.server.run import RunOptions, serve
from octavo.server.settings import ServerSettings
from tests.server.fakes import FakeEngine


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--shutdown-timeout", type=float, default=30.0)
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--log-stats-interval", type=float, default=10.0)
    parser.add_argument("--receive-timeout", type=float, default=60.0)
    args = parser.parse_args()
    configure_logging(args.log_format)
    totals = EngineTotals()
    fake = FakeEngine(totals)
    fake.executor.step_s = args.step_s
    fake.executor.failures = args.failures
    options = RunOptions(
        shutdown_timeout_s=args.shutdown_timeout,
        receive_timeout_s=args.receive_timeout,
        log_stats_interval_s=args.log_stats_interval,
    )
    return serve(fake.async_engine(), ServerSettings(("alphabet",)), totals, bind("127.0.0.1", 0), options)


if __name__ == "__main__":
    sys.exit(main())
