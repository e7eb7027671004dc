from __future__ import annotations

import pytest

from core.domain.contracts.launcher import starts_own_processes


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py",
        ("torchrun", "--nproc-per-node", "2", "train.py"),
        "/opt/conda/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python3.11 -u -m torch.distributed.launch train.py",
        ("python", "-m", "torch.distributed.run", "train.py"),
        "NCCL_DEBUG=INFO exec torchrun train.py",
        "mpirun -np 4 python train.py",
        "horovodrun -np 4 python train.py",
        "accelerate launch train.py",
        "torchrun train.py 'an open quote",
    ],
)
def test_a_launcher_starts_its_processes_itself(command):
    assert starts_own_processes(command)


@pytest.mark.parametrize(
    "command",
    [
        None,
        "",
        "python train.py",
        "python train.py -m torch.distributed.run",
        "python -m mytorchrun",
        "python -m",
        "python",
        "echo torchrun",
        ("sh", "-c", "torchrun x"),
        "# torchrun\npython train.py",
    ],
)
def test_any_other_command_is_started_once_for_each_process(command):
    assert not starts_own_processes(command)
