"""Writes ``docs/module-map.md``: every package with its purpose and its modules. ``--check`` only compares.

The purpose is the first line of the package's docstring, so the page is as true as the code.
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

Every package with its purpose and its modules. Written by `python docs/module_map.py`; do not edit.
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
        sections += [describe(package, room) for package in packages(ROOT / room)]
    return HEADER + "\n".join(sections) + "\n"


def packages(folder: Path) -> Iterator[Path]:
    if (folder / "__init__.py").exists():
        yield folder
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name != "__pycache__":
            yield from packages(child)


def describe(package: Path, room: str) -> str:
    """One list item: the package's path below its room, its purpose, the names of its modules."""
    purpose = (ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or "").split("\n")[0]
    modules = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
    name = package.relative_to(ROOT / room).as_posix()
    heading = f"- **{Path(room).name if name == '.' else name}**: {purpose}"
    names = ", ".join(modules)
    lines = textwrap.wrap(heading, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    lines += textwrap.wrap(names, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
