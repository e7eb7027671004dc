"""Launchers inside a replica: completed so that the ``N`` replicas of a gang become one world.

A user writes the launcher's command line for one machine (``accelerate launch train.py``). In a gang every replica runs
it, and each copy would train alone. :func:`complete` gives it the number of machines, the own machine's rank and the
address of rank 0, as the launcher itself would want them from a user with ``N`` machines.

- Launchers written in Python are completed at their start by ``hooks/sitecustomize.py``, however they are called.
- ``mpirun``, ``mpiexec`` and ``ray`` are programs of ours, first in PATH: rank 0 starts the command once; see
  ``rank_zero.py``.
- ``horovodrun`` and ``perseusrun`` are programs of ours, too: every process of every replica has its ranks before it
  comes here, so they take their own options away and become the command behind them.
"""

from __future__ import annotations

import json
import os
import re
import sys

HOROVOD_NAMES = ("horovodrun", "perseusrun")
MPI_NAMES = ("mpirun", "mpiexec", "orterun")
MPI_STARTER = "trainmaster-mpi-agent"
RAY_NAME = "ray"
# In the environment of what a launcher starts: a launcher below it is the program's own affair.
LAUNCHER_VARIABLE = "TRAINMASTER_LAUNCHED"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping
    from typing import NoReturn


class Machines:
    """The machines of a launcher's world: the replicas with ranks. ``processes``: of this replica."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.count = _number(env, "PET_NNODES", 1)
        self.rank = _number(env, "PET_NODE_RANK", 0)
        self.address = env.get("PET_MASTER_ADDR", "")
        self.port = env.get("PET_MASTER_PORT", "")
        self.processes = _number(env, "PET_NPROC_PER_NODE", 1)
        # In a replica without GPUs the variable is there and empty.
        self.has_gpus = env.get("CUDA_VISIBLE_DEVICES", "?") != ""
        # Numbers or names of this replica's GPUs; empty: it has none, or all of its container.
        self.gpus = [gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]

    def is_address(self, host: str | None) -> bool:
        """Whether other machines may find rank 0 at ``host``."""
        name = (host or "").rpartition(":")[0] or host or ""
        return bool(name) and (name == self.address or not (name.startswith("127.") or name in ("localhost", "::1")))


class Completed:
    """A launcher's new command line.

    Attributes:
        args: behind the program's name.
        added: what is new in it, for people; empty: nothing.
        env: variables to set.
        module: the Python module to run in the launcher's place; ``None``: the launcher itself.
    """

    def __init__(
        self, args: list[str], added: list[str], env: dict[str, str] | None = None, module: str | None = None
    ) -> None:
        self.args = args
        self.added = added
        self.env = env or {}
        self.module = module


def complete(name: str, args: list[str], env: Mapping[str, str]) -> Completed | None:
    """What the launcher ``name`` is called with in this replica; ``None``: as it is.

    Args:
        name: of the program, or of the module behind ``python -m``.
        env: the replica's, with torchrun's ``PET_*``.

    Raises:
        ValueError: with a sentence for the user: the options fit no gang of this size.
    """
    machines = Machines(env)
    rewrite = LAUNCHERS.get(name)
    if rewrite is None or machines.count < 2 or not machines.address:
        return None
    if any(arg in ("-h", "--help", "--version") for arg in args[:2]):
        return None
    return rewrite(args, machines)


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else default


class LauncherOptions:
    """The options before a launcher's program. Names without dashes in front, ``-`` written as ``_``."""

    def __init__(self, args: list[str], flags: frozenset[str]) -> None:
        self.words: list[tuple[str, str | None, list[str]]] = []  # name, value, as it was written
        position = 0
        while position < len(args) and args[position].startswith("-") and args[position] != "--":
            word = args[position]
            name, equals, value = word.partition("=")
            name = name.lstrip("-").replace("-", "_")
            position += 1
            is_joined = not word.startswith("--") and len(name) > 1 and not equals and name not in _LONG
            if equals:
                self.words.append((name, value, [word]))
            elif is_joined:
                self.words.append((name[0], name[1:], [word]))
            elif name in flags or position == len(args):
                self.words.append((name, None, [word]))
            else:
                self.words.append((name, args[position], [word, args[position]]))
                position += 1
        self.program = args[position:]

    def value(self, *names: str) -> str | None:
        return next((value for name, value, _ in reversed(self.words) if name in names), None)

    def has(self, *names: str) -> bool:
        return any(name in names for name, _, _ in self.words)

    def without(self, *names: str) -> list[str]:
        return [word for name, _, words in self.words if name not in names for word in words]

    def count(self, *names: str) -> int | None:
        """The value as a number; ``None``: not given, or a word such as ``auto``."""
        value = self.value(*names)
        return int(value) if value is not None and value.isdigit() else None


_LONG = frozenset({"host", "hostfile", "np"})  # with a single dash
_TORCHRUN_FLAGS = frozenset(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env", "h", "help"}
)
_MEETING = ("nnodes", "node_rank", "master_addr", "master_port")


def _torchrun(args: list[str], machines: Machines) -> Completed | None:
    """https://docs.pytorch.org/docs/stable/elastic/run.html"""
    options = LauncherOptions(args, _TORCHRUN_FLAGS)
    nodes = options.value("nnodes") or "1"
    endpoint = options.value("rdzv_endpoint") or options.value("master_addr")
    if nodes not in ("1", "1:1") and machines.is_address(endpoint) and not options.has("standalone"):
        return None  # written for several machines
    meeting = [
        "--nnodes=%d" % machines.count,
        "--node_rank=%d" % machines.rank,
        "--master_addr=%s" % machines.address,
        "--master_port=%s" % machines.port,
    ]
    rest = options.without(
        *_MEETING, "standalone", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr"
    )
    return Completed([*meeting, *rest, *options.program], meeting)


_ACCELERATE_FLAGS = frozenset(
    word
    for line in (
        "cpu use_cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation",
        "enable_cpu_affinity fp8_use_autocast_during_eval h help m module multi_gpu no_python no_tpu_cluster q quiet",
        "same_network tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config",
        "use_xpu mps",
    )
    for word in line.split()
)


def _accelerate(args: list[str], machines: Machines) -> Completed | None:
    """https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch

    Without GPUs Accelerate starts one process itself and leaves the others to MPI; with ``--multi_gpu`` it starts them
    as torchrun does, and they train on CPUs where ``ACCELERATE_USE_CPU`` says so.
    """
    if args[:1] != ["launch"]:
        return None
    options = LauncherOptions(args[1:], _ACCELERATE_FLAGS)
    if (options.count("num_machines") or 1) > 1 and machines.is_address(options.value("main_process_ip")):
        return None
    total = _total_processes(options.count("num_processes", "num_process"), machines, "--num_processes")
    added = [
        "--num_machines=%d" % machines.count,
        "--machine_rank=%d" % machines.rank,
        "--main_process_ip=%s" % machines.address,
        "--main_process_port=%s" % machines.port,
        "--num_processes=%d" % total,
        "--rdzv_backend=static",
    ]
    env = {} if machines.has_gpus else {"ACCELERATE_USE_CPU": "true"}
    kind = _accelerate_kind(options)
    if kind == "deepspeed":
        added.append("--deepspeed_multinode_launcher=standard")
    elif kind == "" or not machines.has_gpus:
        added.append("--multi_gpu")
    rest = options.without(
        *("num_machines", "machine_rank", "main_process_ip", "main_process_port", "num_processes", "num_process"),
        *("rdzv_backend", "deepspeed_multinode_launcher", "multi_gpu", "cpu", "use_cpu", "mpirun_hostfile"),
        "mpirun_ccl",
    )
    return Completed(["launch", *added, *rest, *options.program], [*added, *_shown(env)], env)


def _accelerate_kind(options: LauncherOptions) -> str:
    """What starts the processes, by options or the configuration file: ``deepspeed``, another word, or empty."""
    if options.has("use_deepspeed"):
        return "deepspeed"
    if options.has("use_fsdp", "use_megatron_lm", "tpu"):
        return "other"
    cache = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    path = options.value("config_file") or os.path.join(cache, "accelerate", "default_config.yaml")
    try:
        with open(path) as stream:
            line = next((line for line in stream if line.strip().strip('"').startswith("distributed_type")), "")
    except OSError:
        return ""
    kind = line.partition(":")[2].strip(" \t\r\n\"',").upper()
    return "deepspeed" if kind == "DEEPSPEED" else "other" if kind in ("FSDP", "MEGATRON_LM", "XLA") else ""


def _total_processes(number: int | None, machines: Machines, option: str) -> int:
    """All processes of the world: ``number`` counts them all, or those of one machine, as its value fits."""
    if number is None or number == machines.processes:
        return machines.count * machines.processes
    if number % machines.count:
        raise ValueError(
            "%s is %d, which %d replicas cannot share equally: write a multiple of %d, or change `workers`."
            % (option, number, machines.count, machines.count)
        )
    return number


def _fabric(args: list[str], machines: Machines) -> Completed | None:
    """``fabric run``, and ``lightning run model`` of Lightning 2.0 and 2.1.

    https://lightning.ai/docs/fabric/stable/fundamentals/launch.html
    """
    length = 2 if args[:2] == ["run", "model"] else 1
    if args[:1] != ["run"]:
        return None
    options = LauncherOptions(args[length:], frozenset({"help"}))
    if (options.count("num_nodes") or 1) > 1 and machines.is_address(options.value("main_address")):
        return None
    added = [
        "--num-nodes=%d" % machines.count,
        "--node-rank=%d" % machines.rank,
        "--main-address=%s" % machines.address,
        "--main-port=%s" % machines.port,
    ]
    if not options.has("devices"):
        added.append("--devices=%d" % machines.processes)
    rest = options.without("num_nodes", "node_rank", "main_address", "main_port")
    return Completed([*args[:length], *added, *rest, *options.program], added)


_DEEPSPEED_PASSED = ("module", "no_python", "no_local_rank", "bind_cores_to_rank", "bind_core_list", "log_level")
_OWN_HOSTS = ("localhost", "127.0.0.1")
_DEEPSPEED_FLAGS = frozenset(
    word
    for line in (
        "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank",
        "q quiet h help",
    )
    for word in line.split()
)


def _deepspeed(args: list[str], machines: Machines) -> Completed | None:
    """The part of DeepSpeed's runner that runs on each machine, which the runner itself would start over ssh.

    https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
    """
    options = LauncherOptions(args, _DEEPSPEED_FLAGS)
    if options.has("autotuning", "elastic_training"):
        return None
    if options.has("no_ssh") and machines.is_address(options.value("master_addr")):
        return None
    slots = _slots(options, machines)
    import base64

    # DeepSpeed makes of the own replica's list CUDA_VISIBLE_DEVICES, and only counts those of the others.
    own = [machines.gpus[slot] for slot in slots] if machines.gpus else slots
    world = {"replica-%d" % number: own if number == machines.rank else slots for number in range(machines.count)}
    encoded = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    added = [
        "--node_rank=%d" % machines.rank,
        "--master_addr=%s" % machines.address,
        "--master_port=%s" % machines.port,
    ]
    passed = [word for name, _, words in options.words if name in _DEEPSPEED_PASSED for word in words]
    shown = ["--no_ssh", "--num_nodes=%d" % machines.count, "--num_gpus=%d" % len(slots), *added]
    return Completed(
        ["--world_info=" + encoded, *added, *passed, *options.program], shown, module="deepspeed.launcher.launch"
    )


def _slots(options: LauncherOptions, machines: Machines) -> list[int]:
    """Positions of the GPUs that each replica's processes get, one each; without GPUs as many as there are processes.

    https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node
    """
    number = options.count("num_gpus", "num_accelerators")
    chosen = [(name, options.value(*names)) for name, names in _CHOICES if options.has(*names)]
    total = len(machines.gpus)
    if number is not None and 0 < total < number:
        raise ValueError("--num_gpus is %d, and a replica has %d GPUs: write less, or raise `gpus`." % (number, total))
    if not chosen:
        return list(range(number or machines.processes))
    if len(chosen) > 1 or number is not None:
        raise ValueError("of --include, --exclude and --num_gpus only one can be given.")
    name, text = chosen[0]
    host, colon, numbers = (text or "").partition(":")
    if host not in _OWN_HOSTS or not re.fullmatch("[0-9]+(,[0-9]+)*", numbers if colon else "0"):
        raise ValueError(
            "%s is '%s', but each replica is the machine `localhost` to it: write the numbers of a replica's GPUs, "
            "such as `%s localhost:0,1`." % (name, text, name)
        )
    all_slots = list(range(total or machines.processes))
    named = sorted(set(map(int, numbers.split(",")))) if colon else all_slots
    if 0 < total <= named[-1]:
        raise ValueError(
            "%s names GPU %d, and a replica has %d GPUs, from 0 on: write less, or raise `gpus`."
            % (name, named[-1], total)
        )
    if name == "--include":
        return named
    left = [slot for slot in all_slots if slot not in named]
    if not left:
        raise ValueError("--exclude %s leaves no GPU of the replica's %d: name less." % (text, len(all_slots)))
    return left


_CHOICES = (("--include", ("include", "i")), ("--exclude", ("exclude", "e")))


def _composer(args: list[str], machines: Machines) -> Completed | None:
    """https://docs.mosaicml.com/projects/composer/en/stable/trainer/using_the_trainer.html#distributed-training"""
    options = LauncherOptions(args, frozenset({"v", "verbose", "m", "module_mode", "c", "command_mode", "h", "help"}))
    processes = options.count("n", "nproc") or machines.processes
    if (options.count("world_size") or 1) > processes and machines.is_address(options.value("master_addr")):
        return None
    added = [
        "--nproc=%d" % processes,
        "--world_size=%d" % (machines.count * processes),
        "--node_rank=%d" % machines.rank,
        "--base_rank=%d" % (machines.rank * processes),
        "--master_addr=%s" % machines.address,
        "--master_port=%s" % machines.port,
    ]
    rest = options.without("n", "nproc", "world_size", "node_rank", "base_rank", "master_addr", "master_port")
    return Completed([*added, *rest, *options.program], added)


def _colossalai(args: list[str], machines: Machines) -> Completed | None:
    """``colossalai run`` starts torchrun on each machine over ssh: here it becomes this machine's torchrun."""
    if args[:1] != ["run"]:
        return None
    options = LauncherOptions(args[1:], frozenset({"m", "help"}))
    processes = options.count("nproc_per_node") or machines.processes
    more = ["--" + pair for pair in (options.value("extra_launch_args") or "").split(",") if pair]
    module = ["-m"] if options.has("m") else []
    meeting = _torchrun(["--nproc_per_node=%d" % processes, *more, *module, *options.program], machines)
    assert meeting is not None  # noqa: S101 (it has no address of the user's)
    return Completed(meeting.args, meeting.added, module="torch.distributed.run")


def _behind_launch(args: list[str], machines: Machines) -> Completed | None:
    completed = _accelerate(["launch", *args], machines)
    if completed is not None:
        del completed.args[0]
    return completed


def _behind_run(args: list[str], machines: Machines) -> Completed | None:
    completed = _fabric(["run", *args], machines)
    if completed is not None:
        del completed.args[0]
    return completed


LAUNCHERS: dict[str, Callable[[list[str], Machines], Completed | None]] = {
    "torchrun": _torchrun,
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _torchrun,
    "accelerate": _accelerate,
    "accelerate.commands.accelerate_cli": _accelerate,
    "accelerate-launch": _behind_launch,
    "accelerate.commands.launch": _behind_launch,
    "fabric": _fabric,
    "lightning": _fabric,
    "lightning.fabric.cli": _behind_run,
    "lightning_fabric.cli": _behind_run,
    "deepspeed": _deepspeed,
    "deepspeed.launcher.runner": _deepspeed,
    "composer": _composer,
    "composer.cli": _composer,
    "composer.cli.launcher": _composer,
    "colossalai": _colossalai,
}


def _shown(env: Mapping[str, str]) -> list[str]:
    return ["%s=%s" % item for item in sorted(env.items())]


# What the platform gave the processes of a plain command; a launcher's processes get theirs from it.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "PL_TRAINER_DEVICES")
_RANK_PREFIXES = ("HOROVOD_", "JAX_")


def complete_python() -> None:
    """Complete the launcher that this Python process is about to run, if it is any. Called at Python's start.

    It changes ``sys.argv`` in place, or executes another module in its place. Ends the process where the options fit
    no gang of this size, and where another process of the replica, which was started with the same command, launches.
    """
    argv = getattr(sys, "argv", None)  # not there yet in old versions of Python
    if not argv or LAUNCHER_VARIABLE in os.environ or os.environ.get("TRAINMASTER_LAUNCHER") == "none":
        return
    name = _module_name() if argv[0] == "-m" else os.path.basename(argv[0])
    if name not in LAUNCHERS:
        return
    leave_to_first(name)
    try:
        completed = complete(name, argv[1:], os.environ)
    except ValueError as error:
        _refuse(name, str(error))
    else:
        if completed is None:
            return
        take_ranks_away(os.environ, name)
        os.environ.update(completed.env)
        report_added(name, completed.added)
        if completed.module is None:
            argv[1:] = completed.args
        else:
            os.execv(sys.executable, [sys.executable, "-m", completed.module, *completed.args])  # noqa: S606


def own_command() -> list[str]:
    """This process's command line, as Python was called; empty: unknown."""
    words: list[str] = list(getattr(sys, "orig_argv", ()))
    if not words:  # before Python 3.10
        try:
            with open("/proc/self/cmdline") as stream:
                words = stream.read().split("\0")[:-1]
        except OSError:
            return []
    return words


def _module_name() -> str:
    """Of ``python -m``."""
    words = own_command()
    for number, word in enumerate(words[1:], start=1):
        if word == "-m":
            return words[number + 1] if number + 1 < len(words) else ""
        if word.startswith("-m"):
            return word[2:]
    return ""


def leave_to_first(name: str) -> None:
    """Where the platform has started several processes of the same command, such as a script with torchrun in it, the
    first launches for all of them, and the others end here.
    """
    if _number(os.environ, "LOCAL_WORLD_SIZE", 1) < 2:
        return
    if os.environ.get("LOCAL_RANK") != "0":
        say("%s: local process 0 of this replica launches, this process ends" % name)
        os._exit(0)
    take_ranks_away(os.environ, name)


def take_ranks_away(env: MutableMapping[str, str], name: str) -> None:
    for variable in [v for v in env if v in _RANK_VARIABLES or v.startswith(_RANK_PREFIXES)]:
        del env[variable]
    env[LAUNCHER_VARIABLE] = name


def report_added(name: str, added: list[str]) -> None:
    """Show what the platform added: in the log, and on the job's page by an event of rank 0's replica."""
    if not added:
        return
    sentence = "%s: added for %s replicas: %s" % (name, os.environ.get("PET_NNODES"), " ".join(added))
    say(sentence)
    if os.environ.get("PET_NODE_RANK") == "0":
        report(os.environ, "train.launcher", sentence)


def report(env: Mapping[str, str], event: str, sentence: str) -> None:
    """Append an event to the replica's report file, if there is one."""
    try:
        fd = os.open(env.get("TRAINMASTER_REPORT_FILE", ""), os.O_WRONLY | os.O_APPEND)
    except OSError:
        return
    try:
        os.write(fd, json.dumps({"kind": "event", "event": event, "reason": sentence}).encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(fd)


def next_program(path: str, env: Mapping[str, str]) -> str | None:
    """The program of the same name that comes in PATH behind ``path``, which is one of ours."""
    own, name = os.path.split(os.path.abspath(path))
    for folder in (env.get("PATH") or os.defpath).split(":"):
        other = os.path.join(folder, name)
        if folder and os.path.realpath(folder) != os.path.realpath(own) and os.access(other, os.X_OK):
            return other
    return None


def say(sentence: str) -> None:
    os.write(2, ("trainmaster: %s\n" % sentence).encode())


def _refuse(name: str, sentence: str) -> NoReturn:
    os.write(2, ("%s: %s\n" % (name, sentence)).encode())
    os._exit(2)


def rank_zero_path() -> str:
    """The file of the launchers that start once."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_zero.py")


def put_launchers(folder: str) -> None:
    """Write the programs into ``folder``, which is made."""
    from trainmaster_runtime.horovodrun import PROGRAM

    os.makedirs(folder, mode=0o755, exist_ok=True)
    start_once = '#!/bin/sh\nexec "%s" -I -S "%s" "$0" "$@"\n' % (sys.executable, rank_zero_path())
    names_once = (*MPI_NAMES, MPI_STARTER, RAY_NAME)
    programs = {**dict.fromkeys(HOROVOD_NAMES, PROGRAM), **dict.fromkeys(names_once, start_once)}
    for name, text in programs.items():
        path = os.path.join(folder, name)
        with open(path, "w") as stream:
            stream.write(text)
        os.chmod(path, 0o755)  # noqa: S103 (a program that the job's user executes)
