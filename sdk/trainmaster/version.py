"""The package's version, and the commit that it was built from."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

__version__ = "0.1.0"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@cache
def revision() -> str:
    """The first 12 digits of the commit: of ``TRAINMASTER_REVISION``, which images set, else of the checkout that this
    package runs from; empty if neither is known.
    """
    given = os.environ.get("TRAINMASTER_REVISION") or checked_out_commit(Path(__file__).parents[2] / ".git")
    return given[:12] if _COMMIT.fullmatch(given) else ""


def full_version() -> str:
    """Such as ``0.1.0 (4f84ec6bfe2f)``."""
    return f"{__version__} ({revision()})" if revision() else __version__


def checked_out_commit(git: Path) -> str:
    """The commit of the head, read from Git's files, as there may be no Git. ``git``: the repository's ``.git``."""
    try:
        if git.is_file():  # of a worktree: `gitdir: /path`
            git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        common = git / "commondir"
        shared = git / common.read_text(encoding="utf-8").strip() if common.exists() else git
        name = head.removeprefix("ref: ")
        if (shared / name).exists():
            return (shared / name).read_text(encoding="utf-8").strip()
        packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
