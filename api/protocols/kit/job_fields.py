"""Fields of our job spec from those of foreign job specs: names, labels, commands in an environment of packages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Our labels begin and end with a letter or a digit; others are stored for the foreign client alone.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_RUNNER: Final = Path(__file__).with_name("run_in_environment.py")


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that are valid for a job here."""
    return {k: v for k, v in labels.items() if _LABEL.fullmatch(k) and (not v or _LABEL.fullmatch(v))}


def slug(text: str, default: str = "custom-job") -> str:
    """A valid name from any text; ``default`` if it has no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or default


def command_with_packages(requirements: Sequence[str], *command: str) -> list[str]:
    """``command`` after the installation of pip requirements. Further arguments may be appended."""
    return ["python3", "-c", _RUNNER.read_text(encoding="utf-8"), *requirements, "--", *command]
