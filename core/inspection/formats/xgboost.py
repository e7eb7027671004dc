"""XGBoost's models: JSON and UBJSON. The trees are shown as one array per attribute over all trees."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from core.inspection.files import File, Inline
from core.inspection.model import CheckpointContents, Tensor, Unreadable

_JSON_LIMIT: Final = 48 * 2**20  # each 4-byte number becomes a 32-byte object
_DEPTH_LIMIT: Final = 64
_ITEM_LIMIT: Final = 20_000_000
_ARRAYS: Final = {
    "base_weights": "float32",
    "loss_changes": "float32",
    "sum_hessian": "float32",
    "split_conditions": "float32",
    "split_indices": "int32",
    "left_children": "int32",
    "right_children": "int32",
}
_FORMS: Final = {"float32": "f", "int32": "i"}


def open_xgboost(file: File) -> CheckpointContents:
    """Raises ``Unreadable``."""
    if file.size > _JSON_LIMIT:
        raise Unreadable(
            f"{file.name}: models of XGBoost of more than {_JSON_LIMIT // 2**20} MiB are not inspected: nothing in "
            "them says where a tree begins, so that all would have to be in memory at once, at ten times its size."
        )
    data = file.read(0, file.size)
    if data[:1] != b"{":
        raise Unreadable(f"{file.name} is no model of XGBoost in JSON or UBJSON; save it as .json or .ubj.")
    try:
        # UBJSON has a type marker or a length where JSON has a quote.
        model = json.loads(data) if data[1:].lstrip()[:1] in (b'"', b"}") else _Ubjson(data).read()
    except (ValueError, RecursionError, IndexError, struct.error) as error:
        raise Unreadable(f"{file.name} is cut short or damaged: it is no model of XGBoost.") from error
    try:
        return _inside(model)
    except (LookupError, TypeError, AttributeError, ValueError, struct.error, OverflowError) as error:
        raise Unreadable(f"{file.name} is JSON, but no model of XGBoost.") from error


def _inside(model: Any) -> CheckpointContents:
    learner = model["learner"]
    contents = CheckpointContents("xgboost")
    contents.tell("version", ".".join(str(part) for part in model.get("version", ())))
    parameters = learner.get("learner_model_param", {})
    for key in ("num_feature", "num_class", "num_target", "base_score"):
        if key in parameters:
            contents.tell(key, parameters[key])
    contents.tell("objective", learner.get("objective", {}).get("name"))
    names = learner.get("feature_names") or []
    if names:
        contents.tell("feature_names", ", ".join(str(name) for name in names))
    for key, value in learner.get("attributes", {}).items():
        contents.tell(f"attributes.{key}", value)
    booster = learner["gradient_booster"]
    contents.tell("booster", booster.get("name"))
    booster = booster.get("gbtree", booster)  # dart wraps one
    content = booster["model"]
    if "weights" in content:  # gblinear
        _add(contents, "weights", "float32", content["weights"])
        return contents
    trees = content["trees"]
    contents.tell("trees", len(trees))
    contents.tell("nodes", sum(len(tree["left_children"]) for tree in trees))
    for name, dtype in _ARRAYS.items():
        _add(contents, name, dtype, [value for tree in trees for value in tree.get(name, ())])
    return contents


def _add(contents: CheckpointContents, name: str, dtype: str, values: Any) -> None:
    data = struct.pack(f"<{len(values)}{_FORMS[dtype]}", *values)
    contents.add(Tensor(name, (len(values),), dtype, data=Inline(data)))


class _Ubjson:
    """The subset of https://ubjson.org that XGBoost writes."""

    _NUMBERS: Final = {
        b"i": ">b", b"U": ">B", b"I": ">h", b"l": ">i", b"L": ">q", b"d": ">f", b"D": ">d",
    }  # fmt: skip

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._items = 0

    def read(self) -> Any:
        return self._value(self._take(1), 0)

    def _take(self, length: int) -> bytes:
        if length < 0 or self._at + length > len(self._data):
            raise ValueError("cut short")
        self._at += length
        return self._data[self._at - length : self._at]

    def _value(self, kind: bytes, depth: int) -> Any:
        self._items += 1
        if depth > _DEPTH_LIMIT or self._items > _ITEM_LIMIT:
            raise ValueError("too deep or too long")
        if kind in self._NUMBERS:
            return self._number(kind)
        match kind:
            case b"S":
                return self._text()
            case b"C":
                return self._take(1).decode("latin-1")
            case b"T" | b"F":
                return kind == b"T"
            case b"Z":
                return None
            case b"{":
                return self._object(depth)
            case b"[":
                return self._array(depth)
            case _:
                raise ValueError("an unknown type")

    def _number(self, kind: bytes) -> Any:
        form = self._NUMBERS[kind]
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _length(self) -> int:
        kind = self._take(1)
        if kind not in (b"i", b"U", b"I", b"l", b"L"):
            raise ValueError("a length that is none")
        return int(self._number(kind))

    def _text(self) -> str:
        return self._take(self._length()).decode("utf-8", "replace")

    def _head(self) -> tuple[bytes | None, int | None]:
        kind = count = None
        if self._data[self._at : self._at + 1] == b"$":
            self._at += 1
            kind = self._take(1)
        if self._data[self._at : self._at + 1] == b"#":
            self._at += 1
            count = self._length()
        return kind, count

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._head()
        if count is not None:
            if kind is not None and kind in self._NUMBERS:
                form = self._NUMBERS[kind]
                data = self._take(count * struct.calcsize(form))
                return list(struct.unpack(f">{count}{form[1]}", data))
            return [self._value(kind or self._take(1), depth + 1) for _ in range(count)]
        found = []
        while (kind := self._take(1)) != b"]":
            found.append(self._value(kind, depth + 1))
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count = self._head()
        found: dict[str, Any] = {}
        if count is not None:
            for _ in range(count):
                key = self._text()
                found[key] = self._value(kind or self._take(1), depth + 1)
            return found
        while self._data[self._at : self._at + 1] != b"}":
            key = self._text()
            found[key] = self._value(self._take(1), depth + 1)
        self._at += 1
        return found
