"""Machine faults in log lines and engine messages: which phrases blame the node, and how certainly. Pure.

Xids are the errors that NVIDIA's driver writes to the kernel's log. Their meaning is NVIDIA's
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): *reset the GPU* or *restart the machine* is a
certain fault; *restart the application* and *check the application* blame the program; all others are only suspicious.
Other programs number their transactions with an xid: only the driver's own format is certain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# RESET_GPU, RESTART_BM, or "a reset or reboot is needed to clear this error". Not 155: intended ends of a link cause
# it, too.
_RESET_XIDS: Final = frozenset({46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158, 171, 172})
# Program errors: an address or an index out of bounds, an illegal stream of commands, a terminated program.
_PROGRAM_XIDS: Final = frozenset({8, 11, 13, 14, 25, 31, 43, 44, 45, 66, 67, 68, 69, 80, 106, 107, 137})
_XID_NAMES: Final = {
    48: "uncorrectable ECC error",
    63: "a row of GPU memory was remapped",
    64: "remapping GPU memory failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many correctable ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
    140: "uncorrectable ECC error",
}

_XID: Final = r"\b[Xx][Ii][Dd]\b(?: errors?)?:?\s*(?:\([^)]*\))?\s*:?\s*"
# Prefixes of the driver's lines in the kernel log, or device names.
_IN_DRIVERS_WORDS: Final = re.compile(r"\bNVRM\b|\bXid \(PCI:")
_OF_PROGRAMS: Final = "|".join(map(str, sorted(_PROGRAM_XIDS)))
_XID_NUMBER: Final = re.compile(rf"{_XID}(\d{{1,3}})\b")

XID_OF_PROGRAMS: Final = rf"{_XID}(?:{_OF_PROGRAMS})\b"
_MACHINES_XID: Final = rf"{_XID}(?!(?:{_OF_PROGRAMS})\b)\d{{1,3}}\b"

# Pattern, phrase for sentences, and whether it alone is certain.
_WORDS: Final = (
    (r"uncorrectable ECC", "uncorrectable ECC error", True),
    (r"fallen off the bus", "GPU fallen off the bus", True),
    (r"GPU is lost|NVMLError_GpuIsLost", "GPU lost", True),
    (r"NVMLError_ResetRequired|GPU requires (?:a )?reset", "GPU that needs a reset", True),
    (r"CUDA error: hardware", "hardware error of a GPU", False),
    (
        (
            r"Driver/library version mismatch|NVMLError_LibRmVersionMismatch"
            r"|Unable to determine the device handle for GPU"
            r"|NVMLError_(?:Unknown|IrqIssue|CorruptedInforom)|Failed to initialize NVML: Unknown Error"
            r"|nvidia-container-cli: (?:initialization|detection|device) error"
        ),
        "error of the GPUs' driver",
        False,
    ),
    (
        r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA error: system not yet initialized",
        "GPU that does not answer",
        False,
    ),
    (r"\[Errno 5\]|\bInput/output error\b", "input/output error", False),
)
_COMPILED: Final = tuple((re.compile(words), error, is_certain) for words, error, is_certain in _WORDS)

# All patterns of machine faults in one, for the table of exits.
OF_MACHINES: Final = "|".join([*(words for words, _, _ in _WORDS), _MACHINES_XID])


@dataclass(frozen=True, slots=True)
class MachineFault:
    """A fault of the machine. ``error``: a phrase, such as "uncorrectable ECC error".

    ``is_certain``: it alone shows that the machine needs repair; otherwise it is a suspicion. ``is_loss``: everything
    on the machine ended together.
    """

    error: str
    is_certain: bool = False
    is_loss: bool = False

    @property
    def is_xid(self) -> bool:
        return self.error.startswith("Xid ")


NODE_LOST: Final = MachineFault("the node was lost", is_loss=True)
REFUSED: Final = MachineFault("the node refused the start")


def fault_in(line: str, *, is_exception: bool = False) -> MachineFault | None:
    """The machine fault in ``line`` of a log, or in an engine's message.

    ``is_exception``: the program raised it, so that an Xid in it is no evidence.
    """
    found = _XID_NUMBER.search(line)
    number = int(found.group(1)) if found else 0
    if found and number not in _PROGRAM_XIDS:
        name = _XID_NAMES.get(number)
        is_certain = number in _RESET_XIDS and not is_exception and _IN_DRIVERS_WORDS.search(line) is not None
        return MachineFault(f"Xid {number}, {name}" if name else f"Xid {number}", is_certain)
    for pattern, error, is_certain in _COMPILED:
        if pattern.search(line):
            return MachineFault(error, is_certain)
    return None
