"""Documents about the code name files and functions that exist."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, syntax_tree, tracked_files

# `folder/module.py`, and behind it the `name` that the sentence is about.
REFERENCE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.py)`(?:\s+`(\w+)`)?")
# Paths below these begin at a distribution's root or at the checkout.
PAGES = ("docs/how-a-job-travels.md", "docs/architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_each_named_function_exists(page: str) -> None:
    references = REFERENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    missing = [f"{path} {name}" for path, name in references if not _is_there(path, name)]
    assert references
    assert not missing, f"{page} names what is not there: {missing}"


def test_the_module_map_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "module_map.py"))
    assert page["PAGE"].read_text(encoding="utf-8") == page["render"](), "run: python docs/module_map.py"


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked_files(".md"):
        text = re.sub(r"```.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        local = [target for target in targets if not re.match(r"[a-z]+:", target)]
        broken += [f"{path}: {target}" for target in local if not (ROOT / path.parent / target).exists()]
    assert not broken, broken


def _is_there(path: str, name: str) -> bool:
    if not (ROOT / path).is_file():
        return False
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(syntax_tree(Path(path))) if isinstance(node, definitions)}
    return not name or name in defined
