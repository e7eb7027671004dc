"""The runtime enters arbitrary images: old Pythons, no site-packages."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[3] / "worker_images/runtime/trainmaster_runtime"
MODULES = sorted(RUNTIME.rglob("*.py"))
# A start hook finds its own folder on the path, and there what stands beside it.
OWN = {"trainmaster_runtime", "thread", *(path.stem for path in (RUNTIME / "hooks").glob("*.py"))}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_python_3_8_reads_it(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_imports_the_standard_library_alone(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names or top in OWN


def test_no_annotation_is_evaluated_when_a_module_is_read():
    for path in MODULES:
        tree = ast.parse(path.read_text())
        if path.parent.name == "hooks" or path.stem in {"__main__", "__init__"}:
            continue
        futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        assert futures, f"{path.name} lacks `from __future__ import annotations`"
