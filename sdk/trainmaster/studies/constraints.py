"""Constraints: comparisons of parameters, such as ``layers * width <= 1024``. Interpreted here, never by ``eval``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.spec.errors import FieldError

_MAX_CHARS: Final = 500
_MAX_NODES: Final = 100
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    # Powers as floats: a power of integers may have more digits than fit into memory.
    ast.Pow: lambda left, right: float(left) ** float(right),
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"min": min, "max": max, "abs": abs}
_HINT: Final = "write a comparison like layers * width <= 1024"


@dataclass(frozen=True, slots=True)
class Constraint:
    """``names``: the parameters that occur in it."""

    text: str
    names: frozenset[str]
    _tree: ast.expr

    def holds(self, parameters: Mapping[str, Any]) -> bool:
        """Whether ``parameters`` satisfy it; also true if a trial has not all of its parameters."""
        if not self.names <= parameters.keys():
            return True
        try:
            return bool(_value(self._tree, parameters))
        except (ArithmeticError, TypeError, ValueError):  # 1 / 0, a complex power, text compared with a number
            return False


def parse_constraint(text: str) -> Constraint:
    """Raises ``FieldError``: not a comparison of arithmetic expressions over names and numbers."""
    if len(text) > _MAX_CHARS:
        raise FieldError(f"is longer than {_MAX_CHARS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FieldError(f"{text!r} is not an expression", _HINT) from error
    nodes = list(ast.walk(tree))
    if len(nodes) > _MAX_NODES:
        raise FieldError("is too long to be checked for every trial", "split it into several constraints")
    if not isinstance(tree, ast.Compare | ast.BoolOp) and not (
        isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not)
    ):
        raise FieldError(f"{text!r} is not a comparison", _HINT)
    for node in nodes:
        _check_node(node, text)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)
    return Constraint(text, names, tree)


def _check_node(node: ast.AST, text: str) -> None:
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return
        case ast.Call():
            raise FieldError(f"{text!r} calls an unknown function", f"only {', '.join(sorted(_FUNCTIONS))} are known")
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            return
        case ast.Compare(ops=ops) if all(type(op) in _COMPARE for op in ops):
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not()) | ast.BoolOp() | ast.Name():
            return
        case ast.expr_context() | ast.operator() | ast.cmpop() | ast.unaryop() | ast.boolop():
            return
        case _:
            raise FieldError(f"{text!r} contains {type(node).__name__}, which constraints do not support", _HINT)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _number(_ARITHMETIC[type(op)](_number(_value(left, names)), _number(_value(right, names))))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(_value(operand, names))
            return -number if isinstance(op, ast.USub) else number
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, names) for value in values)
        case ast.BoolOp(values=values):
            return any(_value(value, names) for value in values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_value(argument, names) for argument in arguments))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            before = _value(left, names)
            for sign, comparator in zip(ops, comparators, strict=True):
                after = _value(comparator, names)
                if not _COMPARE[type(sign)](before, after):
                    return False
                before = after
            return True
    raise TypeError(f"{type(node).__name__} has no value")


def _number(value: Any) -> int | float:
    """Rejects text in arithmetic: repeated or formatted, it could fill the memory."""
    if not isinstance(value, int | float):
        raise TypeError("not a number")
    return value
