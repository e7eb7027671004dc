"""Packages of the worker images that plain processes run: in this checkout, or installed beside the platform."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from core.domain.errors import InvalidRequest

RUNTIME: Final = "trainmaster_runtime"
SERVING: Final = "trainmaster_serving"
AUTOML: Final = "trainmaster_automl"
CHECKOUT: Path = Path(__file__).parents[1] / "worker_images"
# The folder of each package below CHECKOUT, which is a distribution of its own.
_DISTRIBUTIONS: Final = {RUNTIME: "runtime", SERVING: "serving", AUTOML: "serving"}


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
