"""Replicas as process trees on this machine, each under a runtime that outlives the control plane."""

from executors.process.executor import ProcessExecutor
from executors.process.warm import WarmLimits

__all__ = ["ProcessExecutor", "WarmLimits"]
