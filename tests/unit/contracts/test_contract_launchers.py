from __future__ import annotations

import pytest
from trainmaster.spec import Launcher

from core.domain.contracts.launcher import starts_own_processes, with_launcher


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
        "/opt/conda/bin/horovodrun -np 4 python train.py",
        "python -m horovod.runner.launch -np 4 python train.py",
        "accelerate launch train.py",
        "torchrun train.py 'an open quote",
        ("sh", "-c", "torchrun x"),
        ["bash", "-c", "cd src && torchrun train.py"],
        ["/bin/bash", "-e", "-o", "pipefail", "-lc", "cd src; exec torchrun train.py"],
        ["bash", "-euo", "pipefail", "-c", "torchrun train.py"],
        "cd src && torchrun train.py",
        "pip install -r requirements.txt; torchrun train.py",
        "# prepares\npython prepare.py\ntorchrun train.py",
        "set -e\nif true; then\n  OMP_NUM_THREADS=2 torchrun \\\n --nproc-per-node 2 train.py\nfi",
        "(cd src && python -u -W ignore -m torch.distributed.run train.py)",
        "sh -c 'cd src && bash -c \"torchrun train.py\"'",
        "python prepare.py  # it's first\ntorchrun train.py",
        "echo 'a # b' && torchrun train.py",
        "timeout -k 5 1h nice -n 5 torchrun train.py",
        "env -u HOME A=b torchrun train.py",
        "python prepare.py | tee log && deepspeed train.py",
        "python -maccelerate.commands.launch train.py",
        "python -m accelerate.commands.accelerate_cli launch train.py",
        "cd src && mpirun -np 4 python train.py 2>&1 | tee log",
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
        "horovodrun -np 4 -H h1:2,h2:2 python train.py",
        "cd src && perseusrun -np 4 python train.py",
        ["sh", "-c", "exec horovodrun -np 4 python train.py"],
        "python train.py -m torch.distributed.run",
        "python -m mytorchrun",
        "python -m",
        "python",
        "echo torchrun",
        "# torchrun\npython train.py",
        "python train.py  # not torchrun; torchrun x",
        "accelerate config && python train.py",
        ("echo", "&&", "torchrun"),
        ("sh", "start.sh", "-c", "torchrun x"),
        ("sh", "-c", "python train.py torchrun"),
        ("sh", "-c"),
        ("python", "-c", "torchrun"),
        "echo 'cd src && torchrun x'",
        "bash run.sh torchrun",
    ],
)
def test_any_other_command_is_started_once_for_each_process(command):
    assert not starts_own_processes(command)


def test_a_launcher_behind_a_shell_is_one_process_with_torchruns_variables(gang):
    rendered = gang({"workers": 2, "processes_per_replica": 2, "command": ["sh", "-c", "cd src && torchrun x"]})(
        "worker"
    )
    assert rendered.process_env == ({},)
    assert rendered.env["PET_NPROC_PER_NODE"] == "2"
    assert "RANK" not in rendered.env


@pytest.mark.parametrize(
    ("launcher", "command", "words"),
    [
        ("torchrun", "python train.py --x 1", "python -m torch.distributed.run train.py --x 1"),
        ("torchrun", ["python3.11", "-u", "-m", "a.b"], "python3.11 -m torch.distributed.run --module a.b"),
        ("accelerate", "/opt/bin/python t.py", "/opt/bin/python -m accelerate.commands.launch t.py"),
        ("deepspeed", "python -m a", "python -m deepspeed.launcher.runner --module a"),
        ("composer", "./train", "python -m composer.cli.launcher --command_mode ./train"),
        ("mpirun", "python t.py", "mpirun python t.py"),
        ("horovodrun", ["python", "t.py"], "horovodrun python t.py"),
        ("ray", "python t.py", "ray symmetric-run -- python t.py"),
    ],
)
def test_a_chosen_launcher_stands_before_a_plain_command(launcher, command, words):
    assert with_launcher(command, Launcher(launcher)) == tuple(words.split())


def test_a_shells_text_behind_a_chosen_launcher_stays_a_shells():
    text = "cd src && python train.py"
    assert with_launcher(text, Launcher.MPIRUN) == ("mpirun", "/bin/sh", "-c", text)
    prefix = ("python", "-m", "torch.distributed.run", "--no_python")
    assert with_launcher(text, Launcher.TORCHRUN) == (*prefix, "/bin/sh", "-c", text)


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize("command", [None, "torchrun train.py", ("mpirun", "python", "t.py"), "ray symmetric-run -- x"])
def test_a_command_with_a_launcher_gets_no_second_launcher(launcher, command):
    assert with_launcher(command, launcher) == command


def test_a_chosen_launcher_sets_the_ranks_itself(gang):
    rendered = gang({"workers": 2, "command": "python train.py", "launcher": "torchrun"})("worker")
    assert rendered.command == ("python", "-m", "torch.distributed.run", "train.py")
    assert "RANK" not in rendered.env
    assert rendered.env["PET_NNODES"] == "2"


def test_independent_replicas_keep_their_command_and_are_named_so(gang):
    rendered = gang({"workers": 2, "command": "torchrun --standalone train.py", "launcher": "none"})("worker")
    assert rendered.command == "torchrun --standalone train.py"
    assert rendered.env["TRAINMASTER_LAUNCHER"] == "none"


@pytest.mark.parametrize(("workers", "has_ranks"), [(1, False), (2, True)])
def test_a_single_process_without_launcher_has_no_rank(gang, workers, has_ranks):
    rendered = gang({"workers": workers, "command": "python train.py", "launcher": "none"})("worker")
    assert [name in rendered.env for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")] == [has_ranks] * 3
    assert "RANK" in gang({"workers": workers, "command": "python train.py"})("worker").env


@pytest.mark.parametrize(("workers", "gpus", "on_cpus"), [(2, 0, True), (2, 1, False), (1, 0, False)])
def test_accelerate_below_a_launcher_uses_the_ranks_of_processes_without_gpus(gang, workers, gpus, on_cpus):
    rendered = gang({"workers": workers, "gpus": gpus, "command": "torchrun train.py"})("worker")
    assert ("ACCELERATE_USE_CPU" in rendered.env) is on_cpus
