"""Prints every package with its purpose and its modules. ``--check`` only looks whether each says its purpose.

The purpose is the first sentence of the package's docstring, so the map is as true as the code.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "sdk/trainmaster",
    "worker_images/runtime/trainmaster_runtime",
    "worker_images/train/trainmaster_train",
    "worker_images/serving/trainmaster_serving",
    "worker_images/serving/trainmaster_automl",
)
WIDTH = 120


def main(arguments: list[str]) -> int:
    silent = [
        str(package.relative_to(ROOT)) for room in ROOMS for package in packages(ROOT / room) if not summary(package)
    ]
    if silent:
        print(f"Packages without a docstring in __init__.py: {', '.join(silent)}", file=sys.stderr)
        return 1
    if "--check" not in arguments:
        for room in ROOMS:
            print(f"\n{room}")
            for package in packages(ROOT / room):
                print(describe(package, ROOT / room))
    return 0


def packages(folder: Path) -> Iterator[Path]:
    if (folder / "__init__.py").exists():
        yield folder
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name != "__pycache__":
            yield from packages(child)


def summary(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).split(". ")[0].rstrip(".:")


def describe(package: Path, room: Path) -> str:
    """The package's path below ``room``, its purpose, the names of its modules."""
    name = package.name if package == room else package.relative_to(room).as_posix()
    modules = ", ".join(sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__"))
    lines = textwrap.wrap(f"  {name}: {summary(package)}.", WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    lines += textwrap.wrap(modules, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
