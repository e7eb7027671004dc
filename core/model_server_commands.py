"""Commands of the platform's model server and AutoML trainer for plain processes, from this installation's files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "worker_images" / "serving"


def own_server() -> tuple[str, ...]:
    """The server's command. ``python`` is the platform's own, with its installed packages."""
    return ("python", str(_FOLDER / "trainmaster_serving" / "__main__.py"))


def own_automl() -> tuple[str, ...]:
    """The AutoML trainer's command."""
    return ("python", str(_FOLDER / "trainmaster_automl" / "__main__.py"))
