"""What a script may catch, under the names that Horovod gave them."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective operation failed: a rank died or left, tensors did not fit each other, or a deadline passed."""


class HostsUpdatedInterrupt(RuntimeError):
    """The gang changes: ``elastic.run`` starts anew with what is in memory.

    ``skip_sync``: ranks were only taken away, so that all that stay hold the same state already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the gang changes")
        self.skip_sync = skip_sync


def first_line(error: BaseException) -> str:
    """Of what the libraries below say in many."""
    return (str(error).strip().splitlines() or [""])[0]
