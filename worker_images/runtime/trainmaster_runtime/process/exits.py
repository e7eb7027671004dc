"""Classifies exits: from wait statuses and counters to a cause, a code and a sentence."""

from __future__ import annotations

import signal

NO_ROOM = ("No space left on device", "[Errno 28]", "Disk quota exceeded", "[Errno 122]")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ReplicaEnd:
    """A replica's end: a cause (``executors.base.ExitCause``), an exit code (``None``: unknown) and a sentence for
    people.
    """

    __slots__ = ("cause", "code", "sentence")

    def __init__(self, cause: str, code: int | None, sentence: str) -> None:
        self.cause = cause
        self.code = code
        self.sentence = sentence

    def to_json(self, *, at: str, log_tail: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "exit_code": self.code,
            "sentence": self.sentence,
            "at": at,
            "log_tail": log_tail,
            "facts": facts,
        }


def code_of(status: int) -> int:
    """The exit code of a wait status; 128 + n for signal n, as shells tell it."""
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def describe(code: int | None) -> str:
    """``exit code 137 (killed by SIGKILL)``."""
    if code is None:
        return "an unknown exit code"
    if 128 < code < 128 + 65:
        return "exit code %d (%s)" % (code, signal_name(code - 128))
    return "exit code %d" % code


def of_command(
    code: int, *, was_signalled: bool, is_out_of_memory: bool, memory_bytes: int | None, is_disk_full: bool, tail: str
) -> ReplicaEnd:
    """How a command that ended by itself ended."""
    if code == 0:
        return ReplicaEnd("exited", 0, "The command ended with exit code 0.")
    if is_out_of_memory:
        limit = "its limit of %s" % _bytes(memory_bytes) if memory_bytes else "the memory of this machine"
        return ReplicaEnd(
            "out_of_memory",
            code,
            "It needed more than %s and the kernel killed it; give it more `memory`, or make the batch smaller."
            % limit,
        )
    if is_disk_full:
        return ReplicaEnd(
            "disk_full",
            code,
            "The disk under the output is full (%s); make room." % describe(code),
        )
    if was_signalled:
        return ReplicaEnd("signalled", code, "The command was killed by %s." % signal_name(code - 128))
    if code == 127 and ("not found" in tail or "No such file" in tail):
        line = next((line for line in reversed(tail.splitlines()) if "not found" in line or "No such file" in line), "")
        return ReplicaEnd(
            "command_not_found", code, "The shell did not find the command (%s); check its name." % line.strip()[-300:]
        )
    return ReplicaEnd("exited", code, "The command ended with %s." % describe(code))


def has_no_room(tail: str) -> bool:
    return any(sign in tail for sign in NO_ROOM)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return "%g %s" % (round(count / size, 1), unit)
    return "%d bytes" % count
