"""Exceptions that a script may catch, with Horovod's names."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective operation failed: a rank died or left, tensors did not fit each other, or a deadline passed."""


class HostsUpdatedInterrupt(RuntimeError):
    """The gang changes: ``elastic.run`` continues with the state in memory.

    ``skip_sync``: ranks were only removed, so all remaining ones have the same state already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the gang changes")
        self.skip_sync = skip_sync


def first_line(error: BaseException) -> str:
    """The first line of an error message; those of torch and gloo have many."""
    return (str(error).strip().splitlines() or [""])[0]
