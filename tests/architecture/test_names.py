"""Names use the terms of the field: pronouns, bare participles and riddles are no names.

Words of public names stand in ``docs/vocabulary.md`` or in ``words.txt`` next to this file. A name with a new word
fails: take a word that is there, or add yours to ``words.txt`` (``python -m tests.architecture.test_names`` lists what
is new).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.architecture.source_tree import ROOT, source_modules, syntax_tree, tracked_files

# To add a word: put it here and run this test; it lists every name to change.
FORBIDDEN_WORDS = frozenset({
    "told", "kept", "whom", "said", "asked", "somebody", "nobody", "anew",
    "another", "begun", "being", "beside", "came", "everybody", "everything", "gave", "gone", "held", "its",
    "itself", "me", "mine", "one", "ones", "our", "ours", "seen", "some", "their", "theirs", "took", "who", "whose",
})  # fmt: skip
# Words which had a private meaning in this code base: a term of the field took their place.
RETIRED_WORDS = frozenset(
    {"bell", "bells", "glance", "crown", "heir", "heirs", "stranger", "strangers", "hatch", "visitor"}
)

# Names which others build on: they stay, although a word of them is no term.
STABLE_NAMES = frozenset({
    # Fields of JSON under /api/v1, of the SDK and of tables
    "acked", "began_at", "found_at", "found_count", "heard_at", "held", "more", "more_nodes", "moreNodes", "namesakes",
    "seen_at", "split_when_ready", "wanted", "when", "when_done",
    # What the training library exports
    "FoundCheckpoint",
    # Values in a job's spec
    "APART", "BESIDE",
    # GET /api/v1/me
    "get_me", "meQuery",
    # Statuses of HTTP and of the shell
    "COMMAND_NOT_FOUND", "Gone", "NOT_FOUND", "NotFound", "ObjectNotFound", "not_found_at",
    "object_not_found", "operation_not_found",
})  # fmt: skip


def test_no_name_is_a_pronoun_or_a_bare_participle() -> None:
    found = [
        f"{path}:{line} {name}"
        for path in source_modules()
        for line, name in defined_names(path)
        if FORBIDDEN_WORDS & words_of(name) and name not in STABLE_NAMES - FORBIDDEN_WORDS
    ]
    assert not found, f"{len(found)} names with {sorted(FORBIDDEN_WORDS)}: {found[:60]}"


def test_names_in_tests_are_no_bare_participles() -> None:
    words = frozenset({"told", "kept", "whom", "said"})
    found = [
        f"{path}:{line} {name}"
        for path in tracked_files(".py")
        if path.parts[0] == "tests"
        for line, name in defined_names(path)
        if words & words_of(name)
    ]
    assert not found, f"{len(found)} names with {sorted(words)}: {found[:60]}"


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


def test_public_names_are_found_in_both_languages() -> None:
    module = (
        "LIMIT_S = 1\n_HIDDEN = 2\nclass Kind:\n    RED = 1\n    _own: int\n    size: int\n    def paint(self): ...\n"
    )
    assert list(public_names(ast.parse(module).body)) == ["LIMIT_S", "Kind", "RED", "size", "paint"]
    page = "export interface Box {\n  readonly wide: number;\n  open?(): void;\n}\nexport async function draw() {}\n"
    assert sorted(exported_names(page)) == ["Box", "draw", "open", "wide"]


def unknown_words() -> dict[str, str]:
    """New words, each with a place where it is used."""
    known = listed_words() | vocabulary()
    return {word: place for word, place in words_in_use().items() if word not in known and len(word) > 2}


def vocabulary() -> set[str]:
    """Words of the terms in ``docs/vocabulary.md``: what is bold, in italics or code there."""
    text = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    terms = (term for _, term in re.findall(r"(\*\*|\*|`)([^*`]+)\1", text))
    return {word for term in terms for word in words_of(re.sub(r"\W", " ", term))}


def listed_words() -> set[str]:
    return set(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())


def words_in_use() -> dict[str, str]:
    """Words of modules' paths, of public names in Python and of exported ones on the page, each with one place."""
    words: dict[str, str] = {}
    for path in source_modules():
        _add_words(words, path, [*path.with_suffix("").parts, *public_names(syntax_tree(path).body)])
    for path in tracked_files(".ts", ".tsx"):
        _add_words(words, path, exported_names((ROOT / path).read_text(encoding="utf-8")))
    return words


def _add_words(words: dict[str, str], path: Path, names: Iterable[str]) -> None:
    for name in names:
        if name not in STABLE_NAMES:
            for word in words_of(name):
                words.setdefault(word, f"{path}: {name}")


def public_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Classes, functions and constants of a module, and the methods, fields and members of its public classes."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
                yield from public_names(statement.body)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from [name] if not name.startswith("_") else []
            case ast.Assign(targets=targets):
                yield from (
                    node.id
                    for target in targets
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not node.id.startswith("_")
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield from [name] if not name.startswith("_") else []
            case ast.If(body=inner) | ast.Try(body=inner):
                yield from public_names(inner)
            case _:
                pass


def exported_names(text: str) -> Iterator[str]:
    """What a TypeScript module exports, and the members of its exported interfaces."""
    yield from re.findall(
        r"^export (?:default )?(?:async )?(?:function|const|class|interface|type) (\w+)", text, re.MULTILINE
    )
    for members in re.findall(r"^export interface [^{]+\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^  (?:readonly )?(\w+)\??[:(<]", members, re.MULTILINE)


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*", name)}


def defined_names(path: Path) -> Iterator[tuple[int, str]]:
    """Each name that a module defines: classes, functions, parameters, variables and attributes; no stable fields."""
    nodes = list(ast.walk(syntax_tree(path)))
    bodies = [node.body for node in nodes if isinstance(node, ast.ClassDef)]
    fields = {statement.target for body in bodies for statement in body if isinstance(statement, ast.AnnAssign)}
    for node in nodes:
        match node:
            case ast.Name(id=name) if node in fields and name in STABLE_NAMES:
                pass
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
