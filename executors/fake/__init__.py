"""An engine in memory and in virtual time, for the control loop's fault tests. It passes the real drivers' suite."""

from executors.fake.engine import FakeEngine, Script
from executors.fake.executor import FakeExecutor, FaultSource, InjectedFault, ProcessKilled, SeededFaults, no_faults

__all__ = [
    "FakeEngine",
    "FakeExecutor",
    "FaultSource",
    "InjectedFault",
    "ProcessKilled",
    "Script",
    "SeededFaults",
    "no_faults",
]
