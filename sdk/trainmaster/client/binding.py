"""Binds a function to a method of both clients.

A function that returns a call or a flow is bound once, in a class that both clients share::

    get_job = ClientMethod(calls.get_job)

On a ``Client`` the method returns the ``JobDetail``, on an ``AsyncClient`` an awaitable of it. Parameters, types and
docstring are those of the function.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from pydantic import ValidationError

from trainmaster.client.steps import Executable
from trainmaster.errors import FieldMistake, InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")


class Blocking(Protocol):
    """The interface of a blocking client that a method uses."""

    def run(self, steps: Executable[T]) -> T: ...
    def iterate(self, steps: Executable[None]) -> Iterator[Any]: ...


class Awaiting(Protocol):
    """The interface of an asynchronous client that a method uses."""

    async def run(self, steps: Executable[T]) -> T: ...
    def iterate(self, steps: Executable[None]) -> AsyncIterator[Any]: ...


class BlockingOwner(Protocol):
    @property
    def runner(self) -> Blocking: ...


class AwaitingOwner(Protocol):
    @property
    def runner(self) -> Awaiting: ...


def _invalid(error: ValidationError) -> InvalidRequest:
    """The error for arguments that any server would reject, in the form of the server's errors."""
    mistakes = [
        # The tags of a discriminated union are not part of the user's input.
        FieldMistake(
            ".".join(str(part) for part in item["loc"] if not str(part).startswith("kind=")),
            item["msg"].removeprefix("Value error, "),
        )
        for item in error.errors()
    ]
    return InvalidRequest("The request is invalid.", mistakes=mistakes)


class _Bound:
    """Base of all bound methods: the function, with its docstring for ``help()``."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def _wrap(self, run: Callable[[Any], Any], *first: Any) -> Callable[..., Any]:
        make = self._make

        @functools.wraps(make)
        def method(*args: Any, **kwargs: Any) -> Any:
            try:
                steps = make(*first, *args, **kwargs)
            except ValidationError as error:
                raise _invalid(error) from error
            return run(steps)

        return method


class ClientMethod(_Bound, Generic[P, T]):
    """A call or flow with one result."""

    def __init__(self, make: Callable[P, Executable[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, owner: BlockingOwner, kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: AwaitingOwner, kind: Any = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._wrap(owner.runner.run)


class IterMethod(_Bound, Generic[P, Item]):
    """A flow that emits ``Item`` values, as an iterator."""

    # `of` is for the type checker.
    def __init__(self, make: Callable[P, Executable[None]], of: type[Item]) -> None:  # noqa: ARG002
        super().__init__(make)

    @overload
    def __get__(self, owner: BlockingOwner, kind: Any = None) -> Callable[P, Iterator[Item]]: ...
    @overload
    def __get__(self, owner: AwaitingOwner, kind: Any = None) -> Callable[P, AsyncIterator[Item]]: ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._wrap(owner.runner.iterate)


class JobMethod(_Bound, Generic[P, T]):
    """A :class:`ClientMethod` of a job handle: the function's first parameter is the job."""

    def __init__(self, make: Callable[Concatenate[str, P], Executable[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, owner: BlockingOwner, kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: AwaitingOwner, kind: Any = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._wrap(owner.runner.run, owner.id)


class JobIterMethod(_Bound, Generic[P, Item]):
    """An :class:`IterMethod` of a job handle."""

    def __init__(self, make: Callable[Concatenate[str, P], Executable[None]], of: type[Item]) -> None:  # noqa: ARG002
        super().__init__(make)

    @overload
    def __get__(self, owner: BlockingOwner, kind: Any = None) -> Callable[P, Iterator[Item]]: ...
    @overload
    def __get__(self, owner: AwaitingOwner, kind: Any = None) -> Callable[P, AsyncIterator[Item]]: ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else self._wrap(owner.runner.iterate, owner.id)
