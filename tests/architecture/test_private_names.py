"""Tests replace public names only: chance, clocks, pools and failures are injected, or provoked by real input."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source_tree import PACKAGES, syntax_tree, tracked_files

# (file, name): why the test can't do without it.
EXCEPTIONS: dict[tuple[str, str], str] = {}
MAX_EXCEPTIONS = 10
_REPLACING_CALLS = frozenset({"setattr", "delattr", "object"})  # ``object`` is that of ``mock.patch``


def test_no_test_replaces_a_private_name_of_the_product() -> None:
    found = {
        (str(path), name): f"{path}:{line} {name}"
        for path in tracked_files(".py")
        if path.parts[0] == "tests"
        for line, name in replaced_private_names(syntax_tree(path))
    }
    forbidden = sorted(place for key, place in found.items() if key not in EXCEPTIONS)
    assert not forbidden, f"Inject it, or provoke it by real input; {len(forbidden)} private names: {forbidden}"
    assert not EXCEPTIONS.keys() - found.keys(), f"No longer needed: {sorted(EXCEPTIONS.keys() - found.keys())}"
    assert len(EXCEPTIONS) <= MAX_EXCEPTIONS


def test_each_way_to_replace_a_name_is_found() -> None:
    for statement in (
        "monkeypatch.setattr(module, '_name', 1)",
        "monkeypatch.setattr('core.secrets._name', 1)",
        "monkeypatch.delattr(module, '_name')",
        "setattr(thing, '_name', 1)",
        "for name in ('_name', 'other'): patch.setattr(module, name, 1)",
        "patch.object(Class, '_name')",
        "patch('api.tokens._name')",
        "thing.part._name = 1",
        "thing.part._name: int = 1",
        "thing.part._name += 1",
        "first, thing._name = 1, 2",
        "def test(): self.part._name = 1",
    ):
        assert [name for _, name in replaced_private_names(ast.parse(statement))] == ["_name"], statement


def test_public_names_and_those_of_tests_and_libraries_may_be_replaced() -> None:
    for statement in (
        "monkeypatch.setattr(module, 'name', 1)",
        "monkeypatch.setattr(module, '__name__', 1)",
        "monkeypatch.setattr('typer.testing._name', 1)",
        "class Fake:\n    def __init__(self): self._name = 1",
        "assert thing._name == 1",
        "Fake(_name=1)",
    ):
        assert not list(replaced_private_names(ast.parse(statement))), statement


def replaced_private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private attribute that is replaced; of ``self``, a test's own class, none."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}) and _is_private(name):
                    yield node.lineno, name
            case ast.Call(args=[ast.Constant(value=str(path)), *_]):
                package, _, rest = path.partition(".")
                name = rest.rpartition(".")[2]
                if package in PACKAGES and _is_private(name) and _called_name(node) in _REPLACING_CALLS | {"patch"}:
                    yield node.lineno, name
            case ast.Call(args=[_, ast.Constant(value=str(name)), *_]):
                if _is_private(name) and _called_name(node) in _REPLACING_CALLS:
                    yield node.lineno, name
            case ast.Call(args=[_, ast.Name(), *_]) if _called_name(node) in _REPLACING_CALLS:
                yield from _private_texts(tree)
            case _:
                pass


def _private_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of a module that a variable may hold when it is given to ``setattr``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_private(node.value):
            yield node.lineno, node.value


def _called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None
