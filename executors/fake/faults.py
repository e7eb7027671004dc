"""Injected faults between the control plane and an engine, as values that a test chooses or draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from random import Random  # noqa: TID251 - the generator is an argument, as the ban asks


class InjectedFault(StrEnum):
    """One call's fate. ``LATE`` and ``TWICE`` are for calls that change something; others read them as ``NONE``."""

    NONE = "none"
    BEFORE = "before"  # ExecutorTryAgain, and nothing was done
    AFTER = "after"  # ExecutorTryAgain, yet it was done
    TWICE = "twice"  # done now and once more later, when the caller has long gone on
    LATE = "late"  # ExecutorTryAgain, and it is done later
    KILLED_BEFORE = "killed_before"  # the calling process dies before the effect …
    KILLED_AFTER = "killed_after"  # … or right after it


class ProcessKilled(BaseException):
    """The control plane's process died here. Not an ``Exception``: no edge may swallow it, as none survives a kill."""


# (name of the call, what it is about as text) -> fate
FaultSource = Callable[[str, str], InjectedFault]


def no_faults(call: str, subject: str) -> InjectedFault:  # noqa: ARG001 - the protocol's shape
    return InjectedFault.NONE


class SeededFaults:
    """Draws fates by weight; the same generator state gives the same fates. ``is_on = False`` ends all trouble."""

    def __init__(self, random: Random, weights: Mapping[InjectedFault, float]) -> None:
        self._random = random
        self._fates = list(weights)
        self._weights = [weights[fate] for fate in self._fates]
        self.is_on = True

    def __call__(self, call: str, subject: str) -> InjectedFault:  # noqa: ARG002 - the protocol's shape
        if not self.is_on:
            return InjectedFault.NONE
        rest = max(0.0, 1.0 - sum(self._weights))
        return self._random.choices([*self._fates, InjectedFault.NONE], [*self._weights, rest])[0]
