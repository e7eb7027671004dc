"""The control loop talks to executors outside of transactions: a slow engine must not keep rows locked.

The test sees calls on names that hold an executor, directly in a ``with`` of the same function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.source_tree import source_modules, syntax_tree

# Functions and methods whose result is a transaction: of leases, of the tick's lease, of engines and sessions.
TRANSACTIONS = frozenset({"unit_of_work", "fenced", "write", "begin", "begin_nested"})


def test_no_executor_is_called_inside_a_transaction() -> None:
    calls = [
        f"{path}:{line}"
        for path in source_modules()
        if path.parts[0] == "scheduler"
        for line in executor_calls(syntax_tree(path))
    ]
    assert not calls, f"Calls of an executor inside a transaction: {calls}"


def test_a_call_inside_a_transaction_is_found() -> None:
    inside = "with unit_of_work(control.sessions) as session:\n    control.executor.stop(key)\n"
    outside = "with unit_of_work(control.sessions) as session:\n    pass\ncontrol.executor.stop(key)\n"
    assert list(executor_calls(ast.parse(inside))) == [2]
    for lease in ("context.lease.fenced()", "self._lease.fenced()", "tick_lease.write()", "engine.begin()"):
        assert list(executor_calls(ast.parse(f"with {lease} as session:\n    self._executor.stop(key)\n"))) == [2]
    assert list(executor_calls(ast.parse(outside))) == []


def executor_calls(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.With) or not any(_opens_transaction(item.context_expr) for item in node.items):
            continue
        for statement in node.body:
            for call in ast.walk(statement):
                if isinstance(call, ast.Call) and _is_executor_method(call.func):
                    yield call.lineno


def _opens_transaction(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    function = expression.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return name in TRANSACTIONS


def _is_executor_method(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name.lstrip("_") == "executor"
