"""Documents about the code name files and functions that exist."""

from __future__ import annotations

import ast
import builtins
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT, syntax_tree, tracked_files

# `folder/module.py`, and behind it the `name` that the sentence is about.
REFERENCE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.py)`(?:\s+`(\w+)`)?")
# Of other systems' clients, which no code here calls.
FOREIGN_FUNCTIONS = {
    "JobSubmissionClient",
    "KubernetesBackendConfig",
    "SummaryWriter",
    "DistributedDataParallel",
    "set_tracking_uri",
}
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


def test_code_that_documents_name_exists() -> None:
    """`name(…)` is defined or called in the code; `module.py` is a file, or a name that the code uses."""
    code = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in tracked_files(".py", ".ts", ".tsx", ".yaml"))
    modules = {path.name for path in tracked_files(".py")}
    missing = []
    for path in tracked_files(".md"):
        text = re.sub(r"```.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)
        called = {name.split(".")[-1] for name in re.findall(r"`([A-Za-z_][\w.]*)\(", text)}
        called -= FOREIGN_FUNCTIONS | set(dir(builtins))
        missing += [f"{path}: {name}(…)" for name in sorted(called) if not re.search(rf"\b{name}\(|\b{name} = ", code)]
        named = set(re.findall(r"`(?:[\w-]+/)*([\w-]+\.py)`", text)) - modules
        missing += [f"{path}: {name}" for name in sorted(named) if name not in code]
    assert not missing, missing


def test_docstrings_refer_to_what_exists() -> None:
    code = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in tracked_files(".py"))
    defined = set(re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", code, re.MULTILINE))
    defined |= set(re.findall(r"^\s*(?:self\.)?(\w+)\s*(?::[^=\n]+)?(?:=|$)", code, re.MULTILINE))
    defined |= {part for path in tracked_files(".py") for part in (*path.parts, path.stem)} | set(dir(builtins))
    missing = [
        f"{path}: {name}"
        for path in tracked_files(".py")
        for name in re.findall(
            r":(?:func|meth|class|mod|attr|data):`~?([\w.]+)`", (ROOT / path).read_text(encoding="utf-8")
        )
        if name.split(".")[-1] not in defined and name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert not missing, missing


def _is_there(path: str, name: str) -> bool:
    if not (ROOT / path).is_file():
        return False
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {node.name for node in ast.walk(syntax_tree(Path(path))) if isinstance(node, definitions)}
    return not name or name in defined
