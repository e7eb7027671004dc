# Read by whatever Python the user's code runs on, 2.7 too: no annotations.
# mypy: ignore-errors
# pyright: basic, reportCallIssue=false, reportArgumentType=false
# ruff: noqa: ANN001, ANN202, ANN204, ARG005, BLE001, INP001, SLF001
"""Notes when a Python program has finished its work, for the watchdog of the runtime.

Python imports this at start, for the folder is on PYTHONPATH. It takes itself off sys.path, lets the user's own
sitecustomize run, and registers one atexit function. It is registered first, so it runs last: after it, only the
interpreter's teardown is left, and that may hang (PyTorch's DDP on the GIL does). TRAINMASTER_EXIT_HOOK=0 turns it off.

It offers the platform's training library to every Python. In a gang it also completes launchers such as torchrun:
see trainmaster_runtime.launchers. It helps JAX, Lightning and Ray: see trainmaster_imports.py. In a job of Vertex AI's
client it points Google's SDK at the platform: see trainmaster_vertex.py.
"""

import os
import sys


def _watch_imports():
    env = os.environ
    has_jax_ranks = "JAX_PROCESS_ID" in env and "JAX_NUM_PROCESSES" in env
    is_single = env.get("WORLD_SIZE") == env.get("PET_NNODES") == "1" and "TORCHELASTIC_RUN_ID" not in env
    is_gang = env.get("PET_NNODES", "1") != "1" and env.get("TRAINMASTER_LAUNCHER") != "none"
    is_elastic = "TRAINMASTER_WORLD" in env
    may_use_ray = (
        is_gang and not is_elastic and env.get("TRAINMASTER_LAUNCHED", "ray") == "ray" and sys.version_info >= (3, 8)
    )
    if not has_jax_ranks and not is_single and not may_use_ray:
        return
    try:
        import trainmaster_imports
    except ImportError:  # Python 2: no JAX there
        return
    if has_jax_ranks:
        trainmaster_imports.watch_jax()
    if is_single:
        trainmaster_imports.watch_lightning()
    if may_use_ray:
        trainmaster_imports.watch_ray()


def _offer_library():
    """trainmaster_train behind all packages of this Python: one that is installed here wins."""
    folder = os.environ.get("TRAINMASTER_LIBRARY")
    if folder and sys.version_info >= (3, 9) and folder not in sys.path:
        sys.path.append(folder)


def _watch_vertex():
    needed = ("TRAINMASTER_API_URL", "TRAINMASTER_TOKEN_FILE")
    if os.environ.get("VERTEX_AI_SDK_SERVER") == "trainmaster" and all(name in os.environ for name in needed):
        try:
            import trainmaster_vertex

            trainmaster_vertex.watch()
        except ImportError:  # Python 2: its SDK is none that we know
            pass


def _complete_launcher():
    """In a gang, or where several processes of a replica run the same command. Old Pythons (2.7) have no such need."""
    env = os.environ
    if "TRAINMASTER_LAUNCHED" in env or not {env.get("PET_NNODES", "1"), env.get("LOCAL_WORLD_SIZE", "1")} - {"1"}:
        return
    if sys.version_info < (3, 8):
        return
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        from trainmaster_runtime import launchers
    finally:
        sys.path.pop(0)
    launchers.complete_python()
    for name in ("trainmaster_runtime.launchers", "trainmaster_runtime"):
        sys.modules.pop(name, None)


def _chain():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    this_module = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        # None there is the usual case; what a user's own one fails to import is the user's to see.
        if getattr(error, "name", str(error).rpartition(" ")[2]) != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this_module


def _install(path):
    import atexit
    import builtins
    from _thread import get_ident

    # What the process will exit with, as far as can be known from here; is_sure: the interpreter said it itself.
    outcome = {"code": 0, "is_sure": False, "path": path, "born": os.getpid(), "leave": None}
    main = get_ident()

    class _Exit(SystemExit):
        """Notes when only the interpreter has caught it: then it dies with no Python frame around."""

        def __del__(self):
            try:
                sys._getframe(1)
            except ValueError:
                if get_ident() == main:
                    outcome.update(code=_number(self.code), is_sure=True)

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
            # An interrupt ends by its signal; and a program may call this for an error that it has caught.
            outcome.update(code=1, is_sure=not _has_caller() and not issubclass(kind, KeyboardInterrupt))
        hook(kind, value, trace)

    sys.excepthook = failed

    def note():
        if os.getpid() != outcome["born"]:
            return  # a forked copy; its end is its parent's affair
        code = outcome["code"]
        text = "?" if code == 0 and _raises_by_hand() else str(code)
        try:
            fd = os.open(outcome["path"], os.O_WRONLY | os.O_APPEND)
            os.write(fd, ("%d %s\n" % (outcome["born"], text)).encode())
            os.close(fd)
        except OSError:
            pass
        if outcome["is_sure"] and outcome["leave"] is not None:
            outcome["leave"](code)

    atexit.register(note)
    return outcome


def _has_caller():
    """Whether a Python function has called the one that asks."""
    try:
        sys._getframe(2)
    except ValueError:
        return False
    return True


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


def _be_warm():
    """The module of preloaded parents, when this process is to be one."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        from trainmaster_runtime.warm import parent
    finally:
        sys.path.pop(0)
    parent.note_reads()
    return parent


_parent = _be_warm() if os.environ.get("TRAINMASTER_WARM") else None
_outcome = None
if _parent is None:  # what a preloaded parent reads of its environment must be the same in its children's
    _complete_launcher()
    _watch_imports()
_watch_vertex()
_chain()
if _parent is None:
    _offer_library()
if os.environ.get("TRAINMASTER_EXIT_HOOK", "1") != "0" and os.environ.get("TRAINMASTER_EXIT_NOTES"):
    try:
        _outcome = _install(os.environ["TRAINMASTER_EXIT_NOTES"])
    except ImportError:  # Python 2: no watchdog there
        pass
if _parent is not None:
    _parent.wait(os.environ["TRAINMASTER_WARM"], _outcome)
    # Only a forked process of the user's comes here; the parent itself never returns.
    _parent = None
    _complete_launcher()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    _watch_imports()
    _watch_vertex()
    sys.path.pop(0)
    _offer_library()
