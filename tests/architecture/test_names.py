"""Names use the terms of the field: pronouns, bare participles and riddles are no names.

Words of public names stand in ``docs/vocabulary.md`` or in ``words.txt`` next to this file. A name with a new word
fails: take a word that is there, or add yours to ``words.txt`` (``python -m tests.architecture.test_names`` lists what
is new).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import ROOT, source_modules, syntax_tree, tracked_files

# To add a word: put it here and run this test; it lists every name to change.
FORBIDDEN_WORDS = frozenset({"told", "kept", "whom", "said", "asked", "somebody", "nobody", "anew"})
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


def test_words_of_public_names_are_in_the_vocabulary() -> None:
    unknown = unknown_words()
    assert not unknown, f"{len(unknown)} words are in no vocabulary; see this module's docstring: {unknown}"


def test_no_word_is_listed_that_no_name_uses() -> None:
    unused = listed_words() - set(words_in_use())
    assert not unused, f"words.txt lists words that no name uses: {sorted(unused)}"


def test_words_of_a_name_are_found_in_both_spellings() -> None:
    assert words_of("took_KeptFiles") == {"took", "kept", "files"}
    assert words_of("isToldHTTP2") == {"is", "told", "http2"}


def unknown_words() -> dict[str, str]:
    """New words, each with a place where it is used."""
    known = listed_words() | words_of(re.sub(r"\W", " ", (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")))
    return {word: place for word, place in words_in_use().items() if word not in known and len(word) > 2}


def listed_words() -> set[str]:
    return set(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())


def words_in_use() -> dict[str, str]:
    """Words of modules' paths and of public classes and functions, each with one place where it is used."""
    words: dict[str, str] = {}
    for path in source_modules():
        names = [*path.with_suffix("").parts]
        names += [
            node.name
            for node in syntax_tree(path).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
        ]
        for name in names:
            for word in words_of(name):
                words.setdefault(word, f"{path}: {name}")
    return words


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


if __name__ == "__main__":
    print("\n".join(sorted(unknown_words())))
