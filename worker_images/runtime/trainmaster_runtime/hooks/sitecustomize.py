# Read by whatever Python the user's code runs on, 2.7 too: no annotations.
# mypy: ignore-errors
# pyright: basic, reportCallIssue=false, reportArgumentType=false
# ruff: noqa: ANN001, ANN202, ANN204, ARG005, BLE001, INP001, SLF001
"""Notes when a Python program has finished its work, for the watchdog of the runtime.

Python imports this at start, for the folder is on PYTHONPATH. It takes itself off sys.path, lets the user's own
sitecustomize run, and registers one atexit function. It is registered first, so it runs last: after it, only the
interpreter's teardown is left, and that may hang (PyTorch's DDP on the GIL does). TRAINMASTER_EXIT_HOOK=0 turns it off.
"""

import os
import sys


def _chain():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        # None there is the usual case; what a user's own one fails to import is the user's to see.
        if getattr(error, "name", str(error).rpartition(" ")[2]) != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


def _install(path):
    import atexit
    import builtins
    from _thread import get_ident

    outcome = {"code": 0}  # what the process will exit with, as far as can be known from here
    born = os.getpid()
    main = get_ident()

    class _Exit(SystemExit):
        """Tells when nobody but the interpreter has caught it: then it dies with no Python frame around."""

        def __del__(self):
            try:
                sys._getframe(1)
            except ValueError:
                if get_ident() == main:
                    outcome["code"] = _number(self.code)

    _Exit.__name__ = _Exit.__qualname__ = "SystemExit"
    _Exit.__module__ = "builtins"

    def leave(status=None):
        raise _Exit(status)

    leave.__name__ = leave.__qualname__ = "exit"
    leave.__doc__ = sys.exit.__doc__
    sys.exit = leave
    for name in ("exit", "quit"):
        if hasattr(builtins, name):
            type(getattr(builtins, name)).__call__ = lambda self, code=None: leave(code)

    hook = sys.excepthook

    def failed(kind, value, trace):
        if get_ident() == main:
            outcome["code"] = 1
        hook(kind, value, trace)

    sys.excepthook = failed

    def note():
        if os.getpid() != born:
            return  # a forked copy; its end is its parent's affair
        code = outcome["code"]
        text = "?" if code == 0 and _raises_by_hand() else str(code)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(fd, ("%d %s\n" % (born, text)).encode())
            os.close(fd)
        except OSError:
            pass

    atexit.register(note)


def _number(status):
    """The exit code that the interpreter makes of ``sys.exit(status)``."""
    if status is None:
        return 0
    return status & 255 if isinstance(status, int) else 1


def _raises_by_hand():
    """Whether the main file speaks of SystemExit: `raise SystemExit(3)` leaves no trace that could be seen here."""
    try:
        with open(sys.modules["__main__"].__file__, "rb") as stream:
            return b"SystemExit" in stream.read(1 << 20)
    except Exception:
        return False


_chain()
if os.environ.get("TRAINMASTER_EXIT_HOOK", "1") != "0" and os.environ.get("TRAINMASTER_EXIT_NOTES"):
    try:
        _install(os.environ["TRAINMASTER_EXIT_NOTES"])
    except ImportError:  # Python 2: no watchdog there
        pass
