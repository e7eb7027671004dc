"""Entries of the mapping table: validation, documents, and the stored form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pydantic import TypeAdapter, ValidationError
from trainmaster.spec.errors import FieldError, suggest
from trainmaster.spec.fields import ByteQuantity, CpuQuantity, GpuModels, Image, LabelKey, LabelValue, kind_of, quoted

from core.domain.errors import InvalidRequest

Section = Literal["machines", "accelerators", "images", "locations", "projects", "buckets", "serving_images"]
SECTIONS: Final[tuple[Section, ...]] = get_args(Section)
SWITCH: Final = "trusts_pickles"
# stored: by an administrator, while the platform runs; environment: TRAINMASTER_VERTEX; platform: as plain processes
# need it.
Source = Literal["stored", "environment", "platform"]
_ENTRIES: Final = 2_000
_NAME: Final = 300
_MACHINE: Final = ("cpu", "memory", "shm", "node_selector")
_READERS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "cpu": TypeAdapter(CpuQuantity),
    "memory": TypeAdapter(ByteQuantity),
    "shm": TypeAdapter(ByteQuantity),
    "models": TypeAdapter(GpuModels),
    "labels": TypeAdapter(dict[LabelKey, LabelValue]),
    "image": TypeAdapter(Image),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """``name``: Google's name, or a pattern; empty for a switch. ``value``: plain data, as in ``document_of``."""

    section: str
    name: str
    value: Any
    source: Source = "stored"

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.name else self.section


def read_entries(document: Any, source: Source = "stored") -> tuple[list[Entry], list[InvalidRequest]]:
    """The valid entries of a document, and an error for each invalid one, with the entry's path as its field."""
    if not isinstance(document, Mapping):
        return [], [_wrong("", f"A table is a mapping of {', '.join(SECTIONS)} and {SWITCH}, not {kind_of(document)}.")]
    valid: list[Entry] = []
    wrong: list[InvalidRequest] = []
    for section, entries in document.items():
        if section in (*SECTIONS, SWITCH) and entries is None:
            continue  # a heading without entries, as in YAML with all lines commented out
        if section == SWITCH:
            if isinstance(entries, bool):
                valid.append(Entry(SWITCH, "", entries, source))
            else:
                wrong.append(_wrong(SWITCH, f"{SWITCH} is true or false, not {quoted(entries)}."))
        elif section not in SECTIONS:
            wrong.append(_unknown(str(section), (*SECTIONS, SWITCH), f"There is no {quoted(section)} in the table"))
        elif not isinstance(entries, Mapping):
            wrong.append(
                _wrong(section, f"{section} is a mapping from names to what they are here, not {quoted(entries)}.")
            )
        else:
            for name, value in entries.items():
                entry = _read(section, name, value, source, wrong)
                if entry is not None:
                    valid.append(entry)
    if len(valid) > _ENTRIES:
        wrong.append(
            _wrong("", f"A table has at most {_ENTRIES} entries, not {len(valid)}; patterns such as n1-* save many.")
        )
    return valid, wrong


def document_of(entries: Iterable[Entry]) -> dict[str, Any]:
    """The entries as a document for :func:`read_entries`."""
    sections: dict[str, Any] = {}
    for entry in entries:
        if entry.name:
            sections.setdefault(entry.section, {})[entry.name] = entry.value
        else:
            sections[entry.section] = entry.value
    return {section: sections[section] for section in (*SECTIONS, SWITCH) if section in sections}


def stored_rows(entries: Iterable[Entry]) -> list[Any]:
    """The stored form: a list, since its order matters."""
    return [[entry.section, entry.name, entry.value] for entry in entries]


def read_stored_rows(rows: Sequence[Any]) -> tuple[list[Entry], list[InvalidRequest]]:
    """What :func:`stored_rows` made, maybe in another version; what this version cannot read is skipped and
    reported.
    """
    entries: list[Entry] = []
    wrong: list[InvalidRequest] = []
    for line in rows:
        if not isinstance(line, list) or len(line) != 3:
            wrong.append(_wrong("", "A stored line is not an entry of a table."))
            continue
        section, name, value = line
        read, mistakes = read_entries({section: {name: value} if name else value})
        entries += read
        wrong += mistakes
    return entries, wrong


def _read(section: str, name: Any, value: Any, source: Source, wrong: list[InvalidRequest]) -> Entry | None:
    """``None`` for an invalid entry; then ``wrong`` has the reason."""
    before = len(wrong)
    if not isinstance(name, str):
        wrong.append(_wrong(section, f"{section}: {quoted(name)} is {kind_of(name)}; put names in quotes."))
        return None
    path = f"{section}.{name[:_NAME]}"
    if not name or len(name) > _NAME or any(character.isspace() or not character.isprintable() for character in name):
        wrong.append(_wrong(path, f"{section}: {quoted(name)} is no name: 1 to {_NAME} characters without blanks."))
        return None
    reader: Callable[[str, Any, list[InvalidRequest]], None] = {
        "machines": _check_machine,
        "accelerators": _check_models,
        "images": _check_image,
        "serving_images": _check_image,
        "locations": _check_labels,
    }.get(section, _check_name)
    reader(path, value, wrong)
    if len(wrong) > before:
        return None
    return Entry(section, name, _plain(section, value), source)


def _plain(section: str, value: Any) -> Any:
    """The canonical form of a valid ``value``."""
    if section == "accelerators" and isinstance(value, str):
        return [value]
    if section == "locations":
        return _READERS["labels"].validate_python(value)
    if section == "machines" and value:
        machine = {field: amount for field, amount in value.items() if amount is not None}
        if "node_selector" in machine:
            machine["node_selector"] = _READERS["labels"].validate_python(machine["node_selector"])
        return machine
    return value


def _check_machine(path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    if value is None:  # as built in
        return
    if not isinstance(value, Mapping):
        text = (
            f"{path} is what one replica asks for, such as {{cpu: 4, memory: 16Gi}}, or null for Google's own "
            f"size, not {quoted(value)}."
        )
        wrong.append(_wrong(path, text))
        return
    for field, amount in value.items():
        where = f"{path}.{field}"
        if field in ("gpus", "gpu_type"):
            text = (
                f"{where}: GPUs are asked for by accelerator_type and accelerator_count; say under accelerators "
                "which of yours count."
            )
            wrong.append(_wrong(where, text))
        elif field not in _MACHINE:
            wrong.append(_unknown(where, _MACHINE, f"{path}: a machine has no {quoted(field)}", str(field)))
        elif amount is None:
            continue
        elif field == "node_selector":
            _check_labels(where, amount, wrong)
        else:
            _check(field, where, amount, wrong)


def _check_models(path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    if value is None:  # as built in
        return
    if isinstance(value, list | tuple):
        for index, model in enumerate(value):
            if not isinstance(model, str):
                where = f"{path}[{index}]"
                hint = (
                    f'; put it in quotes if a model is called so: "{model}"' if isinstance(model, int | float) else ""
                )
                text = f"{where} is the name of a GPU model, such as L4, not {kind_of(model)}{hint}."
                wrong.append(_wrong(where, text))
                return
        if value:
            _check("models", path, value, wrong)
    elif isinstance(value, str):
        _check("models", path, value, wrong)
    else:
        text = f"{path} is a list of GPU models, such as [L4, A10], or [] for any GPU, not {quoted(value)}."
        wrong.append(_wrong(path, text))


def _check_image(path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    if value is None:  # the platform's own
        return
    if isinstance(value, str) and any(character in value for character in "*?["):
        text = (
            f"{path}: {quoted(value)} is a pattern; patterns stand on the left, and on the right one image, or "
            "null for the platform's own."
        )
        wrong.append(_wrong(path, text))
        return
    _check("image", path, value, wrong)


def _check_labels(path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    if not isinstance(value, Mapping):
        wrong.append(_wrong(path, f"{path} is a mapping of node labels, such as {{pool: dgx}}, not {quoted(value)}."))
        return
    _check("labels", path, value, wrong)


def _check_name(path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    if not isinstance(value, str) or not value.strip() or len(value) > _NAME or not value.isprintable():
        wrong.append(_wrong(path, f"{path} is a name here, in quotes if it is a number, not {quoted(value)}."))


def _check(reader: str, path: str, value: Any, wrong: list[InvalidRequest]) -> None:
    try:
        _READERS[reader].validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = "".join(f".{part}" for part in first["loc"] if part != "[key]")
        cause = first.get("ctx", {}).get("error")
        message = str(cause) if isinstance(cause, FieldError) else str(first["msg"])
        wrong.append(_wrong(f"{path}{at}", f"{path}{at}: {message}."))


def _unknown(path: str, known: Sequence[str], sentence: str, name: str | None = None) -> InvalidRequest:
    suggestion = suggest(name or path, known)
    hint = f" Did you mean {suggestion}?" if suggestion else ""
    return _wrong(path, f"{sentence}; there are {', '.join(known)}.{hint}")


def _wrong(path: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, field=f"table.{path}" if path else "table")


def read_text(text: str) -> Any:
    """JSON without duplicate names. Raises ``ValueError``."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice} stands there twice")
        return fields

    return json.loads(text, object_pairs_hook=mapping)
