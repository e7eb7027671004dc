"""One of the user's processes: forked, put into its limits and its view, and executed."""

from __future__ import annotations

import errno
import os
import resource
import signal

from trainmaster_runtime.process import job_user, syscalls

# The kernel, short of memory, takes the jobs before the platform (-1000 … 1000, 0 is the default).
OOM_SCORE_ADJ = "500"
_HOW_ENDS = "\0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn

    from trainmaster_runtime.order import UserProgram
    from trainmaster_runtime.view import View
    from trainmaster_runtime.warm.child import RunnableProgram, WarmFork


class StartError(Exception):
    """The process could not be executed. ``cause`` and ``exit_code`` as in the exit record."""

    def __init__(self, cause: str, exit_code: int | None, sentence: str) -> None:
        super().__init__(sentence)
        self.cause = cause
        self.exit_code = exit_code
        self.sentence = sentence


def argv_of(command: list[str] | str, args: list[str]) -> list[str]:
    """A list is executed as it is; a text by the shell, with ``args`` behind it."""
    if isinstance(command, str):
        # "$@" keeps each argument one argument, whatever blanks it holds.
        return ["/bin/sh", "-c", command + ' "$@"', "sh", *args] if args else ["/bin/sh", "-c", command]
    return [*command, *args]


def spawn(
    program: UserProgram,
    *,
    output: int,
    view: View | None,
    join_groups: Callable[[], None],
    warm: WarmFork | None = None,
) -> tuple[int, int]:
    """Fork and execute; stdout and stderr go to ``output``. Returns ``(pid, fd)``.

    ``fd`` reaches its end when the program is executed, or delivers why it is not: see :func:`start_error`.

    Args:
        warm: where this runtime was forked from a preloaded parent; the new process may then go on as it is, and
            raises :class:`trainmaster_runtime.warm.child.ProgramStarted`.
    """
    failure_read, failure_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(program, output, view, join_groups, failure_write, parent, warm)
    os.close(failure_write)
    return pid, failure_read


def start_error(failure_read: int) -> StartError | str:
    """Wait until the program is executed. If it is: how, in words for people, ``""`` for the usual way."""
    text = b""
    while True:
        chunk = os.read(failure_read, 4096)
        if not chunk:
            break
        text += chunk
    os.close(failure_read)
    how, _, failure = text.decode("utf-8", "replace").rpartition(_HOW_ENDS)
    if not failure:
        return how
    cause, code, sentence = failure.split("\n", 2)
    return StartError(cause, int(code) if code else None, sentence)


def _become(
    program: UserProgram,
    output: int,
    view: View | None,
    join_groups: Callable[[], None],
    failure_write: int,
    parent: int,
    warm: WarmFork | None,
) -> NoReturn:
    ready = None
    try:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            _restore_signals()
            job_user.become_root()
            join_groups()
            if program.oom_score_adj is not None:
                _set("/proc/self/oom_score_adj", program.oom_score_adj)
            # Cores of a training process are as large as its memory and would fill the disk; the hard limit stays.
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            if view is not None:
                view.enter()
            job_user.become_user()
            os.chdir(program.cwd)
            # Last, for entering a user namespace and a change of the user clear it.
            syscalls.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(137)
            if warm is not None:
                ready = _prepare_warm(warm, program, failure_write)
            if ready is None:
                _execute(program)
        except StartError as error:
            os.write(failure_write, _message(error.cause, error.exit_code, error.sentence))
        except OSError as error:
            os.write(
                failure_write, _message("start_failed", None, "The process could not be started: %s." % error.strerror)
            )
    finally:
        if ready is None:
            os._exit(127)
    from trainmaster_runtime.warm.child import ProgramStarted

    raise ProgramStarted(ready)


def _prepare_warm(warm: WarmFork, program: UserProgram, failure_write: int) -> RunnableProgram | None:
    answer = warm.prepare(program)
    if isinstance(answer, str):
        os.write(failure_write, ("executed: " + answer + _HOW_ENDS).encode())
        return None
    os.write(failure_write, ("forked from a preloaded parent" + _HOW_ENDS).encode())
    return answer


def _execute(program: UserProgram) -> None:
    """Find the command in PATH as a shell does, and execute it. Raises :class:`StartError`."""
    name = program.argv[0]
    if not name:
        raise StartError("command_not_found", 127, "The command is empty; set `command`.")
    if "/" in name:
        candidates = [name]
    else:
        path = program.env.get("PATH") or os.defpath
        candidates = [os.path.join(folder or ".", name) for folder in path.split(":")]
    denied = None
    for candidate in candidates:
        try:
            os.execve(candidate, program.argv, program.env)  # noqa: S606 - that is the product
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script without #!: shells run it themselves
                os.execve("/bin/sh", ["/bin/sh", candidate, *program.argv[1:]], program.env)  # noqa: S606
            if error.errno == errno.ENOENT and os.path.exists(candidate):
                raise StartError("interpreter_missing", 127, _interpreter_sentence(candidate)) from error
            if error.errno == errno.EACCES and os.path.exists(candidate):
                denied = denied or candidate
            elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise StartError(
                    "start_failed", 126, "%s could not be executed: %s." % (candidate, error.strerror)
                ) from error
    if denied is not None:
        raise StartError(
            "command_not_found", 126, "%s is not executable; run `chmod +x` on it, or call its interpreter." % denied
        )
    raise StartError(
        "command_not_found",
        127,
        "The command %r was not found%s; check its name, and that what provides it is installed."
        % (name, "" if "/" in name else " in PATH"),
    )


def _interpreter_sentence(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            first = stream.readline(256).decode("utf-8", "replace").strip()
    except OSError:
        first = ""
    if not first.startswith("#!"):
        return "%s cannot be executed here: its dynamic loader is missing." % path
    hint = "; the file has Windows line ends, save it with Unix ones" if first.endswith("\r") else ""
    return "%s asks for the interpreter %s, which is not there%s." % (path, first[2:].strip().split(" ")[0], hint)


def _restore_signals() -> None:
    # Python ignores these; what is ignored stays so over an execve, and then pipes to `head` never end.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _set(path: str, text: str) -> None:
    try:
        with open(path, "w") as stream:
            stream.write(text)
    except OSError:
        pass


def _message(cause: str, exit_code: int | None, sentence: str) -> bytes:
    return ("%s\n%s\n%s" % (cause, "" if exit_code is None else exit_code, sentence)).encode()[:4000]
