"""What is wrong with a spec: all of it, told at once."""

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
    """One thing to mend.

    ``path`` is as the user wrote it, such as ``roles.worker.resources.cpu``; empty for the document as a whole.
    ``message`` says what is wrong, without the path; ``hint``, if any, what would be right.
    """

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        told = f"{self.path}: {self.message}" if self.path else self.message
        return f"{told} ({self.hint})" if self.hint else told


class SpecError(ValueError):
    """The spec cannot be taken. ``mistakes`` holds every one of them; ``str()`` lists them, one a line."""

    def __init__(self, mistakes: Iterable[SpecMistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class FieldError(ValueError):
    """A value that its field does not take; pydantic carries it. ``message`` follows the field's path."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}; {hint}" if hint else message)


def join_path(path: Path) -> str:
    """``roles.worker.args[0]``; a key that is no plain word in brackets: ``labels["a/b"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part if len(part) <= 63 else part[:60] + '…', ensure_ascii=True)}]"
    return text
