from __future__ import annotations

import pytest
from trainmaster.spec import parse_spec
from trainmaster.spec.rules import gang_warnings


def warnings(command, **fields):
    return list(gang_warnings(parse_spec({"name": "job", "command": command, **fields})))


@pytest.mark.parametrize(
    ("command", "fields", "sentence"),
    [
        ("torchrun --nnodes=4 train.py", {"workers": 2}, "for 4 machines (--nnodes), and the job has 2 replicas"),
        (["torchrun", "--nnodes", "2", "t.py"], {}, "for 2 machines (--nnodes), and the job has 1 replicas"),
        ("accelerate launch --num_machines 3 t.py", {"workers": 2}, "set `workers: 3`"),
        ("ray symmetric-run --min-nodes 4 -- python t.py", {"workers": 2}, "for 4 machines (--min-nodes)"),
        ("mpirun -np 1 python t.py", {"workers": 2}, "starts 1 processes in all (-np), and the job has 2 replicas"),
        ("accelerate launch --num_processes 3 t.py", {"workers": 2}, "write a multiple of 2, or change `workers`"),
        ("torchrun --nproc-per-node 8 t.py", {"workers": 2, "gpus": 4}, "a replica has 4 GPUs"),
        ("horovodrun -np 4 python t.py", {"workers": 2}, "2 replicas of 1 processes each: write -np 2, or change"),
        (
            "horovodrun --num-proc=6 python t.py",
            {"workers": 2, "gpus": 4},
            "replicas of 4 processes each: write --num-",
        ),
        ("horovodrun -np 2 python t.py", {"workers": 1, "gpus": 4}, "1 replicas of 4 processes each: write -np 4"),
        ("mpirun --bind-to none -n 4 python t.py", {"workers": 2}, "write -n 2"),
        ("mpirun -np 2 python t.py", {"workers": 2, "gpus": 4}, "write -np 8"),
        ("deepspeed --hostfile h --num_gpus 8 t.py", {"workers": 2, "gpus": 4}, "write --num_gpus 4, or raise `gpus`"),
        ("fabric run --accelerator=cuda --devices=8 t.py", {"workers": 2, "gpus": 4}, "write --devices 4"),
        ("python -m lightning.fabric.cli --devices 8 t.py", {"gpus": 4}, "write --devices 4"),
        ("composer -n 8 t.py", {"workers": 2, "gpus": 4}, "write -n 4"),
        ("accelerate launch --num_processes 8 t.py", {"workers": 1, "gpus": 4}, "and the job has 4 GPUs: write"),
        ("accelerate launch --num_processes=16 t.py", {"workers": 2, "gpus": 4}, "and the job has 8 GPUs: write"),
    ],
)
def test_a_command_that_contradicts_its_gang_is_warned_of(command, fields, sentence):
    (warning,) = warnings(command, **fields)
    assert sentence in warning


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("accelerate launch --num_processes=8 t.py", {"workers": 2}),
        ("accelerate launch --num-processes 3 t.py", {"workers": 2, "gpus": 3}),
        ("torchrun --nnodes=2 train.py", {"workers": 2}),
        ("torchrun --nnodes=1 --standalone train.py", {"workers": 2}),
        ("torchrun --nnodes=3 train.py", {"workers": {"min": 2, "max": 4}}),
        ("torchrun --nnodes=4 train.py", {"workers": 2, "launcher": "none"}),
        ("mpirun -np 4 python t.py -n 1", {"workers": 2, "gpus": 2}),
        ("mpirun --oversubscribe -np 4 python t.py", {"workers": 2}),
        ("mpirun -np 4 python t.py", {"workers": 1}),
        ("mpirun python t.py -n 1", {"workers": 2}),
        ("horovodrun -np 8 python t.py", {"workers": 2, "gpus": 4}),
        ("horovodrun -np 8 python t.py", {"workers": 2, "roles": {"worker": {"processes_per_replica": 4}}}),
        ("horovodrun -np 2 python t.py", {"workers": 1}),
        ("horovodrun -np 3 python t.py", {"workers": {"min": 2, "max": 4}}),
        ("horovodrun -np 4 --min-np 2 --max-np 8 python t.py", {"workers": 2}),
        ("deepspeed t.py --num_gpus 8", {"workers": 2, "gpus": 4}),
        ("fabric run --devices=0,1 t.py --devices 8", {"workers": 2, "gpus": 4}),
        ("composer t.py -n 8", {"workers": 2, "gpus": 4}),
        ("accelerate launch --num_processes 4 t.py", {"workers": 2, "gpus": 4}),
        ("accelerate launch --num_processes 2 t.py", {"workers": 1, "gpus": 4}),
        ("torchrun --nproc-per-node 2 t.py", {"workers": 2}),
        ("python train.py", {"chief": 1, "workers": 2}),
    ],
)
def test_a_command_that_fits_its_gang_gives_no_warning(command, fields):
    assert warnings(command, **fields) == []
