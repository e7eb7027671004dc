"""What comes beside the platform's own packages, in this checkout or installed: those of the worker images, which plain
processes run, and the built web pages.

Commands use ``python``, the platform's own, with its installed packages.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from core.domain.errors import InvalidRequest

# `setup.py` packages this folder, if it is built, at the same place next to the platform's packages.
WEB_BUILD: Final = Path(__file__).parents[1] / "web" / "dist"


def missing_pages(build: Path = WEB_BUILD) -> str | None:
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


RUNTIME: Final = "trainmaster_runtime"
SERVING: Final = "trainmaster_serving"
AUTOML: Final = "trainmaster_automl"
TRAIN: Final = "trainmaster_train"
CHECKOUT: Path = Path(__file__).parents[1] / "worker_images"
# The folder of each package below CHECKOUT, which is a distribution of its own.
_DISTRIBUTIONS: Final = {RUNTIME: "runtime", SERVING: "serving", AUTOML: "serving"}


def library_folder(links: Path) -> Path | None:
    """A folder with the training library and nothing else, for the path of jobs; ``None`` if it is missing.

    Args:
        links: where a link to an installed library is made: its own folder has the platform's other packages.
    """
    folder = CHECKOUT / "train"
    if (folder / TRAIN).is_dir():
        return folder
    found = find_spec(TRAIN)
    if found is None or found.origin is None:
        return None
    links.mkdir(mode=0o700, parents=True, exist_ok=True)
    link, package = links / TRAIN, Path(found.origin).parent
    if not link.is_symlink() or link.readlink() != package:
        new = links / f".{TRAIN}.{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(package)
        new.replace(link)
    return links


class PackageMissing(InvalidRequest):
    """Plain processes need a package that is neither in a checkout nor installed."""


def find_package(name: str) -> Path | None:
    """The folder of a package, in which ``__main__.py`` starts it; ``None`` if it is missing."""
    folder = CHECKOUT / _DISTRIBUTIONS[name] / name
    if not folder.is_dir():
        found = find_spec(name)
        if found is None or found.origin is None:
            return None
        folder = Path(found.origin).parent
    return folder if (folder / "__main__.py").is_file() else None


def demand_package(name: str) -> Path:
    """The same; raises ``PackageMissing``, with what to do, if it is missing."""
    folder = find_package(name)
    if folder is None:
        raise PackageMissing(
            f"Plain processes need the package {name}, which is not installed in the platform's Python: run `pip "
            f"install ./worker_images/{_DISTRIBUTIONS[name]}` in a clone of the repository, or run jobs in containers "
            "with `trainmaster up --executor docker`."
        )
    return folder


def own_server() -> tuple[str, ...]:
    """The server's command, also if it is not installed: the API refuses what needs it then."""
    return _command(SERVING)


def own_automl() -> tuple[str, ...]:
    """The AutoML trainer's command, likewise."""
    return _command(AUTOML)


def _command(package: str) -> tuple[str, ...]:
    folder = find_package(package)
    return ("python", "-m", package) if folder is None else ("python", str(folder / "__main__.py"))
