"""The policies by the names that `--scheduling-policy` knows."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.config import SchedulingPolicy
from octavo.scheduler.policies.fair import Fair
from octavo.scheduler.policies.fcfs import Fcfs
from octavo.scheduler.policies.policy import Policy
from octavo.scheduler.policies.priority import Priority
from octavo.scheduler.policies.shortest import Shortest

POLICIES: Mapping[SchedulingPolicy, Policy] = {
    "fcfs": Fcfs(),
    "priority": Priority(),
    "fair": Fair(),
    "shortest": Shortest(),
}
