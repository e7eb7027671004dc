"""Folders, modules, functions and lines stay small enough to be read."""

from __future__ import annotations

import ast
from collections import Counter

from tests.architecture.source_tree import source_modules, syntax_tree, text_files, text_lines, tracked_files

MODULES_PER_FOLDER = 20
LINES_PER_MODULE = 600
LINES_PER_FUNCTION = 70
LINE_LENGTH = 120


def test_no_folder_holds_more_than_twenty_modules() -> None:
    python = Counter(path.parent for path in tracked_files(".py") if path.name != "__init__.py")
    # A page's test next to its module belongs to it.
    web = Counter(path.parent for path in tracked_files(".ts", ".tsx") if ".test." not in path.name)
    crowded = {str(folder): count for folder, count in (python + web).items() if count > MODULES_PER_FOLDER}
    assert not crowded, f"Folders with more than {MODULES_PER_FOLDER} modules need sub-packages: {crowded}"


def test_no_module_has_more_than_six_hundred_lines() -> None:
    modules = (*source_modules(), *tracked_files(".ts", ".tsx"))
    long = {str(path): len(text_lines(path)) for path in modules if len(text_lines(path)) > LINES_PER_MODULE}
    assert not long, f"Modules over {LINES_PER_MODULE} lines: {long}"


def test_no_function_has_more_than_seventy_lines_of_code() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": length
        for path in source_modules()
        if path.parts[0] != "benchmarks"  # a benchmark's one function tells its story in order
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := _body_lines(node)) > LINES_PER_FUNCTION
    }
    assert not long, f"Functions over {LINES_PER_FUNCTION} lines: {long}"


def test_no_line_is_longer_than_a_hundred_and_twenty_characters() -> None:
    long = [
        f"{path}:{number}"
        for path in text_files()
        for number, line in enumerate(text_lines(path), start=1)
        if len(line) > LINE_LENGTH
    ]
    assert not long, f"{len(long)} lines over {LINE_LENGTH} characters: {long[:40]}"


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement behind the docstring to the end."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
