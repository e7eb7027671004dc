"""Commands of the platform's model server and AutoML trainer for plain processes, from this installation's files.

``python`` is the platform's own, with its installed packages.
"""

from __future__ import annotations

from core.worker_packages import AUTOML, SERVING, find_package


def own_server() -> tuple[str, ...]:
    """The server's command, also if it is not installed: the API refuses what needs it then."""
    return _command(SERVING)


def own_automl() -> tuple[str, ...]:
    """The AutoML trainer's command, likewise."""
    return _command(AUTOML)


def _command(package: str) -> tuple[str, ...]:
    folder = find_package(package)
    return ("python", "-m", package) if folder is None else ("python", str(folder / "__main__.py"))
