"""The built web pages: in a checkout, or packaged with an installed platform."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# `setup.py` packages this folder, if it is built, at the same place next to the platform's packages.
BUILD: Final = Path(__file__).parents[1] / "web" / "dist"


def missing_pages(build: Path = BUILD) -> str | None:
    """Two sentences: the pages are missing, and what to do; ``None``: they are built."""
    if (build / "index.html").is_file():
        return None
    is_checkout = (build.parent / "build.py").is_file()
    how = (
        "run `python3 dev.py web` in the checkout"
        if is_checkout
        else "run `python3 dev.py web` in a clone of the repository, then install the platform from there again with "
        "`pip install ./sdk .`"
    )
    state = "not built" if is_checkout else "not part of this installation"
    return f"The web pages are {state}. To have them, {how}, on a machine that reaches the npm registry."
