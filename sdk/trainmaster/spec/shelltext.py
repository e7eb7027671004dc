"""What becomes of words that are put behind a shell's text: read as a shell reads it, as far as words tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["lost_by_list", "lost_words", "places_words"]

# Words that end a compound command: behind them a shell takes nothing but another operator.
_ENDS: Final = frozenset({"done", "fi", "esac", "}"})
# What a shell reads before a command, or what begins no program.
_OPENINGS: Final = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "exec"})
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
# Programs that nobody searches the parameters of: beside another one it is the other that words are meant for.
_PLUMBING: Final = frozenset(
    """
    : [ awk basename bc break cat cd chmod continue cp cut date dirname echo exit export expr false for case function grep
    egrep head hostname id jq kill ln local ls mkdir mktemp mv nproc printf pwd read return rm sed seq set shift sleep sort
    source . sync tail tar tee test touch tr trap true ts ulimit umask uname uniq unset wait wc which whoami
    """.split()  # noqa: SIM905 (a list of them would fill a screen)
)
_FUNCTION: Final = re.compile(r"(?:^|[\s;&|{(])(?:function\s+([\w-]+)|([\w-]+)\s*\(\s*\))")
_HERE: Final = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_ALL: Final = re.compile(r"\$(?:[@*]|\{[@*]\})")
# How a text reads its words in any way; and where it finds parameters without them.
_READS: Final = re.compile(r"\$\{?[@*#\d]|\bgetopts\b")
_READS_FIRST: Final = re.compile(r"\$\{?0")
_VARIABLE: Final = "TRAINMASTER_PARAMETERS"
_QUOTED_ALL: Final = re.compile(r"(?<!\S)'\"?\$[@*]\"?'(?!\S)")
_SUBSTITUTION: Final = re.compile(r"\$\((?!\()|`")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_SHELL_OPTIONS: Final = re.compile(r"[-+][A-Za-z]+")


@dataclass(slots=True)
class _Read:
    """``commands``: the words of each simple command, quotes kept; the last one is empty where an operator ends the text.

    ``plain``: the text without what single quotes hold and without comments. ``is_comment``: a comment ends it.
    """

    commands: list[list[str]] = field(default_factory=lambda: [[]])
    operators: list[str] = field(default_factory=list)
    plain: str = ""
    is_comment: bool = False


def places_words(text: str) -> bool:
    """Whether ``text`` says itself where words given to it belong: by ``"$@"`` (or ``$*``), and not in a function's body."""
    plain = _read(text).plain
    return bool(_ALL.search(plain)) and not _FUNCTION.search(plain)


def lost_words(text: str) -> str | None:
    """Why words put behind ``text`` would break it, or go to another program than is meant; ``None``: they arrive.

    What they do behind a single program is the program's own affair, and of two programs the last one gets them.
    """
    text = text.rstrip()
    if places_words(text):
        return None
    if _QUOTED_ALL.search(text) and not _FUNCTION.search(text):
        return "in single quotes '$@' stands for these two characters, not for them"
    here = [found.group(2) for found in _HERE.finditer(text)]
    if here and text.rsplit("\n", 1)[-1].strip() in here:
        return f"they would be part of the here-document that ends with {here[-1]}"
    read = _read(text)
    if read.is_comment:
        return "they would be part of the comment that ends it"
    last = read.commands[-1]
    if not last:
        operator = read.operators[-1] if read.operators else ""
        if operator == ")":
            return "behind ) the shell ends in a syntax error"
        return f"behind {operator} they would be a command of their own" if operator else None
    if last[0] in _ENDS or (
        read.operators and read.operators[-1] == ")" and len(read.commands) > 1 and _is_redirect(last)
    ):
        return f"behind {last[0]} the shell ends in a syntax error"
    return _elsewhere(text, read)


def _elsewhere(text: str, read: _Read) -> str | None:
    """What takes words behind ``text`` that are meant for another program; ``None``: nothing does."""
    last = read.commands[-1]
    program = _program(last)
    if program in _PLUMBING:
        others = [name for words in read.commands[:-1] if (name := _program(words)) and _is_meant(name)]
        if not others and _VARIABLE not in text:
            others = [name for words in read.commands for name in _substituted(words)]
        return f"they would go to {program}, not to {others[-1]}" if others else None
    functions = {name for found in _FUNCTION.findall(read.plain) for name in found if name}
    if program in functions and _VARIABLE not in text and not _READS.search(read.plain):
        return f"the function {program} would get them, and passes none on"
    if program in _SHELLS and lost_by_list(_plain_words(last)):
        return f"they would go to {program} -c, whose text does not read them; leave {program} -c out"
    return None


def lost_by_list(words: Sequence[str]) -> str | None:
    """The same of a command that is a list, with its arguments: of a shell that is given a text, where the words go to it.

    ``sh -c TEXT sh --lr=1``: behind the text a shell takes its own name first, then the words that the text calls ``"$@"``.
    """
    if not words or words[0].rsplit("/", 1)[-1] not in _SHELLS:
        return None
    at = 1
    while at < len(words) and _SHELL_OPTIONS.fullmatch(words[at]) and "c" not in words[at]:
        at += 2 if words[at][-1] in "oO" else 1
    if at + 1 >= len(words) or not _SHELL_OPTIONS.fullmatch(words[at]):
        return None  # a script's file, which gets its words
    text, behind = words[at + 1], words[at + 2 :]
    plain = _read(text).plain
    if _VARIABLE in text:
        return None  # it has them from there
    if not _READS.search(plain):
        return "they go to the shell, and its text does not read them"
    if not behind and not _READS_FIRST.search(plain):
        return "the shell takes the first of them for its own name ($0), not for one of its words"
    return None


def _is_redirect(words: list[str]) -> bool:
    return bool(re.match(r"\d*[<>]", words[0]))


def _is_meant(program: str) -> bool:
    """Whether parameters may be meant for it."""
    return program not in _PLUMBING and program not in _ENDS


def _substituted(words: list[str]) -> Iterator[str]:
    """The programs that parameters may be meant for of the commands in ``$(…)`` and backticks. ``$((…))`` calculates."""
    for kind, piece in _pieces(" ".join(words)):
        if kind == "quoted":
            continue
        at = 0
        while found := _SUBSTITUTION.search(piece, at):
            at = _closed(piece, found.start())
            inner = piece[found.end() : at].rstrip(")`")
            for command in _read(inner).commands:
                yield from _substituted(command)
                if (name := _program(command)) and _is_meant(name):
                    yield name


def _plain_words(words: list[str]) -> list[str]:
    """Without their quotes, from the program on."""
    found = (at for at, word in enumerate(words) if word not in _OPENINGS and not _ASSIGNMENT.match(word))
    try:
        return shlex.split(" ".join(words[next(found) :]))
    except (ValueError, StopIteration):
        return []


def _program(words: list[str]) -> str | None:
    """The program's name of a simple command, past assignments and what opens a compound one."""
    for word in words:
        if word not in _OPENINGS and not _ASSIGNMENT.match(word):
            return word.strip("'\"").rsplit("/", 1)[-1]
    return None


def _read(text: str) -> _Read:
    found = _Read()
    for kind, piece in _pieces(text.replace("\\\n", " ")):
        found.is_comment = kind == "comment"
        if kind == "comment":
            continue
        found.plain += " ' ' " if kind == "quoted" else piece
        if kind == "operator":
            found.operators.append(piece)
            found.commands.append([])
        elif kind == "blank":
            found.commands[-1].append("")
        else:
            words = found.commands[-1]
            if not words or words[-1] == "":
                words[-1:] = [piece]
            else:
                words[-1] += piece
    found.commands = [[word for word in words if word] for words in found.commands]
    # An operator right behind another one, such as `;` and the end of its line, separates nothing more.
    return found


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
    """Pieces of words, and what stands between them. A substitution is a piece of its word, whatever is in it."""
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
    """Where the substitution ends that begins at ``at``."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end < 0 else end + 1
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if text[index] == ")" and depth == 0:
            return index + 1
    return len(text)
