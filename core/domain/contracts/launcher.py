"""Commands that start their processes themselves, such as ``torchrun``: the platform leaves them alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

_PROGRAMS: Final = frozenset(
    {
        "torchrun",
        "mpirun",
        "mpiexec",
        "orterun",
        "prterun",
        "horovodrun",
        "perseusrun",
        "accelerate",
        "deepspeed",
        "colossalai",
    }
)
_MODULES: Final = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli",
        "deepspeed.launcher.runner",
        "horovod.runner.launch",
    }
)
_PYTHON: Final = re.compile(r"python[0-9.]*\Z")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# Words that only wrap the program which follows them.
_WRAPPERS: Final = frozenset({"exec", "env", "nohup", "time"})


def starts_own_processes(command: Sequence[str] | str | None) -> bool:
    """Whether ``command`` begins with a launcher, so that starting it once per GPU would be wrong.

    ``None`` (the image's own command) is taken for a plain program: what is inside an image cannot be seen.
    """
    words = _words(command)
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words:
        return False
    program = words[0].rsplit("/", 1)[-1]
    if program in _PROGRAMS:
        return True
    return bool(_PYTHON.match(program)) and _module(words[1:]) in _MODULES


def _module(words: Sequence[str]) -> str | None:
    """The module of ``python -m``, past the interpreter's own flags such as ``-u``."""
    for position, word in enumerate(words):
        if word == "-m":
            return words[position + 1] if position + 1 < len(words) else None
        if not word.startswith("-"):
            return None
    return None


def _words(command: Sequence[str] | str | None) -> list[str]:
    if command is None:
        return []
    if not isinstance(command, str):
        return list(command)
    # Only the first line matters: a longer script decides for itself what it starts.
    first_line = command.strip().split("\n", 1)[0]
    try:
        return shlex.split(first_line)
    except ValueError:  # an open quote: the shell will tell
        return first_line.split()
