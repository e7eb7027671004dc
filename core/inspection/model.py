"""The result of an inspection: tensors, values, and the location of their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

# Limits of the values shown for a checkpoint (learning rates, epochs): their number, and the length of each as text.
VALUE_LIMIT: Final = 500
TEXT_LIMIT: Final = 300
NAME_LIMIT: Final = 1_000
# The largest published models, of hundreds of experts, have some 90,000 in all their files together.
TENSOR_LIMIT: Final = 100_000
# Dimensions, their product and its bytes all fit into 64 bits.
ELEMENT_LIMIT: Final = 2**59
CHUNK_BYTES: Final = 2 * 2**20

# Bytes of one element, by torch's dtype names, for all formats.
ITEM_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}


class Unreadable(Exception):
    """A checkpoint or tensor cannot be inspected. ``sentence`` says why, for users."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class ElementSource(Protocol):
    """The bytes of a tensor's elements."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes once, in element order, a few MiB at a time.

        Raises:
            Unreadable: the file is truncated or gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """``dtype``: a key of ``ITEM_BYTES``, or any other name for an undecodable type.

    ``data`` is ``None`` if the elements cannot be read; ``note`` then says why. ``repeats``: how often each element of
    ``data`` counts, in a tensor that is an expanded view of fewer. ``is_ordered``: whether ``data`` is in row-major
    order, and so comparable with another tensor's.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str = ""
    data: ElementSource | None = field(default=None, repr=False, compare=False)
    note: str = ""
    is_optimizer: bool = False
    is_big_endian: bool = False
    is_ordered: bool = True
    repeats: int = 1

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        item = ITEM_BYTES.get(self.dtype)
        return None if item is None else item * self.count


@dataclass(slots=True)
class CheckpointContents:
    """The contents of a checkpoint. ``values``: non-tensor values by path; ``notes``: sentences for users."""

    format: str
    tensors: list[Tensor] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, tensor: Tensor) -> None:
        if len(self.tensors) >= TENSOR_LIMIT:
            raise Unreadable(
                f"It holds more than {TENSOR_LIMIT:,} tensors, which are too many to list; look into its files one "
                "by one."
            )
        if max(tensor.shape, default=0) > ELEMENT_LIMIT or tensor.count > ELEMENT_LIMIT:
            raise Unreadable(f"It is damaged: {clip(tensor.name, 100)} has more elements than any file can hold.")
        self.tensors.append(tensor)

    def tell(self, path: str, value: Any) -> None:
        """Add a non-tensor value, up to the limit."""
        if len(self.values) >= VALUE_LIMIT:
            return
        if isinstance(value, str):
            value = clip(value, TEXT_LIMIT)
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
            value = clip(str(value) if abs(value) < 2**256 else f"an integer of {value.bit_length()} bits", TEXT_LIMIT)
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        self.values[clip(path, NAME_LIMIT)] = value

    def note(self, sentence: str) -> None:
        if sentence not in self.notes and len(self.notes) < 20:
            self.notes.append(clip(sentence, NAME_LIMIT))

    def take(self, other: CheckpointContents, prefix: str = "") -> None:
        """Add the contents of another file of the same checkpoint, names prefixed by ``prefix``."""
        for tensor in other.tensors:
            self.add(replace(tensor, name=clip(prefix + tensor.name, NAME_LIMIT)) if prefix else tensor)
        for path, value in other.values.items():
            self.tell(prefix + path, value)
        for sentence in other.notes:
            self.note(sentence)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, all of them printable in JSON and in a terminal."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
