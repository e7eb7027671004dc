"""Fixed places in a job's container, and what the engine must mount there."""

from __future__ import annotations

from typing import Final

from executors.base import ReplicaOrder

WORK: Final = "/data"
RUNTIME: Final = "/trainmaster/runtime"
# In the runtime image: uv, which only jobs with requirements get, in RUNTIME.
INSTALLER: Final = "/trainmaster/tools"
ORDER: Final = "/trainmaster/order"
STATE: Final = "/trainmaster/state"
CODE: Final = "/trainmaster/code.tar.gz"  # read-only; for drivers that copy the archive into the container
EXIT_RECORD: Final = f"{STATE}/exit.json"
STOP_MARK: Final = f"{STATE}/stop.json"
STATUS: Final = f"{STATE}/status.json"
WORLD: Final = f"{STATE}/world.json"  # of an elastic gang: the newest world
# For engines that can change a file of a running container, but lose its exit by a signal: empty until
# the stop is requested, then what STOP_MARK would hold.
REQUESTS: Final = "/trainmaster/asked"
STOP_REQUEST: Final = f"{REQUESTS}/stop"
# The same for WORLD: empty, or its content compressed by zlib and then in base64.
WORLD_REQUEST: Final = f"{REQUESTS}/world"
TERMINATION_LOG: Final = "/dev/termination-log"  # Kubernetes' own default
# In ORDER: the expected inode of each mount, one line "<inode> <target>" each; `start` compares them.
MOUNT_INODES: Final = "places"
OWN: Final = f"{WORK}/.trainmaster"
JOINS: Final = f"{OWN}/joins"  # written by a replica that joins an elastic gang, when it is ready for its world


def entry() -> tuple[str, ...]:
    """The command of process 1, instead of the image's entrypoint *and* command.

    It needs nothing of the image: no shell, no library. Its exit code is the command's.
    """
    return (f"{RUNTIME}/busybox", "sh", f"{RUNTIME}/start")


def scratch_folders(order: ReplicaOrder) -> tuple[str, ...]:
    """The empty folders to mount, parents first, before ``order.mounts`` (which lie below ``/data`` among others).

    They are new for every container, whose user may write in them: mode 0777 where the engine cannot know that user.

    With a code archive ``/data`` is an empty folder, and the archive is unpacked there. Without one the image's own
    ``/data`` stays visible, for that is where images of UAI's kind hold their code, and only ``/data/.trainmaster``
    is ours: the hostfile lies there, and the image's ``/data`` may not be the user's to write to.
    """
    return (STATE, WORK if order.code_digest is not None else OWN)
