"""What a look into a checkpoint gives: tensors, values, and where their bytes lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

# Values of one checkpoint that are shown (learning rates, epochs), and the length of each as a text.
VALUE_LIMIT: Final = 500
TEXT_LIMIT: Final = 300
NAME_LIMIT: Final = 1_000
# The largest models that are published, of hundreds of experts, have some 90,000 in all their files together.
TENSOR_LIMIT: Final = 100_000
# Numbers of a shape, their product and its bytes all fit into 64 bits.
ELEMENT_LIMIT: Final = 2**59
CHUNK_BYTES: Final = 2 * 2**20

# Bytes of one element. Names as torch writes them, the same for all formats.
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
    """A checkpoint, or a tensor of it, cannot be looked into. ``sentence`` says why, for people."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class ElementSource(Protocol):
    """The bytes of a tensor's elements."""

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All of them once, in the order of the elements, a few MiB at a time.

        Raises:
            Unreadable: the file ends before, or is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """``dtype``: a key of ``ITEM_BYTES``, or any other word for what cannot be decoded.

    ``data`` is ``None`` where the elements cannot be read; ``note`` then says why. ``repeats``: how often each element of
    ``data`` counts, in a tensor that is an expanded view of fewer. ``is_ordered``: whether ``data`` gives the elements in
    row-major order, so that they can be compared with another tensor's.
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
        """Elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        item = ITEM_BYTES.get(self.dtype)
        return None if item is None else item * self.count


@dataclass(slots=True)
class CheckpointContents:
    """All that is in a checkpoint. ``values``: what is no tensor, by its path; ``notes``: sentences for people."""

    format: str
    tensors: list[Tensor] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, tensor: Tensor) -> None:
        if len(self.tensors) >= TENSOR_LIMIT:
            raise Unreadable(
                f"It holds more than {TENSOR_LIMIT:,} tensors, which are too many to list; look into its files one by one."
            )
        if max(tensor.shape, default=0) > ELEMENT_LIMIT or tensor.count > ELEMENT_LIMIT:
            raise Unreadable(f"It is damaged: {clip(tensor.name, 100)} has more elements than any file can hold.")
        self.tensors.append(tensor)

    def tell(self, path: str, value: Any) -> None:
        """Keep a value that is no tensor, as far as there is room."""
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
        """Add what another file of the same checkpoint holds; ``prefix`` goes before its names."""
        for tensor in other.tensors:
            self.add(renamed(tensor, prefix + tensor.name) if prefix else tensor)
        for path, value in other.values.items():
            self.tell(prefix + path, value)
        for sentence in other.notes:
            self.note(sentence)


def renamed(tensor: Tensor, name: str) -> Tensor:
    from dataclasses import replace

    return replace(tensor, name=clip(name, NAME_LIMIT))


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, all of which JSON and a terminal can show."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
