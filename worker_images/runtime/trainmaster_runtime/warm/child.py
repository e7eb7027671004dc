"""A forked process: whether it may run its program as it is, how it comes to look freshly started, and how it ends.

A DDP module that is freed after ``destroy_process_group()``, as at the end of most programs, may hang on the
interpreter's lock: 15 of 40 forked ranks did. So when everything of the user's has run (threads joined, ``atexit``
called), a process that has used torch.distributed writes out what is still in the buffers of open files, and leaves
without the interpreter's teardown.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import importlib.machinery
import io
import operator
import os
import shlex
import signal
import sys
import time
import types

from trainmaster_runtime.process import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from trainmaster_runtime.order import UserProgram

_FILE = io.IOBase.__mro__[1]  # what all files are made of, those in C too; io.IOBase itself only knows them by name

_PLAIN_TEXT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._/:=,@%+-")
_ALL_ARGS = ' "$@"'
_MODULE_ENDS = (".py", ".pyc", ".so")


class PreloadedParent:
    """State of a preloaded parent; every fork inherits it.

    Attributes:
        python: the path that was executed; ``argv0``: the name it was called by.
        env: its environment while it imported; ``read``: the names that were asked for then, ``names``: beginnings of
            those that libraries may have read unseen.
        identity: (path, device, inode) of what must be the same file where the program runs.
        preserved_fds: opened by the framework, and to stay open.
        import_output: what the import wrote to stdout and stderr.
        end: the exit hook's state.
    """

    def __init__(self, *, framework: str, python: str, argv0: str, env: dict[str, str], names: list[str]) -> None:
        self.framework = framework
        self.python = python
        self.argv0 = argv0
        self.env = env
        self.names = tuple(names)
        self.read: set[str] = set()
        self.identity: list[tuple[str, int, int]] = []
        self.preserved_fds: set[int] = set()
        self.import_output: tuple[bytes, bytes] = (b"", b"")
        self.path: list[str] = []
        self.end: dict[str, Any] = {}


class RunnableProgram:
    """A program that this process may run as it is: ``code`` for a file, else the module ``target``."""

    def __init__(self, program: UserProgram, argv: list[str], target: str, args: list[str]) -> None:
        self.program = program
        self.argv = argv
        self.target = target
        self.args = args
        self.file: str | None = None
        self.code: CodeType | None = None


class ProgramStarted(BaseException):
    """Carries a :class:`RunnableProgram` up to where the interpreter can go on to it."""

    def __init__(self, ready: RunnableProgram) -> None:
        super().__init__()
        self.ready = ready


class WarmFork:
    """The warm start of one replica. ``is_known``: its command was seen to use the framework."""

    def __init__(self, parent: PreloadedParent, *, is_known: bool) -> None:
        self._parent = parent
        self._is_known = is_known

    def prepare(self, program: UserProgram) -> RunnableProgram | str:
        """Whether the calling process, in its place already, may run ``program`` as it is; else why it must be
        executed.

        On ``RunnableProgram`` the process shows the program's command line and environment.
        """
        parent = self._parent
        ready = _parse(program)
        if ready is None:
            return "the command is no plain call of Python"
        argv0 = ready.argv[0]
        if argv0 != parent.argv0 or _find(argv0, program.env) != parent.python:
            return "another Python"
        if sys.flags.no_user_site and os.path.isdir(_user_site(program.env)):
            return "the home has Python packages of its own"
        name = self._other_variable(program.env)
        if name is not None:
            return "%s differs" % name
        if not all(_is_same(*file) for file in parent.identity):
            return "the job sees other files in the place of this Python's"
        why_not = self._load(ready)
        if why_not is not None:
            return why_not
        folder = os.path.dirname(os.path.realpath(ready.target)) if ready.code is not None else os.getcwd()
        hidden = _shadowed(folder)
        if hidden is not None:
            return "%s lies next to the program and has a loaded module's name" % hidden
        try:
            if os.geteuid() != 0:
                # As executing would: rights of the user namespace that it has just entered are not the job's.
                syscalls.drop_rights()
                syscalls.be_dumpable()
            syscalls.show_words(ready.argv, program.env)
        except OSError as error:
            return "the kernel does not let it look like its command: %s" % error.strerror
        return ready

    def _other_variable(self, env: dict[str, str]) -> str | None:
        parent_env = self._parent.env
        guessed = (name for name in {*env, *parent_env} if name.startswith(self._parent.names))
        for name in sorted({*self._parent.read, *guessed}):
            value = env.get(name)
            if name == "PATH" and value is not None:
                value = _without_launchers(value)
            if value != parent_env.get(name):
                return name
        return None

    def _load(self, ready: RunnableProgram) -> str | None:
        if ready.code is None and ready.file is None:
            return None if self._is_known else "it is not known whether the module uses %s" % self._parent.framework
        assert ready.file is not None  # noqa: S101 - set by _parse with `target`
        try:
            with open(ready.file, "rb") as stream:
                source = stream.read()
            ready.code = compile(source, ready.file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return "the program cannot be read"  # the interpreter reports the error itself
        if not self._is_known and self._parent.framework not in _imports(source):
            return "the program does not import %s itself" % self._parent.framework
        return None

    def become(self, ready: RunnableProgram) -> None:
        """Make this process the program's own, and let the interpreter run it next. Nothing here can fail."""
        parent, program = self._parent, ready.program
        _close_all_but(parent.preserved_fds)
        os.environ.clear()
        os.environ.update(program.env)
        time.tzset()
        sys.path[:] = parent.path
        sys.argv[:] = ["-m" if ready.code is None else ready.target, *ready.args]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = ready.argv
        # What Python sets at its start, where the runtime left the system's own.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        importlib.invalidate_caches()
        _renew_chance()
        for fd, text in zip((1, 2), parent.import_output):
            if text:
                os.write(fd, text)
        end = parent.end
        end.update(code=0, path=program.env.get("TRAINMASTER_EXIT_NOTES", os.devnull), born=os.getpid(), leave=leave)
        for name in [name for name in sys.modules if name.split(".")[0] == "trainmaster_runtime"]:
            del sys.modules[name]
        if ready.code is None:
            import runpy

            run_as_main(
                runpy.__dict__["_run_module_as_main"],  # what `python -m` itself calls
                ready.target,
                True,
                first_path=None,
                finished=lambda: end.update(code=0, is_sure=True),
            )
            return
        main = sys.modules["__main__"].__dict__
        main["__file__"] = ready.file
        main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", str(ready.file))
        if sys.version_info < (3, 15):
            main["__cached__"] = None
        run_as_main(
            exec,
            ready.code,
            main,
            first_path=os.path.dirname(os.path.realpath(ready.target)),
            finished=lambda: end.update(code=0, is_sure=True),
        )


def _without_launchers(path: str) -> str:
    """A replica's ``PATH`` without the platform's own launchers in front, which no import looks for."""
    first, _, remaining = path.partition(":")
    return remaining if first.endswith("/.trainmaster/bin") else path


def _parse(program: UserProgram) -> RunnableProgram | None:
    """``python [-u] file args`` or ``python [-u] -m module args``, by itself or as a shell's only command."""
    argv = program.argv
    if argv[:2] == ["/bin/sh", "-c"]:
        text, args = argv[2], argv[4:]
        before, _, behind = text.rpartition(_ALL_ARGS)
        text = behind or before
        if not _PLAIN_TEXT.issuperset(text):
            return None
        argv = [*shlex.split(text), *args]
    words = argv[1:]
    if words[:1] == ["-u"] and program.env.get("PYTHONUNBUFFERED"):
        words = words[1:]
    if words[:1] == ["-m"]:
        if len(words) < 2 or words[1].startswith("-"):
            return None
        return RunnableProgram(program, argv, words[1], words[2:])
    if not words or words[0].startswith("-") or not os.path.isfile(words[0]):
        return None
    ready = RunnableProgram(program, argv, words[0], words[1:])
    ready.file = words[0]
    if not os.path.isabs(words[0]) and sys.version_info >= (3, 9):
        # Python makes it absolute, and no cleaner than that.
        ready.file = os.getcwd() + "/" + words[0]
    return ready


def _find(name: str, env: dict[str, str]) -> str | None:
    """The program's path, as :func:`trainmaster_runtime.process.spawn` would execute it."""
    if "/" in name:
        return name
    for folder in (env.get("PATH") or os.defpath).split(":"):
        path = os.path.join(folder or ".", name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def _user_site(env: dict[str, str]) -> str:
    """As the module ``site`` finds it, where the process has started without it."""
    base = env.get("PYTHONUSERBASE") or env.get("HOME", "") + "/.local"
    return "%s/lib/python%d.%d/site-packages" % (base, *sys.version_info[:2])


def _is_same(path: str, device: int, inode: int) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def _imports(source: bytes) -> set[str]:
    """Packages that the text imports anywhere in it; nothing is followed."""
    import ast

    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module.split(".")[0])
    return modules


def _shadowed(folder: str) -> str | None:
    """A file in ``folder`` that in a fresh interpreter would shadow a module which is loaded here already."""
    if getattr(sys.flags, "safe_path", False):
        return None
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        if name.split(".")[0] not in sys.modules or name.split(".")[0] in sys.builtin_module_names:
            continue
        if name.endswith(_MODULE_ENDS) or os.path.exists("%s/%s/__init__.py" % (folder, name)):
            return name
    return None


def _close_all_but(preserved: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in preserved:
            try:
                os.close(fd)
            except OSError:  # the listing's own
                pass


def _renew_chance() -> None:
    """Random states that were made while the parent imported; Python's own ``random`` sees to itself at a fork."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def can_look_fresh() -> bool:
    """Whether the kernel lets a process set its own command line; asked in a child that ends."""
    try:
        syscalls.show_words(["?"], {})
    except (OSError, ValueError):
        return False
    return ctypes.sizeof(ctypes.c_void_p) == 8


def leave(code: int) -> None:
    """End this process with ``code``; returns where the interpreter's own way is safe, or must tell of an error."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None or getattr(distributed, "_default_pg_init_method", "?") is None:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter makes exit code 120 of it
    _close_files()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def _close_files() -> None:
    standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    spared = {id(part) for stream in standard for part in (stream, getattr(stream, "buffer", None))}
    # By their types alone: `isinstance` asks the object too, and some of torch's warn at any access.
    open_files = [o for o in gc.get_objects() if issubclass(type(o), _FILE) and id(o) not in spared]
    # What wraps another one goes first: its own buffer is still to be written.
    open_files.sort(key=lambda o: 0 if isinstance(o, io.TextIOBase) else 2 if isinstance(o, io.BufferedWriter) else 1)
    for stream in open_files:
        try:
            if not stream.closed and stream.writable():
                stream.close()
        except Exception:  # noqa: BLE001, S112 - of the user's own class, or a full disk: the teardown passes it
            continue


def run_as_main(
    function: Callable[[Any, Any], object],
    first: object,
    second: object,
    *,
    first_path: str | None,
    finished: Callable[[], None],
) -> None:
    """Let the interpreter's main program be ``function(first, second)``, a C function or what a fresh Python calls
    itself: no Python frame is below it, and C code takes its end.

    A parent is started as ``python -m <anything>`` and waits in its ``sitecustomize``, that is before the interpreter
    comes to its main program. For that the interpreter's C code imports ``runpy``, takes ``_run_module_as_main`` of it
    and calls that with two arguments (``pymain_run_module`` in CPython's Modules/main.c, the same from 3.8 to 3.14). A
    forked child puts a ``_Door`` in the place of ``runpy``. What it hands out must call the user's program without a
    Python function between, or ``sys._getframe``, tracebacks and warnings would show it; and it is handed arguments
    that are not the program's. So it is put together of what CPython has in C:

    - calling ``_Start`` looks up ``__call__``: a property, whose getter gets no arguments but the object;
    - the getter, an ``operator.methodcaller``, makes a ``_Run`` with the arguments that are right;
    - the ``__init__`` of that is ``operator.setitem``, whose result is ignored, on an object whose ``__setitem__`` is
      ``exec``, or for ``-m`` the real ``runpy._run_module_as_main``;
    - the ``_Run`` is then called with the arguments that are not wanted, which means that the program came to its end.

    Errors, ``SystemExit`` and ``KeyboardInterrupt`` go up to the interpreter's C code as they do from any program.

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
