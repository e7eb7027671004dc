"""Names use the terms of the field: pronouns, bare participles and riddles are no names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import source_modules, syntax_tree, tracked_files

# To add a word: put it here and run this test; it lists every name to change.
FORBIDDEN_WORDS = frozenset({"told", "kept", "whom", "said", "somebody", "nobody", "anew"})
# Words which had a private meaning in this code base: a term of the field took their place.
RETIRED_WORDS = frozenset({"bell", "glance", "crown", "heir", "heirs", "stranger", "strangers", "hatch", "visitor"})


def test_no_name_is_a_pronoun_or_a_bare_participle() -> None:
    found = [
        f"{path}:{line} {name}"
        for path in source_modules()
        for line, name in defined_names(path)
        if FORBIDDEN_WORDS & words_of(name)
    ]
    assert not found, f"{len(found)} names with {sorted(FORBIDDEN_WORDS)}: {found[:60]}"


def test_no_public_name_or_path_uses_a_retired_word() -> None:
    names = [
        f"{path}:{line} {name}"
        for path in source_modules()
        for line, name in defined_names(path)
        if not name.startswith("_") and RETIRED_WORDS & words_of(name)
    ]
    paths = [
        str(path)
        for path in tracked_files(".py", ".ts", ".tsx")
        if RETIRED_WORDS & words_of(re.sub(r"\W", "_", str(path)))
    ]
    assert not names + paths, f"{len(names)} names, {len(paths)} paths: {(names + paths)[:60]}"


def test_words_of_a_name_are_found_in_both_spellings() -> None:
    assert words_of("took_KeptFiles") == {"took", "kept", "files"}
    assert words_of("isToldHTTP2") == {"is", "told", "http2"}


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*", name)}


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    """Each name that a module defines: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(syntax_tree(path)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case _:
                pass
