from __future__ import annotations

import pytest
from trainmaster_runtime.process import exits

from executors.base import ExitCause


def of_command(code, **facts):
    defaults = {
        "was_signalled": False,
        "is_out_of_memory": False,
        "memory_bytes": None,
        "is_disk_full": False,
        "tail": "",
    }
    return exits.of_command(code, **{**defaults, **facts})


@pytest.mark.parametrize(
    ("ending", "cause", "words"),
    [
        (of_command(0), "exited", "exit code 0"),
        (of_command(3), "exited", "exit code 3"),
        (of_command(137), "exited", "SIGKILL"),
        (of_command(139, was_signalled=True), "signalled", "SIGSEGV"),
        (of_command(137, is_out_of_memory=True, memory_bytes=3 * 2**30), "out_of_memory", "its limit of 3 GiB"),
        (of_command(137, is_out_of_memory=True), "out_of_memory", "the memory of this machine"),
        (of_command(1, is_disk_full=True), "disk_full", "make room"),
        (of_command(127, tail="/bin/sh: 1: trian: not found"), "command_not_found", "trian"),
        (of_command(127, tail="something else"), "exited", "exit code 127"),
        (of_command(0, is_out_of_memory=True, is_disk_full=True), "exited", "exit code 0"),
    ],
)
def test_an_exit_is_classified_by_its_strongest_sign(ending, cause, words):
    assert ending.cause == cause
    assert words in ending.sentence
    assert ending.sentence.endswith(".")
    assert ExitCause(ending.cause)


def test_wait_statuses_become_exit_codes_as_in_shells():
    assert exits.code_of(3 << 8) == 3
    assert exits.code_of(9) == 137
    assert exits.code_of(11 | 0x80) == 139  # with a core


def test_a_full_disk_is_recognised_in_what_programs_say():
    assert exits.has_no_room("OSError: [Errno 28] No space left on device: '/data/output/x'")
    assert not exits.has_no_room("all is well")
