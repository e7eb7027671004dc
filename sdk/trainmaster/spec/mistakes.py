"""What is wrong with a spec: all of it, told at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
