"""Runs a program as the interpreter's own start does: no Python frame is below it, and C code takes its end.

A parent is started as ``python -m <anything>`` and waits in its ``sitecustomize``, that is before the interpreter comes
to its main program. For that the interpreter's C code imports ``runpy``, takes ``_run_module_as_main`` of it and calls
that with two arguments (``pymain_run_module`` in CPython's Modules/main.c, the same from 3.8 to 3.14). A forked child
puts a :class:`_Door` in the place of ``runpy``. What it hands out must call the user's program without a Python
function between, or ``sys._getframe``, tracebacks and warnings would show it; and it is handed arguments that are not
the program's. So it is put together of what CPython has in C:

- calling :class:`_Start` looks up ``__call__``: a property, whose getter gets no arguments but the object;
- the getter, an ``operator.methodcaller``, makes a :class:`_Run` with the arguments that are right;
- the ``__init__`` of that is ``operator.setitem``, whose result is ignored, on an object whose ``__setitem__`` is
  ``exec``, or for ``-m`` the real ``runpy._run_module_as_main``;
- the :class:`_Run` is then called with the arguments that are not wanted, which means that the program came to its end.

Errors, ``SystemExit`` and ``KeyboardInterrupt`` go up to the interpreter's C code as they do from any program.
"""

from __future__ import annotations

import functools
import operator
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run_as_main(
    function: Callable[[Any, Any], object],
    first: object,
    second: object,
    *,
    first_path: str | None,
    finished: Callable[[], None],
) -> None:
    """Let the interpreter's main program be ``function(first, second)``, a C function or what a fresh Python calls
    itself.

    Args:
        first_path: its first entry of ``sys.path``; ``None``: the interpreter's own.
        finished: called when it has returned.
    """

    class _Target:
        __setitem__ = staticmethod(function)

    target: Any = _Target()
    # A static method: Python 3.14 would hand the object to a bare partial.
    call: Any = staticmethod(functools.partial(operator.setitem, target))

    class _Run:
        __init__ = call

        def __call__(self, *_: object) -> None:
            finished()

    class _Start:
        run = _Run
        __call__ = property(operator.methodcaller("run", first, second))

    class _Door(types.ModuleType):
        @property
        def _run_module_as_main(self) -> _Start:
            sys.modules.pop("runpy")
            if real is not None:
                sys.modules["runpy"] = real
            if first_path is not None and not getattr(sys.flags, "safe_path", False):
                sys.path[0] = first_path
            return _Start()

    real = sys.modules.get("runpy") if function is not exec else None
    sys.modules["runpy"] = _Door("runpy")
