"""Commands that start their processes themselves, such as ``torchrun``: the platform leaves them alone.

Shell text is parsed as far as its words allow: each command of a line, after wrappers and assignments, and the text
after ``sh -c``. What a script or the image's own command starts cannot be seen; it is taken for a plain program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from trainmaster.spec import Launcher

_PROGRAMS: Final = frozenset(
    {
        "torchrun",
        "mpirun",
        "mpiexec",
        "orterun",
        "prterun",
        "deepspeed",
        "composer",
        "accelerate-launch",
    }
)
_MODULES: Final = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
        "horovod.runner.launch",
        "composer.cli",
        "composer.cli.launcher",
        "lightning.fabric.cli",
        "lightning_fabric.cli",
    }
)
# The runtime replaces these when PATH resolves their name: their processes are started like any others. Called by a
# path they are the image's own, and launch.
_STOOD_FOR: Final = frozenset({"horovodrun", "perseusrun"})
# They launch only with a subcommand; `accelerate config` is a plain command.
_SUBCOMMANDS: Final = {
    "accelerate": "launch",
    "accelerate.commands.accelerate_cli": "launch",
    "fabric": "run",
    "lightning": "run",
    "colossalai": "run",
    "ray": "symmetric-run",
}
_PYTHON: Final = re.compile(r"python[0-9.]*\Z")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# Wrappers of the program that follows, and those of their options that take an argument.
_WRAPPERS: Final[dict[str, frozenset[str]]] = {
    "exec": frozenset({"-a"}),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "nohup": frozenset(),
    "time": frozenset({"-f", "-o"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "timeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "setsid": frozenset(),
    "numactl": frozenset({"-N", "-m", "-C", "-i", "-p"}),
    "command": frozenset(),
    "tini": frozenset({"-p", "-e"}),
}
# Shell syntax before a command.
_KEYWORDS: Final = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "("})
# Options of the interpreter that take an argument.
_PYTHON_OPTIONS: Final = frozenset({"-W", "-X"})
_SHELL_OPTIONS: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_COMMENT: Final = re.compile(r"(?m)(?<![^\s;&|()])#.*$")
_SEPARATORS: Final = frozenset(";&|\n()")
# Nesting limit of shells; deeper nesting is no real use.
_DEPTH: Final = 4


def starts_own_processes(command: Sequence[str] | str | None) -> bool:
    """Whether a launcher is among the commands of ``command``, so that starting it once per GPU would be wrong.

    ``None`` (the image's own command) is taken for a plain program: what is inside an image cannot be seen.
    """
    if command is None:
        return False
    return _in_text(command, _DEPTH) if isinstance(command, str) else _launches(list(command), _DEPTH)


def with_launcher(command: Sequence[str] | str | None, launcher: Launcher) -> tuple[str, ...] | str | None:
    """``command`` behind the launcher that the spec chooses, unless it has a launcher already.

    A program other than Python, and a shell's text, are started as they are by each of the launcher's processes.
    """
    plain = command if command is None or isinstance(command, str) else tuple(command)
    if command is None or launcher in (Launcher.AUTO, Launcher.NONE) or starts_own_processes(command):
        return plain
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if isinstance(command, str) and not _SYNTAX.search(command):
        words = shlex.split(command)
    if launcher in _PROGRAM_PREFIXES:
        return (*_PROGRAM_PREFIXES[launcher], *words)
    module, module_option, program_option = _MODULE_PREFIXES[launcher]
    if not words or not _PYTHON.match(words[0].rsplit("/", 1)[-1]):
        return ("python", "-m", module, program_option, *words)
    rest = words[1:]
    while rest and rest[0] in ("-u", "-O", "-B"):
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        rest = [module_option, *rest[1:]]
    elif rest[:1] and rest[0].startswith("-"):
        return (words[0], "-m", module, program_option, *words)  # such as `python -c text`
    return (words[0], "-m", module, *rest)


_PROGRAM_PREFIXES: Final = {
    Launcher.MPIRUN: ("mpirun",),
    Launcher.HOROVODRUN: ("horovodrun",),
    Launcher.RAY: ("ray", "symmetric-run", "--"),
}
# Module; its options for a module and for a program that is not a Python script.
_MODULE_PREFIXES: Final = {
    Launcher.TORCHRUN: ("torch.distributed.run", "--module", "--no_python"),
    Launcher.ACCELERATE: ("accelerate.commands.launch", "--module", "--no_python"),
    Launcher.DEEPSPEED: ("deepspeed.launcher.runner", "--module", "--no_python"),
    Launcher.COMPOSER: ("composer.cli.launcher", "--module_mode", "--command_mode"),
}
# Text that only a shell understands.
_SYNTAX: Final = re.compile(r"[;&|<>()$`*?\[\]{}~#\n\\]|^\s*[A-Za-z_]\w*=")


def _in_text(text: str, depth: int) -> bool:
    return depth > 0 and any(_launches(words, depth - 1) for words in _commands(text))


def _launches(words: list[str], depth: int) -> bool:
    """Whether one command, as words, is a launcher."""
    words = _unwrapped(words)
    if not words:
        return False
    program, rest = words[0].rsplit("/", 1)[-1], words[1:]
    if program in _PROGRAMS or (program in _STOOD_FOR and program != words[0]):
        return True
    if program in _SUBCOMMANDS:
        return rest[:1] == [_SUBCOMMANDS[program]]
    if program in _SHELLS:
        text = _shell_text(rest)
        return text is not None and _in_text(text, depth)
    if not _PYTHON.match(program):
        return False
    module = _module(rest)
    return module is not None and (
        module[0] in _MODULES or (module[0] in _SUBCOMMANDS and module[1:2] == [_SUBCOMMANDS[module[0]]])
    )


def _unwrapped(words: list[str]) -> list[str]:
    """``words`` from the program on that is run in the end."""
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if _ASSIGNMENT.match(words[0]) or words[0] in _KEYWORDS:
            words = words[1:]
            continue
        options = _WRAPPERS.get(name)
        if options is None:
            break
        words = words[1:]
        while words and words[0].startswith("-"):
            words = words[2 if words[0] in options else 1 :]
        if name == "timeout":
            words = words[1:]  # how long
    return words


def _shell_text(words: list[str]) -> str | None:
    """The text that a shell called with ``words`` runs by ``-c``, also in ``-lc`` or ``-e -c``; ``None``: a script, or
    its stdin.
    """
    position, has_c = 0, False
    while position < len(words) and words[position][:1] in ("-", "+") and len(words[position]) > 1:
        word = words[position]
        position += 1
        if word == "--":
            break
        has_c = has_c or (word[0] == "-" and not word.startswith("--") and "c" in word)
        if word in _SHELL_OPTIONS or (word[1:2] != "-" and word.endswith("o")):
            position += 1
    return words[position] if has_c and position < len(words) else None


def _module(words: list[str]) -> list[str] | None:
    """The module of ``python -m`` and its arguments, past the interpreter's own flags such as ``-u``."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "-m":
            return words[position + 1 :] or None
        if word.startswith("-m"):
            return [word[2:], *words[position + 1 :]]
        if word in _PYTHON_OPTIONS:
            position += 1
        elif not word.startswith("-"):
            return None
        position += 1
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell's text, as words. Expansions are left as they are written."""
    text = text.replace("\\\n", " ")
    words: list[str] = []
    for word in _words(_COMMENT.sub("", text)) or _words(text) or text.split():
        if word and _SEPARATORS.issuperset(word):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def _words(text: str) -> list[str] | None:
    """Words and separators; ``None`` where a quote stays open (a ``#`` in quotes is taken for a comment first)."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return None
