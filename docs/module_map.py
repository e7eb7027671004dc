"""Writes ``docs/module-map.md``: the packages with their purposes. ``--check`` only compares.

The purpose is the first sentence of the package's docstring, so the page is as true as the code.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("module-map.md")
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
HEADER = """# Module map

The packages with their purposes; deeper ones say theirs in their `__init__.py`. Written by
`python docs/module_map.py`; do not edit.
[Architecture](architecture.md) says how they belong together.
"""


def main(arguments: list[str]) -> int:
    text = render()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/module-map.md is out of date: python docs/module_map.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    sections = []
    for room in ROOMS:
        sections.append(f"\n## {room}\n")
        sections += [describe(package) for package in packages(ROOT / room)]
    return HEADER + "\n".join(sections) + "\n"


def packages(room: Path) -> Iterator[Path]:
    """The package ``room`` and those directly in it."""
    yield from (init.parent for init in (room / "__init__.py", *sorted(room.glob("*/__init__.py"))))


def describe(package: Path) -> str:
    """One list item: the package's name and its purpose."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    purpose = " ".join(docstring.split("\n\n")[0].split()).split(". ")[0].rstrip(".:") + "."
    return textwrap.fill(f"- **{package.name}**: {purpose}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
