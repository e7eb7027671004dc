"""Errors of a spec. All mistakes are collected and reported together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Path = tuple[str | int, ...]

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class SpecMistake:
    """One mistake in a spec.

    ``path`` is as the user wrote it, such as ``roles.worker.resources.cpu``; empty for the document as a whole.
    ``message`` says what is wrong, without the path; ``hint``, if any, how to correct it.
    """

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class SpecError(ValueError):
    """The spec is invalid. ``mistakes`` holds all of its mistakes; ``str()`` lists them, one per line."""

    def __init__(self, mistakes: Iterable[SpecMistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class FieldError(ValueError):
    """A value that its field does not accept; raised in validators. ``message`` continues the field's path."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}; {hint}" if hint else message)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule that involves several fields.

    ``depends``: the canonical paths it follows from, besides ``path``.
    """

    path: Path
    message: str
    hint: str | None = None
    depends: tuple[Path, ...] = ()


def join_path(path: Path) -> str:
    """``roles.worker.args[0]``; a key that is not a plain identifier is put in brackets: ``labels["a/b"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part if len(part) <= 63 else part[:60] + '…', ensure_ascii=True)}]"
    return text
