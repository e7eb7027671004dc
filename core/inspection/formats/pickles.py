"""Pickles as a tree of symbols: nothing that they name is imported or called.

A pickle is a program for a small stack machine. This is that machine without side effects: ``GLOBAL`` pushes the name
instead of the object, ``REDUCE`` pushes a record of the call instead of making it. The output is plain data for any
input. The opcodes are those of Python's :mod:`pickletools`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from core.inspection.model import Unreadable

# Size limit of one pickle. That of a model with 100,000 tensors has some 30 MB.
PICKLE_LIMIT: Final = 128 * 2**20
# Limit of opcodes, two seconds' work. A checkpoint of torch has some 40 for each tensor.
_OPERATION_LIMIT: Final = 5_000_000
_INTEGER_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A class or function named by the pickle."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Pairs:
    """A dict as a list of pairs, since its keys may be unhashable."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """The last value of a text as key; ``None`` where it has none."""
        return next((value for own, value in reversed(self.items) if own == key and isinstance(own, str)), None)

    def __contains__(self, key: str) -> bool:
        return any(own == key for own, _ in self.items if isinstance(own, str))


@dataclass(slots=True, eq=False)
class UnmadeCall:
    """A recorded call, with what would have been added to its result afterwards."""

    what: Any
    arguments: Any
    state: Any = None
    pairs: Pairs = field(default_factory=Pairs)
    items: list[Any] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """``module.name`` of the callee; empty if it is no plain name."""
        return str(self.what) if isinstance(self.what, GlobalName) else ""


@dataclass(slots=True, eq=False)
class PersistentId:
    """A reference to data outside the pickle, such as a storage of torch."""

    key: Any


class _Mark:
    pass


class PickleStream(Protocol):
    """The binary file that the pickle is read from."""

    def read(self, size: int = -1, /) -> bytes: ...
    def readline(self, limit: int = -1, /) -> bytes: ...


_MARK: Final = _Mark()
_LINE_BYTES: Final = 2**16


def read_pickle(source: PickleStream, *, limit: int = PICKLE_LIMIT) -> Any:
    """The tree of the pickle that begins here; ``source`` is then positioned after it.

    Leaves are None, bool, int, float, str, bytes; nodes are list, tuple, frozenset-like lists, and the classes above.
    The tree may be cyclic or share nodes: a walk over it must bound its steps.

    Raises:
        Unreadable: it is no pickle, truncated, or larger than ``limit``.
    """
    try:
        return _Machine(source, limit).run()
    except (struct.error, UnicodeDecodeError, IndexError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise Unreadable("Its pickle is damaged.") from error


Handler: TypeAlias = "Callable[[_Machine], None]"


class _Machine:
    def __init__(self, source: PickleStream, limit: int) -> None:
        self.source = source
        self.left = limit
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        handlers = _HANDLERS
        read = self.source.read
        for _ in range(_OPERATION_LIMIT):
            code = read(1)
            if code == b".":
                return self.stack[-1]
            handler = handlers.get(code)
            if handler is None:
                raise Unreadable("Its pickle is damaged." if code else "Its pickle is cut short.")
            self.left -= 1
            handler(self)
        raise Unreadable("Its pickle has too many steps to be inspected.")

    def take(self, length: int) -> bytes:
        self.left -= length
        if length < 0 or self.left < 0:
            raise Unreadable("Its pickle is too large to be inspected.")
        data = self.source.read(length)
        if len(data) != length:
            raise Unreadable("Its pickle is cut short.")
        return data

    def line(self) -> str:
        data = self.source.readline(_LINE_BYTES)
        self.left -= len(data)
        if not data.endswith(b"\n"):
            raise Unreadable("Its pickle is cut short.")
        return data[:-1].decode("utf-8", "replace").rstrip("\r")

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value is wanted")
        return value

    def pop_mark(self) -> list[Any]:
        stack = self.stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise ValueError("no mark")

    def top(self) -> Any:
        value = self.stack[-1]
        if value is _MARK:
            raise ValueError("a mark where a value is wanted")
        return value

    def remember(self, place: int) -> None:
        self.memo[place] = self.top()


def _push(make: Callable[[_Machine], Any]) -> Handler:
    def handle(machine: _Machine) -> None:
        machine.stack.append(make(machine))

    return handle


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _long(machine: _Machine, form: str) -> int:
    length = machine.number(form)
    if not 0 <= length <= _INTEGER_BYTES:
        raise Unreadable("Its pickle holds an integer of too many digits.")
    return _integer(machine.take(length))


def _line_integer(machine: _Machine) -> Any:
    text = machine.line().rstrip("L")
    if text in ("00", "01"):
        return text == "01"
    if len(text) > _INTEGER_BYTES:
        raise Unreadable("Its pickle holds an integer of too many digits.")
    return int(text)


def _line_text(machine: _Machine) -> str:
    return machine.line().strip("'\"")


def _set_items(target: Any, pairs: list[tuple[Any, Any]]) -> None:
    if isinstance(target, UnmadeCall):
        target = target.pairs
    if not isinstance(target, Pairs):
        raise TypeError("items of what is no dict")
    target.items.extend(pairs)


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, UnmadeCall):
        target = target.items
    if not isinstance(target, list):
        raise TypeError("items of what is no list")
    target.extend(items)


def _dict(machine: _Machine) -> None:
    items = machine.pop_mark()
    machine.stack.append(Pairs(list(zip(items[::2], items[1::2], strict=True))))


def _setitem(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _set_items(machine.top(), [(key, value)])


def _setitems(machine: _Machine) -> None:
    items = machine.pop_mark()
    _set_items(machine.top(), list(zip(items[::2], items[1::2], strict=True)))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    _extend(machine.top(), [value])


def _appends(machine: _Machine) -> None:
    items = machine.pop_mark()
    _extend(machine.top(), items)


def _call(machine: _Machine) -> None:
    arguments, what = machine.pop(), machine.pop()
    machine.stack.append(UnmadeCall(what, arguments))


def _call_with_names(machine: _Machine) -> None:
    names, arguments, what = machine.pop(), machine.pop(), machine.pop()
    machine.stack.append(UnmadeCall(what, arguments, pairs=names if isinstance(names, Pairs) else Pairs()))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.top()
    if isinstance(target, UnmadeCall):
        target.state = state


def _object(machine: _Machine) -> None:
    items = machine.pop_mark()
    machine.stack.append(UnmadeCall(items[0], tuple(items[1:])))


def _instance(machine: _Machine) -> None:
    named = GlobalName(machine.line(), machine.line())
    machine.stack.append(UnmadeCall(named, tuple(machine.pop_mark())))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.stack.append(GlobalName(str(module)[:500], str(name)[:500]))


def _tuple_of(count: int) -> Handler:
    def handle(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return handle


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _nothing(machine: _Machine) -> None:
    pass


_HANDLERS: Final[dict[bytes, Handler]] = {
    b"(": _push(lambda _m: _MARK),
    b"0": _pop,
    b"1": lambda m: _ignore(m.pop_mark()),
    b"2": _push(lambda m: m.top()),
    b"N": _push(lambda _m: None),
    b"\x88": _push(lambda _m: True),
    b"\x89": _push(lambda _m: False),
    b"I": _push(_line_integer),
    b"L": _push(_line_integer),
    b"J": _push(lambda m: m.number("<i")),
    b"K": _push(lambda m: m.number("<B")),
    b"M": _push(lambda m: m.number("<H")),
    b"\x8a": _push(lambda m: _long(m, "<B")),
    b"\x8b": _push(lambda m: _long(m, "<i")),
    b"F": _push(lambda m: float(m.line())),
    b"G": _push(lambda m: m.number(">d")),
    b"S": _push(_line_text),
    b"T": _push(lambda m: m.take(m.number("<i")).decode("latin-1")),
    b"U": _push(lambda m: m.take(m.number("<B")).decode("latin-1")),
    b"V": _push(lambda m: m.line()),
    b"X": _push(lambda m: m.take(m.number("<I")).decode("utf-8", "replace")),
    b"\x8c": _push(lambda m: m.take(m.number("<B")).decode("utf-8", "replace")),
    b"\x8d": _push(lambda m: m.take(m.number("<Q")).decode("utf-8", "replace")),
    b"B": _push(lambda m: m.take(m.number("<I"))),
    b"C": _push(lambda m: m.take(m.number("<B"))),
    b"\x8e": _push(lambda m: m.take(m.number("<Q"))),
    b"\x96": _push(lambda m: m.take(m.number("<Q"))),
    b"]": _push(lambda _m: []),
    b"}": _push(lambda _m: Pairs()),
    b")": _push(lambda _m: ()),
    b"\x8f": _push(lambda _m: []),  # a set, as a list: its items may be unhashable
    b"l": _push(lambda m: m.pop_mark()),
    b"t": _push(lambda m: tuple(m.pop_mark())),
    b"\x91": _push(lambda m: m.pop_mark()),
    b"d": _dict,
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"a": _append,
    b"e": _appends,
    b"\x90": _appends,
    b"s": _setitem,
    b"u": _setitems,
    b"p": lambda m: m.remember(int(m.line())),
    b"q": lambda m: m.remember(m.number("<B")),
    b"r": lambda m: m.remember(m.number("<I")),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"g": _push(lambda m: m.memo[int(m.line())]),
    b"h": _push(lambda m: m.memo[m.number("<B")]),
    b"j": _push(lambda m: m.memo[m.number("<I")]),
    b"c": _push(lambda m: GlobalName(m.line(), m.line())),
    b"\x93": _stack_global,
    b"R": _call,
    b"\x81": _call,
    b"\x92": _call_with_names,
    b"b": _build,
    b"o": _object,
    b"i": _instance,
    b"P": _push(lambda m: PersistentId(m.line())),
    b"Q": _push(lambda m: PersistentId(m.pop())),
    b"\x80": lambda m: _ignore(m.take(1)),
    b"\x95": lambda m: _ignore(m.take(8)),
    b"\x97": _push(lambda _m: b""),  # an out-of-band buffer
    b"\x98": _nothing,
    b"\x82": _push(lambda m: GlobalName("copyreg", str(m.number("<B")))),
    b"\x83": _push(lambda m: GlobalName("copyreg", str(m.number("<H")))),
    b"\x84": _push(lambda m: GlobalName("copyreg", str(m.number("<i")))),
}


def _ignore(_value: object) -> None:
    pass
