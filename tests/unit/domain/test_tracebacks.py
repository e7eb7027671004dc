from __future__ import annotations

import pytest

from core.domain.jobs.tracebacks import exception_at_end

HEAD = "epoch 1\nTraceback (most recent call last):\n"
FRAME = '  File "/data/t.py", line 3, in <module>\n    step(batch)\n    ~~~~^^^^^^^\n'
CUDA = (
    "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/ for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\nsocketStartConnect: Connect to 10.0.0.2<41375> failed : Software caused connection abort\n"
)
SIZES = "RuntimeError: Error(s) in loading state_dict for Net:\n" + 20 * (
    "\tsize mismatch for fc.weight: copying a param with shape torch.Size([10, 5]).\n"
)
TORCHRUN = (
    "Traceback (most recent call last):\n"
    + FRAME
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    f" \n{60 * '='}\nt.py FAILED\n{60 * '-'}\nFailures:\n  <NO_OTHER_FAILURES>\n{60 * '-'}\n"
    f"Root Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 7)\n{60 * '='}\n"
)
AT_EXIT = "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + HEAD[8:] + FRAME + "OSError: [Errno 9] Bad file\n"
LOGGING = (
    "--- Logging error ---\n" + HEAD[8:] + FRAME + "TypeError: not all arguments converted\nCall stack:\n"
    '  File "/data/t.py", line 9, in <module>\n    log.info("x", 1)\nMessage: \'x\'\nArguments: (1,)\n'
)


@pytest.mark.parametrize(
    ("log", "exception"),
    [
        (HEAD + FRAME + "KeyError: 512", "KeyError: 512"),
        (HEAD + FRAME + "KeyboardInterrupt\ndone\n", "KeyboardInterrupt"),
        (HEAD + FRAME + CUDA + "done", "torch.AcceleratorError: CUDA error: device-side assert triggered"),
        (HEAD + FRAME + NCCL, NCCL.splitlines()[0]),
        (HEAD + FRAME + SIZES + "done", SIZES.splitlines()[0]),
        (TORCHRUN + "done", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (HEAD + FRAME + "subprocess.CalledProcessError: Command '['a',\n'b']' returned 1.", None),
        (HEAD + FRAME + "botocore.errorfactory.NoSuchKey: An error occurred\n", None),
        (HEAD + FRAME + "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::f()\n", None),
        (HEAD + FRAME + "queue.Empty\n", None),
        (FRAME.partition("\n")[2] + FRAME + "KeyError: 512\n", "KeyError: 512"),
        ("".join(f"[rank1]: {line}\n" for line in (HEAD + FRAME + "KeyError: 512").splitlines()), "KeyError: 512"),
        (HEAD + FRAME + "KeyError: 512\n" + LOGGING + AT_EXIT + "trainmaster: a note", "KeyError: 512"),
    ],
)
def test_the_exception_at_the_end_is_found(log, exception):
    expected = exception or log.partition(FRAME)[2].splitlines()[0]
    assert exception_at_end(log) == expected.rstrip()


@pytest.mark.parametrize(
    "log",
    [
        "",
        "KeyError: 512",
        HEAD + FRAME + "KeyError: 512\n" + "".join(f"epoch {n}: loss=0.{n}\n" for n in range(12)),
        'Current thread 0x7f (most recent call first):\n  File "t.py", line 3 in f\n',
        "epoch 9\n" + AT_EXIT,
        "epoch 9\n" + LOGGING,
        HEAD + FRAME,
    ],
)
def test_a_program_that_went_on_ended_with_no_exception(log):
    assert exception_at_end(log) is None
