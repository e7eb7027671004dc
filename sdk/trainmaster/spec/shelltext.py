"""Static analysis of shell commands: whether arguments appended to a command reach the program they are meant for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["has_placeholder", "reason_list_loses_words", "reason_words_are_lost"]

# Words that end a compound command: after them a shell accepts only another operator.
_ENDS: Final = frozenset({"done", "fi", "esac", "}"})
# Shell keywords that precede a command.
_OPENINGS: Final = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "exec"})
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
# Utilities that take no hyperparameters: if another program is in the text, the arguments are meant for that program.
_UTILITIES: Final = frozenset(
    """
    : [ awk basename bc break cat cd chmod continue cp cut date dirname echo exit export expr false for case function
    grep egrep head hostname id jq kill ln local ls mkdir mktemp mv nproc printf pwd read return rm sed seq set shift
    sleep sort source . sync tail tar tee test touch tr trap true ts ulimit umask uname uniq unset wait wc which whoami
    """.split()  # noqa: SIM905 (a list literal would fill a screen)
)
_FUNCTION: Final = re.compile(r"(?:^|[\s;&|{(])(?:function\s+([\w-]+)|([\w-]+)\s*\(\s*\))")
_HERE: Final = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_ALL: Final = re.compile(r"\$(?:[@*]|\{[@*]\})")
# Expansions that read positional parameters.
_READS: Final = re.compile(r"\$\{?[@*#\d]|\bgetopts\b")
_READS_FIRST: Final = re.compile(r"\$\{?0")
_VARIABLE: Final = "TRAINMASTER_PARAMETERS"
_QUOTED_ALL: Final = re.compile(r"(?<!\S)'\"?\$[@*]\"?'(?!\S)")
_SUBSTITUTION: Final = re.compile(r"\$\((?!\()|`")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_SHELL_OPTIONS: Final = re.compile(r"[-+][A-Za-z]+")


@dataclass(slots=True)
class _Read:
    """A parsed shell text.

    ``commands``: the words of each simple command, with their quotes; the last is empty if the text ends with an
    operator.
    ``plain``: the text without single-quoted strings and comments. ``is_comment``: whether the text ends with a
    comment.
    """

    commands: list[list[str]] = field(default_factory=lambda: [[]])
    operators: list[str] = field(default_factory=list)
    plain: str = ""
    is_comment: bool = False


def has_placeholder(text: str) -> bool:
    """Whether ``text`` marks the place for arguments itself, by ``"$@"`` (or ``$*``) outside of a function."""
    plain = _read(text).plain
    return bool(_ALL.search(plain)) and not _FUNCTION.search(plain)


def reason_words_are_lost(text: str) -> str | None:
    """Why arguments appended to ``text`` would break it or reach the wrong program; ``None``: they arrive.

    A single program is assumed to handle its arguments; of two programs, the last one gets them.
    """
    text = text.rstrip()
    if has_placeholder(text):
        return None
    if _QUOTED_ALL.search(text) and not _FUNCTION.search(text):
        return "in single quotes '$@' is literal text, not the arguments"
    here = [match.group(2) for match in _HERE.finditer(text)]
    if here and text.rsplit("\n", 1)[-1].strip() in here:
        return f"they would become part of the here-document that ends with {here[-1]}"
    read = _read(text)
    if read.is_comment:
        return "they would become part of the comment at the end"
    last = read.commands[-1]
    if not last:
        operator = read.operators[-1] if read.operators else ""
        if operator == ")":
            return "after ) they are a syntax error"
        return f"after {operator} they would be a separate command" if operator else None
    if last[0] in _ENDS or (
        read.operators and read.operators[-1] == ")" and len(read.commands) > 1 and _is_redirect(last)
    ):
        return f"after {last[0]} they are a syntax error"
    return _elsewhere(text, read)


def _elsewhere(text: str, read: _Read) -> str | None:
    """Which other program or function would take the arguments appended to ``text``; ``None``: none."""
    last = read.commands[-1]
    program = _program(last)
    if program in _UTILITIES:
        programs = [name for words in read.commands[:-1] if (name := _program(words)) and _takes_parameters(name)]
        if not programs and _VARIABLE not in text:
            programs = [name for words in read.commands for name in _substituted(words)]
        return f"they would go to {program}, not to {programs[-1]}" if programs else None
    functions = {name for match in _FUNCTION.findall(read.plain) for name in match if name}
    if program in functions and _VARIABLE not in text and not _READS.search(read.plain):
        return f"the function {program} would get them and does not pass them on"
    if program in _SHELLS and reason_list_loses_words(_plain_words(last)):
        return f"they would go to {program} -c, whose text does not read them; remove {program} -c"
    return None


def reason_list_loses_words(words: Sequence[str]) -> str | None:
    """Why a command list that runs a shell with a text would lose the arguments appended to it; ``None``: they arrive.

    ``sh -c TEXT sh --lr=1``: the word after the text becomes ``$0``, the words after it become ``"$@"``.
    """
    if not words or words[0].rsplit("/", 1)[-1] not in _SHELLS:
        return None
    at = 1
    while at < len(words) and _SHELL_OPTIONS.fullmatch(words[at]) and "c" not in words[at]:
        at += 2 if words[at][-1] in "oO" else 1
    if at + 1 >= len(words) or not _SHELL_OPTIONS.fullmatch(words[at]):
        return None  # a script file, which gets the arguments
    text, appended = words[at + 1], words[at + 2 :]
    plain = _read(text).plain
    if _VARIABLE in text:
        return None  # the text reads the parameters from the variable
    if not _READS.search(plain):
        return "they go to the shell, and its text does not read them"
    if not appended and not _READS_FIRST.search(plain):
        return "the shell takes the first of them as its own name ($0), not as an argument"
    return None


def _is_redirect(words: list[str]) -> bool:
    return bool(re.match(r"\d*[<>]", words[0]))


def _takes_parameters(program: str) -> bool:
    return program not in _UTILITIES and program not in _ENDS


def _substituted(words: list[str]) -> Iterator[str]:
    """Programs in ``$(…)`` and backticks that may take parameters. ``$((…))`` is arithmetic."""
    for kind, piece in _pieces(" ".join(words)):
        if kind == "quoted":
            continue
        at = 0
        while match := _SUBSTITUTION.search(piece, at):
            at = _closed(piece, match.start())
            inner = piece[match.end() : at].rstrip(")`")
            for command in _read(inner).commands:
                yield from _substituted(command)
                if (name := _program(command)) and _takes_parameters(name):
                    yield name


def _plain_words(words: list[str]) -> list[str]:
    """``words`` from the program on, without quotes."""
    places = (at for at, word in enumerate(words) if word not in _OPENINGS and not _ASSIGNMENT.match(word))
    try:
        return shlex.split(" ".join(words[next(places) :]))
    except (ValueError, StopIteration):
        return []


def _program(words: list[str]) -> str | None:
    """The program name of a simple command, after assignments and shell keywords."""
    for word in words:
        if word not in _OPENINGS and not _ASSIGNMENT.match(word):
            return word.strip("'\"").rsplit("/", 1)[-1]
    return None


def _read(text: str) -> _Read:
    result = _Read()
    for kind, piece in _pieces(text.replace("\\\n", " ")):
        result.is_comment = kind == "comment"
        if kind == "comment":
            continue
        result.plain += " ' ' " if kind == "quoted" else piece
        if kind == "operator":
            result.operators.append(piece)
            result.commands.append([])
        elif kind == "blank":
            result.commands[-1].append("")
        else:
            words = result.commands[-1]
            if not words or words[-1] == "":
                words[-1:] = [piece]
            else:
                words[-1] += piece
    result.commands = [[word for word in words if word] for words in result.commands]
    return result


_PIECE: Final = re.compile(
    r"""
    (?P<quoted>'[^']*'?)
    | (?P<double>"(?:\\.|[^"\\])*"?)
    | (?P<escaped>\\.)
    | (?P<blank>[ \t\r]+)
    | (?P<redirect>[<>]&[\d-]?|&>>?)
    | (?P<operator>;;|&&|\|\||[;&|\n()])
    | (?P<word>[^\s'"\\;&|()<>#$`]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Tokens of ``text`` as (kind, piece). A command substitution is one piece of its word."""
    at, is_word = 0, False
    while at < len(text):
        if text.startswith(("$(", "`"), at):
            end = _closed(text, at)
            yield "word", text[at:end]
            at, is_word = end, True
            continue
        if text[at] == "#" and not is_word:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            yield "comment", text[at:end]
            at = end
            continue
        match = _PIECE.match(text, at)
        assert match is not None and match.lastgroup is not None  # noqa: S101, PT018 (`.` takes any character)
        yield match.lastgroup, match.group()
        is_word = match.lastgroup not in ("blank", "operator")
        at = match.end()


def _closed(text: str, at: int) -> int:
    """Index after the substitution that begins at ``at``."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if text[index] == ")" and depth == 0:
            return index + 1
    return len(text)
