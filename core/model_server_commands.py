"""The platform's own server of models, and AutoML's trials beside it, as plain processes start them: from the files of this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "worker_images" / "serving"


def own_server() -> tuple[str, ...]:
    """The command. ``python`` is the platform's own there, with what is installed beside it."""
    return ("python", str(_FOLDER / "trainmaster_serving" / "__main__.py"))


def own_automl() -> tuple[str, ...]:
    """The same of AutoML's trials."""
    return ("python", str(_FOLDER / "trainmaster_automl" / "__main__.py"))
