"""Classification of exits: kind, a sentence with what to do, and whether a restart could help.

The exit code and the cause say little, the last lines of the log say most: they are matched with one table of patterns.
Pure;
the inputs come from the driver.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from core.domain.jobs import machine_faults, tracebacks
from core.domain.jobs.machine_faults import MachineFault


class ExitCause(StrEnum):
    """The cause of an exit beyond its code, as reported by the runtime or the engine."""

    EXITED = "exited"  # the command ended by itself, with ``exit_code``
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out_of_memory"
    DEADLINE = "deadline"
    STOPPED = "stopped"  # because we asked
    PEERS_MISSING = "peers_missing"
    COMMAND_NOT_FOUND = "command_not_found"
    INTERPRETER_MISSING = "interpreter_missing"
    START_FAILED = "start_failed"  # work folder, image, engine …: another attempt may succeed
    START_REFUSED = "start_refused"  # no input, a wrong archive, no write permission …: no other attempt can succeed
    DISK_FULL = "disk_full"  # the output volume, as far as is known
    DISK_LIMIT = "disk_limit"  # it wrote more to its node's disk than it may
    HANGING_EXIT = (
        "hanging_exit"  # its work is done but it did not exit: ended by the watchdog, with the work's exit_code
    )
    NODE_LOST = "node_lost"
    EVICTED = "evicted"  # its node ran short and the engine removed it
    MAINTENANCE = "maintenance"  # removed from a node that is healthy: drained, shut down, given to another pod
    ENGINE_REFUSED = "engine_refused"  # the engine did not take it, though the planner saw room
    IMAGE_UNREACHABLE = "image_unreachable"  # its registry did not deliver the image in time
    UNKNOWN = "unknown"


class ExitKind(StrEnum):
    """Whose fault the exit is."""

    SUCCESS = "success"
    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    TRANSIENT = "transient"  # network, peers, an external kill: the next attempt may succeed
    HARDWARE = "hardware"
    CAPACITY = "capacity"  # a disk or an engine is full
    PLATFORM = "platform"  # node lost, preemption, the platform's own doing
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


# A broken connection this soon before or after another failure counts as its consequence. Observed: gloo within 0.1 s,
# TensorFlow's MultiWorkerMirrored 6.5 to 8.8 s after the first.
CONSEQUENCE_WINDOW: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """How one replica ended, as reported by the driver. ``replica``: its name, such as ``worker-0``.

    ``blames_node``: false if the control loop ended it for its gang's sake, so that its machine is not to blame.
    """

    replica: str
    role: str
    cause: ExitCause
    exit_code: int | None
    at: datetime
    sentence: str = ""
    log_tail: str = ""
    blames_node: bool = True


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """The classification of an exit.

    ``is_hopeless``: the same command would end the same way again. ``is_consequence``: it died because a peer did, as
    far as can be known. ``signature``: equal for two exits of the same kind in the same place. ``fault``: the machine
    fault that ended it, if any. ``is_transient_once``: it is transient unless the attempt before ended the same way.
    """

    kind: ExitKind
    sentence: str
    signature: str
    is_hopeless: bool = False
    is_consequence: bool = False
    fault: MachineFault | None = None
    is_transient_once: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """``hint`` may use ``{replica} {role}`` and the pattern's named groups."""

    pattern: re.Pattern[str]
    kind: ExitKind
    hint: str
    is_hopeless: bool = False
    is_consequence: bool = False
    is_transient_once: bool = False


def _rule(pattern: str, kind: ExitKind, hint: str, *, hopeless: bool = False, consequence: bool = False) -> _Rule:
    return _Rule(re.compile(pattern), kind, hint, hopeless, consequence)


# The platform chooses new ports for each attempt. Where the same port is taken again, the program chose it itself.
_PORT_TAKEN: Final = _Rule(
    re.compile(r"Address already in use|EADDRINUSE"),
    ExitKind.TRANSIENT,
    "a port was taken; the platform chooses other ports in the next attempt, but a port that the program sets itself "
    "must be free: use MASTER_PORT, or port 0",
    is_transient_once=True,
)


_NO_SCRIPT: Final = (
    "the script is not in the job's folder; submit with the folder that holds it (`--code FOLDER`; `trainmaster run` "
    "alone takes the one it is called in), and see that no ignore file leaves it out"
)
# A serving replica has no code folder.
_NO_SERVER: Final = (
    "the server's file is not there; put it into the model's folder and deploy with the command "
    "`python $AIP_STORAGE_URI/FILE`, or name its whole path"
)
# Messages of torch and of scripts without a GPU; a script may also catch and print those of torch.
_NO_GPU: Final = (
    r"[Nn]o CUDA GPUs are available|Torch not compiled with CUDA enabled|Found no NVIDIA driver"
    r"|Cannot access accelerator device when none is available|\b[Nn]o (?:CUDA )?GPUs? found"
)
# The first matching rule counts. The matching line is quoted before the hint.
_RULES: Final = (
    _rule(
        r"^batch prediction: ",  # trainmaster_serving's own message; what it quotes may be anything
        ExitKind.USER_ERROR,
        "the next attempt would end the same way",
        hopeless=True,
    ),
    _rule(
        machine_faults.OF_MACHINES,
        ExitKind.HARDWARE,
        "its node is at fault, not the program; a node that ends jobs so is quarantined",
    ),
    _rule(
        machine_faults.XID_OF_PROGRAMS,
        ExitKind.USER_ERROR,
        "NVIDIA counts this Xid among errors of programs; look for an index or an address out of bounds "
        "(compute-sanitizer)",
    ),
    _rule(
        r"CUDA out of memory|OutOfMemoryError|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
        r"|ResourceExhaustedError"
        r"|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)",
        ExitKind.OUT_OF_MEMORY,
        "the GPU's memory is full; use a smaller batch, or set roles.{role}.resources.gpu_type to a larger model",
    ),
    _rule(
        r"^MemoryError\b|Cannot allocate memory|std::bad_alloc|can't allocate memory"
        r"|Unable to allocate .* for an array",
        ExitKind.OUT_OF_MEMORY,
        "there is no memory left for it; raise roles.{role}.resources.memory, or load less at once",
    ),
    _rule(
        # torch.save and NumPy only report a short write.
        r"No space left on device|Disk quota exceeded|the output volume is full"
        r"|inline_container.*unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing"
        r"|^OSError: \d+ requested and \d+ written",
        ExitKind.CAPACITY,
        "the disk is full; free space on the output volume, or keep fewer checkpoints",
    ),
    _rule(
        r"\bps \d+ has no memory for ",
        ExitKind.OUT_OF_MEMORY,
        "raise roles.ps.resources.memory, or give the job more ps",
    ),
    # Messages of a worker or a ps about itself; messages about another process begin differently, and explain no exit.
    _rule(
        r"(?:^[\w-]+|Error): (?:worker \d+ (?:has another model than ps|wants mode \w+ and wire)"
        r"|worker \d+, own step \d+, update \d+: the gradient of|ps\.Options: |\S+ is of another model:) ?",
        ExitKind.USER_ERROR,
        "the next attempt would end the same way",
        hopeless=True,
    ),
    _rule(
        r"DataLoader worker .* killed by signal: Bus error|insufficient shared memory|unable to (?:mmap"
        r"|write to file </torch)",
        ExitKind.USER_ERROR,
        "its shared memory is too small; raise roles.{role}.resources.shm, or use fewer data loader workers",
    ),
    _rule(
        r"^(?:SyntaxError|IndentationError|TabError)\b",
        ExitKind.USER_ERROR,
        "correct the code and submit it again",
        hopeless=True,
    ),
    _rule(
        r"^ModuleNotFoundError: No module named 'tensorflow\.(?:contrib|examples)\b"
        r"|^AttributeError: module 'tensorflow(?:\.[\w.]+)?' has no attribute '(?:placeholder|Session"
        r"|InteractiveSession|contrib|app|flags|logging|ConfigProto|GPUOptions|get_variable|variable_scope"
        r"|get_default_graph|reset_default_graph|global_variables_initializer|set_random_seed|layers|gfile"
        r"|truncated_normal|random_(?:uniform|normal|shuffle|crop)|multinomial|log|arg_max|arg_min|mod|div|ceil"
        r"|matrix_(?:inverse|determinant|solve|triangular_solve|transpose|diag|diag_part|set_diag|band_part)|diag"
        r"|cholesky|svd|self_adjoint_eig|is_(?:nan|inf|finite)|to_(?:float|double|bfloat16|int32|int64)|py_func"
        r"|assign|assign_add|assign_sub|get_collection|add_to_collection|GraphKeys|global_variables"
        r"|trainable_variables|local_variables_initializer|initialize_all_variables|tables_initializer"
        r"|sparse_placeholder|sparse_to_dense|read_file|decode_raw|parse_(?:single_)?example|FixedLenFeature"
        r"|python_io|FileWriter|merge_all"
        r"|(?:Adam|Adagrad|RMSProp|Momentum|GradientDescent)Optimizer|Saver|Server"
        r"|MonitoredTrainingSession|SyncReplicasOptimizer|replica_device_setter|get_or_create_global_step)'"
        r"|^RuntimeError: (?:tf\.placeholder\(\) is not compatible with eager execution|The Session graph is empty)",
        ExitKind.USER_ERROR,
        "the code is for TensorFlow 1, and TensorFlow 2 is installed where the job runs; write `import "
        "tensorflow.compat.v1 as tf` and `tf.disable_v2_behavior()`, or use an image with TensorFlow 1.15 (for "
        "tf.contrib)",
        hopeless=True,
    ),
    _rule(
        r"Distributed package doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        ExitKind.USER_ERROR,
        "the NCCL backend needs GPUs and a torch with CUDA; without GPUs use init_process_group('gloo') or, with "
        "one process, `launcher: none`, which sets no RANK; otherwise request GPUs (`--gpus`, "
        "roles.{role}.resources.gpus)",
        hopeless=True,
    ),
    _rule(
        # Only exceptions: TensorFlow's log has similar lines in each run without a GPU.
        rf"^(?:\w+\.)*\w*Error: (?:.*)(?:{_NO_GPU}|torch\.cuda\.is_available\(\) is False"
        r"|no CUDA-capable device is detected|'_cuda_setDevice'|Unable to initialize backend '(?:cuda|gpu)')",
        ExitKind.USER_ERROR,
        "the process has no GPU that CUDA can use; request GPUs (`--gpus`, roles.{role}.resources.gpus) and install a "
        "framework with CUDA where the job runs, or use the CPU if `torch.cuda.is_available()` is false",
    ),
    _rule(
        r"^ModuleNotFoundError: No module named '(?P<module>[^']+)'",
        ExitKind.USER_ERROR,
        "name its package in environment.requirements (`--requirements FILE`), choose an image or environment that has "
        "{module}, or pack it with the code",
        hopeless=True,
    ),
    _rule(
        r"^ImportError: Keras cannot be imported",
        ExitKind.USER_ERROR,
        "TF_USE_LEGACY_KERAS asks for Keras 2: install it with `pip install --no-deps tf_keras`, or take the "
        "variable away",
        hopeless=True,
    ),
    _rule(
        r"unsupported type \(<class 'tensorflow\.python\.distribute\.values\.PerReplica'>\)",
        ExitKind.USER_ERROR,
        "Keras 3 cannot `fit` over several workers; set env.TF_USE_LEGACY_KERAS to 1 where the package tf_keras is "
        "installed",
        hopeless=True,
    ),
    _rule(
        r"^AttributeError: module 'tensorflow(?:\.[\w.]+)?' has no attribute 'estimator'",
        ExitKind.USER_ERROR,
        "TensorFlow has no estimators since 2.16; install tensorflow 2.15 where the job runs",
        hopeless=True,
    ),
    _rule(
        r"^AttributeError: module 'keras(?:\.[\w.]+)?' has no attribute",
        ExitKind.USER_ERROR,
        "this is Keras 3; where the script is for Keras 2, set env.TF_USE_LEGACY_KERAS to 1 and install the package "
        "tf_keras",
    ),
    _rule(
        r"^TypeError: BF16 all reduce communication hook required",
        ExitKind.USER_ERROR,
        "torch's own bf16 hook needs NCCL; without GPUs use trainmaster_train.distributed.wrap(model, "
        "compression='bf16')",
        hopeless=True,
    ),
    _rule(
        r"^ImportError\b",
        ExitKind.USER_ERROR,
        "the installed version of a package does not fit; pin the version that has it",
        hopeless=True,
    ),
    _rule(
        r"can't open file '?(?P<file>[^':]+)'?: \[Errno 2\]",
        ExitKind.USER_ERROR,
        _NO_SCRIPT,
        hopeless=True,
    ),
    _rule(
        r"(?:command not found|: not found)$",
        ExitKind.USER_ERROR,
        "write the command's full path, or install it where the job runs",
        hopeless=True,
    ),
    _rule(
        r"error: (?:unrecognized arguments|the following arguments are required|argument .*: invalid)",
        ExitKind.USER_ERROR,
        "correct the job's command or args",
        hopeless=True,
    ),
    _PORT_TAKEN,
    _rule(
        r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandled|gloo/transport|\[.*gloo.*\]"
        r"|Connection reset by peer|Connection refused|Connection closed by peer|Broken pipe|Connection timed out"
        r"|DistBackendError|DistNetworkError|DistStoreError|StoreTimeout|Socket [Tt]imeout|HorovodInternalError"
        r"|failed to connect to all addresses|^(?:Connection\w*Error|BrokenPipeError|EOFError)\b"
        r"|UnavailableError|Timed out waiting for|Read (?:timed out|error)|Application timeout caused pair closure",
        ExitKind.TRANSIENT,
        "it lost the connection to a peer, which is gone or not reachable",
        consequence=True,
    ),
    _rule(
        r"^FileNotFoundError\b",
        ExitKind.USER_ERROR,
        "see that the path exists in the job: the input is at /data/data, the output at /data/output, the code at "
        "/data",
    ),
    _rule(
        r"Read-only file system|\[Errno 30\]|^PermissionError\b.*['\"]/data/data(?:/[^'\"]*)?['\"]",
        ExitKind.USER_ERROR,
        "write to /data/output only: input and mounts are read-only",
    ),
    _rule(
        r"^PermissionError\b.*?: (?P<quote>['\"])(?P<path>.+?)(?P=quote)",
        ExitKind.USER_ERROR,
        "the user that the job runs as may not access {path}; give that user the right, or use another path",
    ),
    _rule(r"^PermissionError\b", ExitKind.USER_ERROR, "the user that the job runs as may not do this; see its log"),
)

_QUOTE_CHARS: Final = 300

_SIGNAL_HINTS: Final = {
    signal.SIGKILL: (
        ExitKind.TRANSIENT,
        "something outside the platform killed it (kill -9, or the machine ran short of memory)",
    ),
    signal.SIGTERM: (ExitKind.TRANSIENT, "something outside the platform asked it to stop"),
    signal.SIGINT: (ExitKind.TRANSIENT, "something outside the platform interrupted it"),
    signal.SIGHUP: (ExitKind.TRANSIENT, "something outside the platform hung it up"),
    signal.SIGBUS: (
        ExitKind.USER_ERROR,
        "a memory-mapped file shrank, or shared memory is too small: raise roles.{role}.resources.shm",
    ),
    signal.SIGSEGV: (
        ExitKind.USER_ERROR,
        "native code crashed; look for versions of packages that do not fit each other",
    ),
    signal.SIGABRT: (ExitKind.USER_ERROR, "native code gave up; the lines above in its log say why"),
    signal.SIGILL: (ExitKind.USER_ERROR, "a package was built for another kind of CPU; install one for this machine"),
    signal.SIGFPE: (ExitKind.USER_ERROR, "native code divided by zero"),
}

_CAUSE_VERDICTS: Final[dict[ExitCause, tuple[ExitKind, str, bool]]] = {
    ExitCause.OUT_OF_MEMORY: (
        ExitKind.OUT_OF_MEMORY,
        (
            "{replica} was killed because it used more memory than it may: raise roles.{role}.resources.memory, or use "
            "a smaller batch"
        ),
        False,
    ),
    ExitCause.DEADLINE: (
        ExitKind.DEADLINE,
        (
            "{replica} was ended because max_run_time is over: raise it, or clone the job to go on from the last "
            "checkpoint"
        ),
        True,
    ),
    ExitCause.STOPPED: (ExitKind.PLATFORM, "{replica} was stopped by the platform", False),
    ExitCause.PEERS_MISSING: (
        ExitKind.TRANSIENT,
        "{replica} did not find its peers in time: the other replicas never became reachable",
        False,
    ),
    ExitCause.COMMAND_NOT_FOUND: (
        ExitKind.USER_ERROR,
        "The command of {replica} does not exist: write its full path, or install it where the job runs",
        True,
    ),
    ExitCause.INTERPRETER_MISSING: (
        ExitKind.USER_ERROR,
        "The interpreter that {replica} needs is not there: choose an image that has it, or correct the command",
        True,
    ),
    ExitCause.START_FAILED: (ExitKind.USER_ERROR, "{replica} could not be started", False),
    ExitCause.START_REFUSED: (ExitKind.USER_ERROR, "{replica} can never be started as it is written", True),
    ExitCause.DISK_FULL: (
        ExitKind.CAPACITY,
        "The disk was full while {replica} was writing: free space on the output volume, or keep fewer checkpoints",
        False,
    ),
    ExitCause.DISK_LIMIT: (ExitKind.CAPACITY, "{replica} wrote more to its node's disk than it may", False),
    ExitCause.NODE_LOST: (ExitKind.PLATFORM, "The node of {replica} was lost", False),
    ExitCause.EVICTED: (ExitKind.PLATFORM, "The node of {replica} ran short, and {replica} was removed from it", False),
    ExitCause.MAINTENANCE: (ExitKind.PLATFORM, "{replica} was removed for the maintenance of its node", False),
    ExitCause.ENGINE_REFUSED: (ExitKind.PLATFORM, "The engine could not start {replica} where it was placed", False),
    ExitCause.IMAGE_UNREACHABLE: (ExitKind.PLATFORM, "The image of {replica} could not be pulled in time", False),
    ExitCause.UNKNOWN: (
        ExitKind.PLATFORM,
        "{replica} is gone and left no exit code: its machine restarted, or somebody removed it",
        False,
    ),
}


def classify(facts: ExitFacts) -> ExitVerdict:
    """Classify the end of one replica."""
    rule = _CAUSE_VERDICTS.get(facts.cause)
    if rule is not None:
        kind, text, is_hopeless = rule
        # The driver's sentence is more precise than the table's.
        sentence = facts.sentence or text.format(replica=facts.replica, role=facts.role) + "."
        fault = _fault_of(facts)
        if fault is not None and kind is ExitKind.USER_ERROR:
            kind = ExitKind.HARDWARE
        return ExitVerdict(kind, sentence, f"{facts.cause.value}:{facts.role}", is_hopeless, fault=fault)
    if facts.exit_code == 0:
        return ExitVerdict(ExitKind.SUCCESS, f"{facts.replica} finished.{success_note(facts)}", "success")
    return _from_log(facts)


def success_note(facts: ExitFacts) -> str:
    """A sentence after that of a success, if the log's last lines tell that the GPU was not used; otherwise empty."""
    line = next((line for line in facts.log_tail.splitlines() if re.search(_NO_GPU, line)), None)
    if line is None:
        return ""
    quote = _quote(tracebacks.PREFIX.sub("", line).strip())
    return (
        f" Warning: {facts.replica} ran without a GPU: {quote} – request GPUs "
        f"(`--gpus`, roles.{facts.role}.resources.gpus), and install a framework with CUDA where the job runs."
    )


def is_disk_full(facts: ExitFacts, verdict: ExitVerdict) -> bool:
    """Whether the replica found a disk full that may be its output volume. ``verdict``: of ``facts``."""
    return verdict.kind is ExitKind.CAPACITY and facts.cause is not ExitCause.DISK_LIMIT


def for_server(verdict: ExitVerdict) -> ExitVerdict:
    """``verdict`` rephrased for a replica that serves a model."""
    return replace(verdict, sentence=verdict.sentence.replace(_NO_SCRIPT, _NO_SERVER))


def _fault_of(facts: ExitFacts) -> MachineFault | None:
    """The machine fault that the cause implies. A resource shortage there, or being stopped, is no machine fault."""
    if not facts.blames_node:
        return None
    match facts.cause:
        case ExitCause.NODE_LOST:
            return machine_faults.NODE_LOST
        case ExitCause.ENGINE_REFUSED:
            return machine_faults.fault_in(facts.sentence) or machine_faults.REFUSED
        case ExitCause.START_FAILED:
            return machine_faults.fault_in(facts.sentence)
    return None


def _from_log(facts: ExitFacts) -> ExitVerdict:
    lines = [tracebacks.PREFIX.sub("", line).rstrip() for line in facts.log_tail.splitlines()]
    # The runtime's own lines describe its reaction to the end, not the cause.
    lines = [line for line in lines if line and not line.startswith(tracebacks.RUNTIME)]
    exception = next((line for line in reversed(lines) if tracebacks.EXCEPTION.match(line)), None)
    ending = _ending(facts)
    # The exception is the best evidence; other lines count only if it matches no rule.
    for candidates in ((exception,) if exception else (), tuple(reversed(lines))):
        for rule in _RULES:
            for line in candidates:
                found = rule.pattern.search(line)
                if found:
                    hint = rule.hint.format(replica=facts.replica, role=facts.role, **found.groupdict())
                    sentence = f"{facts.replica} {ending}: {_quote(line)} – {hint}."
                    fault = None
                    if rule.kind is ExitKind.HARDWARE:
                        fault = machine_faults.fault_in(line, is_exception=line is exception)
                    if fault is not None and line is not exception and exception is not None:
                        # A program that failed with its own message may print anything.
                        fault = replace(fault, is_certain=False)
                    # Libraries report a taken port in different lines, depending on which of them binds first.
                    place = _PORT_TAKEN.pattern.pattern if rule is _PORT_TAKEN else line
                    return ExitVerdict(
                        rule.kind,
                        sentence,
                        _signature(facts, place),
                        rule.is_hopeless,
                        rule.is_consequence,
                        fault,
                        rule.is_transient_once,
                    )
    number = _signal_of(facts)
    if number is not None and exception is None:
        kind, text = _SIGNAL_HINTS.get(number, (ExitKind.USER_ERROR, "its log says more"))
        return ExitVerdict(
            kind, f"{facts.replica} {ending}: {text.format(role=facts.role)}.", _signature(facts, number.name)
        )
    if facts.exit_code in (126, 127) and exception is None:
        # Exit codes of /bin/sh: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02
        text = "does not exist" if facts.exit_code == 127 else "is not executable"
        quoted = f": {_quote(lines[-1])}" if lines else ""
        sentence = (
            f"The command of {facts.replica} {text} (exit code {facts.exit_code}){quoted} – correct the command, "
            "or install it where the job runs."
        )
        return ExitVerdict(ExitKind.USER_ERROR, sentence, _signature(facts, text), is_hopeless=True)
    if exception is not None:
        sentence = f"{facts.replica} {ending}: {_quote(exception)} – its log shows where."
        return ExitVerdict(ExitKind.USER_ERROR, sentence, _signature(facts, exception))
    # A message of several lines may end in a bracket: gRPC's do.
    telling = next((line for line in reversed(lines) if any(map(str.isalnum, line))), lines[-1] if lines else "")
    last = f"; its last line was: {_quote(telling.strip())}" if lines else "; it wrote nothing to its log"
    sentence = f"{facts.replica} {ending}{last}"
    if not sentence.endswith((".", "!", "?", "…")):  # the quoted line may end with its own full stop
        sentence += "."
    return ExitVerdict(ExitKind.USER_ERROR, sentence, _signature(facts, telling))


def is_retryable(verdict: ExitVerdict, previous_signature: str | None, *, has_progressed: bool) -> bool:
    """Whether another attempt could end differently.

    Args:
        previous_signature: signature of the previous attempt, if it made no progress either.
        has_progressed: this attempt trained: it reported a step, left a checkpoint, or ran for long.
    """
    if verdict.is_hopeless:
        return False
    repeatable = verdict.kind in (ExitKind.USER_ERROR, ExitKind.OUT_OF_MEMORY) or verdict.is_transient_once
    return not (repeatable and not has_progressed and verdict.signature == previous_signature)


def root_cause(ends: Sequence[ExitFacts]) -> ExitFacts | None:
    """The failure that caused the others: the first in time, but never a lost connection if there is a real failure."""
    failures = sorted(
        (end for end in ends if end.cause is not ExitCause.STOPPED and classify(end).kind is not ExitKind.SUCCESS),
        key=lambda end: (end.at, end.replica),
    )
    if not failures:
        return None
    first = failures[0]
    if not classify(first).is_consequence:
        return first
    return next(
        (end for end in failures if end.at - first.at <= CONSEQUENCE_WINDOW and not classify(end).is_consequence),
        first,
    )


def _signal_of(facts: ExitFacts) -> signal.Signals | None:
    # A shell reports its child's death by a signal as 128 + n.
    if facts.exit_code is None or not 128 < facts.exit_code < 128 + 65:
        return None
    try:
        return signal.Signals(facts.exit_code - 128)
    except ValueError:
        return None


def _ending(facts: ExitFacts) -> str:
    number = _signal_of(facts)
    if number is not None:
        return f"was ended by {number.name} (exit code {facts.exit_code})"
    return "failed" if facts.exit_code is None else f"failed with exit code {facts.exit_code}"


def _signature(facts: ExitFacts, text: str) -> str:
    # Numbers (addresses, pids, line numbers) differ from run to run for the same mistake; so does the role that hits it
    # first, if all roles run one script.
    return f"{facts.exit_code}:{re.sub(r'[0-9]+', '#', text)[:200]}"


def _quote(line: str) -> str:
    return line if len(line) <= _QUOTE_CHARS else line[: _QUOTE_CHARS - 1] + "…"
