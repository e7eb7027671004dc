"""The platform's own server of models, as plain processes start it: from the files of this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[1] / "worker_images" / "serving" / "trainmaster_serving"


def own_server() -> tuple[str, ...]:
    """The command. ``python`` is the platform's own there, with what is installed beside it."""
    return ("python", str(_PACKAGE / "__main__.py"))
