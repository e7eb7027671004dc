"""The documentation knows every command, and its programs are Python that names what exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from trainmaster import client, errors
from trainmaster.cli.main import app
from trainmaster.client.operations import JobOperations

DOCS = Path(__file__).parents[3] / "docs"


def command_names(group: Any, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from command_names(command, f"{name} ")
        elif not (prefix and name == "list"):  # `nodes` alone lists
            yield prefix + name


def test_every_command_is_in_the_documentation() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    # `projects create|update` stands for `projects create` and `projects update`.
    for group, verbs in re.findall(r"`(\w+) (\w+(?:\|\w+)+)`", text):
        text += "".join(f"\n`{group} {verb}`" for verb in verbs.split("|"))
    missing = [name for name in command_names(typer.main.get_command(app)) if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_programs_in_the_documentation_parse_and_import_what_exists() -> None:
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "sdk.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) >= 4
    for program in programs:
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = __import__(node.module, fromlist=["x"])
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_the_documentation_knows_every_exception_and_every_method_of_a_job() -> None:
    text = (DOCS / "sdk.md").read_text(encoding="utf-8")
    shown = {name for name in vars(errors) if re.search(rf"`{name}`", text)}
    for name in shown:
        assert issubclass(getattr(errors, name), errors.TrainmasterError)
    methods = {name for name in vars(JobOperations) if not name.startswith("_")} - {"read_log"}
    assert {name for name in methods if f"`{name}(" not in text} == set()
    assert hasattr(client, "RetryPolicy")
