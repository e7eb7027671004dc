"""Reads YAML or JSON text into plain data, within size limits and without YAML 1.1's implicit types.

Text is read as YAML 1.2 (core schema), of which JSON is a subset: only ``true`` and ``false`` are booleans, so ``on``,
``no`` and ``12:30`` stay text. Merge keys (``<<``) and anchors work; their expansion is counted, so that a few lines
cannot grow into gigabytes ("billion laughs"). Duplicate keys are mistakes: one of the two would be lost silently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from trainmaster.spec.errors import SpecError, SpecMistake, join_path
from trainmaster.spec.quantity import WrittenFloat, WrittenInt

# A spec is about a page of text. The largest real ones (an env and args of thousands of entries) are far below.
MAX_TEXT_BYTES: Final = 1_048_576
MAX_DEPTH: Final = 32
MAX_NODES: Final = 100_000
_MAX_MISTAKES: Final = 100

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INT: Final = re.compile(r"[-+]?[0-9]{1,4000}")
_OCTAL: Final = re.compile(r"0o[0-7]{1,4000}")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,4000}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MERGE: Final = "<<"
_STR_TAG: Final = "tag:yaml.org,2002:str"
_CORE_TAGS: Final = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "map", "seq")}

# Characters that YAML forbids: control characters except tab and line ends, and lone surrogates.
_FORBIDDEN_CHARACTERS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")

# libyaml where it is installed: about ten times as fast. Both parsers are state machines: nesting uses no stack.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(text: str | bytes) -> Any:
    """The content of ``text`` (YAML or JSON, at most 1 MiB): dicts, lists, strings, numbers, bools and ``None``.

    Raises:
        SpecError: not YAML, too large, too deep, duplicate keys and similar errors, with line and column.
    """
    checked = _checked(text)
    if checked.lstrip().startswith("{"):
        try:
            return _read_json(checked)
        except json.JSONDecodeError:
            pass  # YAML's flow mappings start with a brace, too; the YAML reader reports the error
    return _Reader(checked).document()


def _read_json(text: str) -> Any:
    r"""Parses JSON with ``json``: YAML readers do not decode surrogate pairs (``\\ud83d\\ude00``) that JSON writers
    emit.

    Raises ``json.JSONDecodeError`` when the text is not JSON.
    """
    mistakes: list[SpecMistake] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                mistakes.append(
                    SpecMistake(join_path((key,)), "is written twice; one of the two would be lost", "remove one")
                )
            result[key] = value
        return result

    try:
        value = json.loads(
            text,
            object_pairs_hook=mapping,
            parse_int=plain_scalar,
            parse_float=plain_scalar,
        )
    except RecursionError:
        raise _refusal(f"nested deeper than {MAX_DEPTH} levels") from None
    if mistakes:
        raise SpecError(mistakes[:_MAX_MISTAKES])
    return value


def _checked(text: str | bytes) -> str:
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise _refusal(f"not text: byte {error.start + 1} is not UTF-8", "save the file as UTF-8") from None
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise _refusal(
            "larger than 1 MiB", "put data and code into files, and name them by `code`, `input` or `mounts`"
        )
    invalid = _FORBIDDEN_CHARACTERS.search(text)
    if invalid:
        where = f"line {_line(text, invalid.start())}"
        if invalid[0] < " ":
            raise _refusal(f"{where}: contains a control character (code {ord(invalid[0])})", "remove it")
        raise _refusal(f"{where}: contains half a character (a lone surrogate)", "save the file as UTF-8")
    return text


def _line(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _refusal(message: str, hint: str | None = None) -> SpecError:
    return SpecError([SpecMistake("", message, hint)])


def _at(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


@dataclass
class _Built:
    """A value with its number of nodes after expansion, and its depth."""

    value: Any
    nodes: int = 1
    depth: int = 0


@dataclass
class _Reader:
    """Builds the value from the parser's events; ``MAX_DEPTH`` bounds the recursion."""

    text: str
    mistakes: list[SpecMistake] = field(default_factory=list)
    anchors: dict[str, _Built | None] = field(default_factory=dict)  # None: not complete yet
    events: Iterator[Any] = field(init=False)
    event_count: int = 0
    node_count: int = 0

    def document(self) -> Any:
        self.events = yaml.parse(self.text, Loader=_Loader)
        try:
            self._next()  # stream start
            if isinstance(self._next(), yaml.StreamEndEvent):
                raise _refusal("is empty", "write at least `name:` and `command:`")
            value = self._node(self._next(), (), 0).value
            self._next()  # document end
            after = self._next()
            if not isinstance(after, yaml.StreamEndEvent):
                raise _refusal(
                    f"{_at(after.start_mark)}a second document begins here; a file holds one job",
                    "remove the `---`, or write one file per job",
                )
        except yaml.YAMLError as error:
            raise SpecError([_syntax_mistake(error)]) from None
        if self.mistakes:
            raise SpecError(self.mistakes)
        return value

    def _next(self) -> Any:
        self.event_count += 1
        if self.event_count > 3 * MAX_NODES:
            raise _too_many()
        return next(self.events)

    def _node(self, event: Any, path: tuple[str | int, ...], depth: int) -> _Built:
        if depth > MAX_DEPTH:
            raise _refusal(f"{_at(event.start_mark)}nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            built = _Built(self._scalar(event, path))
        else:
            if event.tag is not None and event.tag not in _CORE_TAGS and event.tag != "!":
                self._mistake(event, path, f"the tag {_tag(event.tag)} is not supported here", "remove it")
            is_list = isinstance(event, yaml.SequenceStartEvent)
            built = self._sequence(path, depth) if is_list else self._mapping(path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = built
        self._count(1)
        return built

    def _alias(self, event: yaml.AliasEvent, path: tuple[str | int, ...], depth: int) -> _Built:
        known = event.anchor in self.anchors
        built = self.anchors.get(str(event.anchor))
        if built is None:
            why = "contains itself" if known else "is not defined before its use"
            self._mistake(event, path, f"the anchor *{event.anchor} {why}")
            return _Built(None)
        if depth + built.depth > MAX_DEPTH:
            raise _refusal(f"{_at(event.start_mark)}nested deeper than {MAX_DEPTH} levels")
        self._count(built.nodes)
        return built

    def _count(self, nodes: int) -> None:
        self.node_count += nodes
        if self.node_count > MAX_NODES:
            raise _too_many()

    def _sequence(self, path: tuple[str | int, ...], depth: int) -> _Built:
        items: list[Any] = []
        sequence = _Built(items)
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            built = self._node(event, (*path, len(items)), depth + 1)
            items.append(built.value)
            sequence.nodes += built.nodes
            sequence.depth = max(sequence.depth, built.depth + 1)
        return sequence

    def _mapping(self, path: tuple[str | int, ...], depth: int) -> _Built:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        built_mapping = _Built(mapping)
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, path, depth)
            built = self._node(self._next(), (*path, key if key is not None else "?"), depth + 1)
            built_mapping.nodes += built.nodes + 1
            built_mapping.depth = max(built_mapping.depth, built.depth + 1)
            if key == _MERGE and event.implicit[0]:
                self._merge(event, path, built.value, merged)
            elif key in mapping:
                self._mistake(event, (*path, key), "is written twice; one of the two would be lost", "remove one")
            elif key is not None:
                mapping[key] = built.value
        for key, value in merged.items():
            mapping.setdefault(key, value)
        return built_mapping

    def _key(self, event: Any, path: tuple[str | int, ...], depth: int) -> str | None:
        """The key as text; ``None``, with a mistake added, when the key is not text."""
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                self.anchors[event.anchor] = _Built(event.value)
            self._count(1)
            if event.implicit[0] and event.value in _NULL:
                self._mistake(event, path, "a key is empty", "write `name: value`")
                return None
            # Numbers and bools count as the text that was written: env and labels have such keys.
            return event.value
        built = self._node(event, path, depth + 1)
        if isinstance(built.value, str) and isinstance(event, yaml.AliasEvent):
            return built.value
        self._mistake(event, path, "a key must be text, not a list or a mapping", "quote it if braces are part of it")
        return None

    def _merge(self, event: Any, path: tuple[str | int, ...], value: Any, merged: dict[str, Any]) -> None:
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                self._mistake(
                    event, path, "`<<` merges only mappings", "write `<<: *anchor`, where anchor is a mapping"
                )
                return
            for key, item in source.items():
                merged.setdefault(key, item)

    def _scalar(self, event: yaml.ScalarEvent, path: tuple[str | int, ...]) -> Any:
        if event.implicit[1] or event.tag in {_STR_TAG, "!"}:
            return event.value
        if event.tag is not None and event.tag not in _CORE_TAGS:
            self._mistake(event, path, f"the tag {_tag(event.tag)} is not supported here", "remove it")
            return None
        return plain_scalar(event.value)

    def _mistake(self, event: Any, path: tuple[str | int, ...], message: str, hint: str | None = None) -> None:
        self.mistakes.append(SpecMistake(join_path(path), f"{_at(event.start_mark)}{message}", hint))
        if len(self.mistakes) >= _MAX_MISTAKES:
            raise SpecError(self.mistakes)


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar, by the core schema of YAML 1.2 (yaml.org/spec/1.2.2, section 10.3)."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return WrittenInt(int(text), text)
    if _OCTAL.fullmatch(text):
        return WrittenInt(int(text, 0), text)
    if _HEX.fullmatch(text):
        return WrittenInt(int(text, 0), text)
    if _FLOAT.fullmatch(text):
        return WrittenFloat(float(text), text)
    special = _SPECIAL_FLOAT.fullmatch(text)
    if special:
        number = math.nan if special[3] else math.inf
        return WrittenFloat(-number if special[1] == "-" else number, text)
    return text


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:60]


def _too_many() -> SpecError:
    return _refusal(f"more than {MAX_NODES} values, counting anchors each time they are used")


def _syntax_mistake(error: yaml.YAMLError) -> SpecMistake:
    """The parser's error with its position, and the usual causes."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return SpecMistake("", "not YAML: it contains a character that YAML forbids")
    mark = error.problem_mark or error.context_mark
    problem = (error.problem or "this is not YAML").strip()
    hint = (
        "indent the fields of a mapping equally, and quote text that contains `: `, `#`, `{` or starts with `*`, `&`, "
        "`%`, `@`"
    )
    if "tab character" in problem or "'\\t'" in problem:
        hint = "indent with spaces; YAML allows no tabs"
    start = error.context_mark
    if error.context and start is not None and error.problem_mark is not None:
        problem = f"{problem}, {error.context} from line {start.line + 1}, column {start.column + 1}"
    return SpecMistake("", f"{_at(mark)}not YAML: {problem}", hint)
