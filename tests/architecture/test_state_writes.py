"""States of jobs, studies, versions and what runs for them change by the transition tables only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.source_tree import source_modules, syntax_tree

STATES = frozenset(
    {
        "JobState",
        "AttemptState",
        "ReplicaState",
        "StudyState",
        "TrialState",
        "DeploymentState",
        "ServingState",
        "VersionState",
    }
)
# The tables themselves, and what makes the first row of a thing.
TABLES = frozenset({"core/domain/jobs/lifecycle.py"})
FACTORIES = frozenset({"core/db/repositories/submission.py", "core/registry/versions.py"})
# A trial has one state from which it moves, and the statement's own condition is that it is in it.
CONDITIONAL = frozenset({"core/db/repositories/studies.py"})


def test_no_state_is_assigned_outside_the_transition_tables() -> None:
    found = [
        f"{path}:{line}"
        for path in source_modules()
        if path.parts[0] in {"api", "core", "scheduler"} and str(path) not in TABLES | FACTORIES | CONDITIONAL
        for line in literal_state_writes(syntax_tree(path))
    ]
    assert not found, f"States written as literals; use `advance` of core.domain: {found}"


def test_a_literal_state_is_found() -> None:
    assert list(literal_state_writes(ast.parse("job.state = JobState.RUNNING"))) == [1]
    assert list(literal_state_writes(ast.parse("job.state: str = JobState.RUNNING.value"))) == [1]
    assert list(literal_state_writes(ast.parse("update(Job).values(state=JobState.RUNNING.value)"))) == [1]
    assert list(literal_state_writes(ast.parse("replace(model, state=DeploymentState.FAILED)"))) == [1]
    assert list(literal_state_writes(ast.parse("update(Job).values(state=after.value)"))) == []
    assert list(literal_state_writes(ast.parse("Job(state=JobState.QUEUED)"))) == []


def literal_state_writes(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_literal(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Attribute) and target.attr == "state" for target in targets):
                yield node.lineno
        elif (
            isinstance(node, ast.Call)
            and not _is_class(node.func)
            and any(keyword.arg == "state" and _is_literal(keyword.value) for keyword in node.keywords)
        ):
            yield node.lineno


def _is_class(function: ast.expr) -> bool:
    """A class makes the first row of a thing; functions and methods change one."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name[:1].isupper()


def _is_literal(value: ast.expr) -> bool:
    """``JobState.RUNNING`` or ``JobState.RUNNING.value``, or a text."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str)
    while isinstance(value, ast.Attribute):
        if isinstance(value.value, ast.Name) and value.value.id in STATES:
            return True
        value = value.value
    return False
