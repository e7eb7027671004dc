from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trainmaster_runtime
from trainmaster_runtime.launchers import HOROVOD_NAMES, MPI_NAMES, MPI_STARTER, RAY_NAME, complete, put_launchers

HOOKS = str(Path(trainmaster_runtime.__file__).parent / "hooks")

TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def launch(tmp_path):
    """``launch(words, **environment) -> CompletedProcess``; the programs are first in PATH, as in a replica."""
    put_launchers(str(tmp_path / "bin"))

    def launch(*words, **environment):
        env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOROVOD_SIZE": "4", "HOROVOD_RANK": "3", **environment}
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)

    return launch


@pytest.mark.parametrize(
    "options",
    [
        "-np 4",
        "-np 4 -H h1:2,h2:2 --verbose",
        "--num-proc=4 --hosts h1:2,h2:2 -p 12345 --gloo --disable-cache",
        "-np 4 -hostfile hosts --network-interface eth0 --start-timeout 30 --tcp",
        "-np 4 --min-np 2 --max-np 8 --host-discovery-script ./hosts.sh --blacklist-cooldown-range 1 5",
        "--min-np 4",
        "-np 4 --mpi-args=--oversubscribe --",
        "",
    ],
)
@pytest.mark.parametrize("name", ["horovodrun", "perseusrun"])
def test_the_command_behind_the_options_runs_as_it_is(launch, name, options):
    done = launch(name, *options.split(), sys.executable, "-c", TELL, "--np", "two words", "-x")
    assert done.returncode == 0, done.stderr
    argv, env = json.loads(done.stdout)
    assert argv == ["--np", "two words", "-x"]
    assert env["HOROVOD_RANK"] == "3"


def test_options_that_the_processes_care_for_become_horovods_variables(launch):
    words = (
        "-np 4 --fusion-threshold-mb 2 --cycle-time-ms=3.5 --stall-check-warning-time-seconds 9 -x A=b "
        "--timeline-filename t"
    )
    _, env = json.loads(launch("horovodrun", *words.split(), sys.executable, "-c", TELL).stdout)
    assert env["HOROVOD_FUSION_THRESHOLD"] == "2097152"
    assert env["HOROVOD_CYCLE_TIME"] == "3.5"
    assert env["HOROVOD_STALL_CHECK_TIME_SECONDS"] == "9"
    assert env["HOROVOD_TIMELINE"] == "t"
    assert env["A"] == "b"


def test_a_shell_and_a_script_find_it_too(launch, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"cd /\nexec horovodrun -np 4 -H a:4 {sys.executable} -c 'print(2 + 2)'\n")
    assert launch("sh", str(script)).stdout == "4\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-np 8 python x", "horovodrun: -np 8, but the job has 4 processes"),
        ("--min-np 5 python x", "--min-np 5"),
        ("--max-np 3 python x", "--max-np 3, but the job has 4 processes"),
        ("-np four python x", "not 'four'"),
        ("-np 4", "there is no command behind the options"),
        ("-np", "-np needs a value"),
        ("--mpi python x", "without MPI"),
        ("--frobnicate python x", "the option --frobnicate is not known"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(launch, words, sentence):
    done = launch("horovodrun", *words.split())
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_process_without_a_rank_gets_a_message(launch):
    done = launch("horovodrun", "-np", "1", "true", HOROVOD_SIZE="")
    assert (done.returncode, "gave this process no rank" in done.stderr) == (2, True)


def test_the_programs_can_be_executed(tmp_path):
    put_launchers(str(tmp_path / "bin"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "bin").iterdir()}
    assert set(modes) == {*HOROVOD_NAMES, *MPI_NAMES, MPI_STARTER, RAY_NAME}
    assert set(modes.values()) == {0o755}


def test_horovodrun_in_a_world_of_one_process_is_the_images_own(launch, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "horovodrun").write_text("#!/bin/sh\necho own $*\n")
    (own / "horovodrun").chmod(0o755)
    env = {"HOROVOD_SIZE": "", "PET_NNODES": "1"}
    path = f"{tmp_path / 'bin'}:{own}:/usr/bin:/bin"
    assert launch("horovodrun", "-np", "2", "x", PATH=path, **env).stdout == "own -np 2 x\n"
    assert launch("horovodrun", "-np", "1", "echo", "alone", **env).stdout == "alone\n"
    assert launch("horovodrun", "-np", "2", "true", **env).returncode == 2


GANG = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "worker-0",
    "PET_MASTER_PORT": "29500",
    "PET_NPROC_PER_NODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
TORCH = "--nnodes=2 --node_rank=1 --master_addr=worker-0 --master_port=29500"
FABRIC = "--num-nodes=2 --node-rank=1 --main-address=worker-0 --main-port=29500"
ACCELERATE = (
    "--num_machines=2 --machine_rank=1 --main_process_ip=worker-0 --main_process_port=29500 --num_processes={} "
    "--rdzv_backend=static"
)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("torchrun train.py --nnodes 7", f"{TORCH} train.py --nnodes 7"),
        ("torchrun --standalone --nproc-per-node 2 train.py", f"{TORCH} --nproc-per-node 2 train.py"),
        ("torchrun --nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 -m a.b", f"{TORCH} -m a.b"),
        ("torchrun --nnodes 2 --node_rank= --master_addr= train.py", f"{TORCH} train.py"),
        ("torch.distributed.launch --use_env --master_addr 127.0.0.1 t.py -m", f"{TORCH} --use_env t.py -m"),
        (
            "accelerate launch --num_processes 2 --mixed_precision fp16 a.py -m x",
            f"launch {ACCELERATE.format(2)} --multi_gpu --mixed_precision fp16 a.py -m x",
        ),
        ("accelerate-launch --cpu a.py", f"{ACCELERATE.format(2)} --multi_gpu a.py"),
        ("accelerate.commands.launch --num_processes=4 a.py", f"{ACCELERATE.format(4)} --multi_gpu a.py"),
        (
            "fabric run --accelerator cpu --num_nodes 1 f.py",
            f"run {FABRIC} --devices=1 --accelerator cpu f.py",
        ),
        (
            "lightning run model --devices 2 f.py",
            f"run model {FABRIC} --devices 2 f.py",
        ),
        ("lightning.fabric.cli --devices=2 f.py run", f"{FABRIC} --devices=2 f.py run"),
        ("lightning_fabric.cli f.py", f"{FABRIC} --devices=1 f.py"),
        (
            "composer.cli -n 2 c.py",
            "--nproc=2 --world_size=4 --node_rank=1 --base_rank=2 --master_addr=worker-0 --master_port=29500 c.py",
        ),
        (
            "composer -n 2 c.py -n 3",
            "--nproc=2 --world_size=4 --node_rank=1 --base_rank=2 --master_addr=worker-0 --master_port=29500 c.py -n 3",
        ),
        ("colossalai run --nproc_per_node 2 --host a,b c.py", f"{TORCH} --nproc_per_node=2 c.py"),
    ],
)
def test_a_launcher_for_a_single_machine_is_completed_to_the_world_of_its_gang(line, completed, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    name, *args = line.split()
    assert complete(name, args, GANG).args == completed.split()


def test_deepspeeds_part_for_a_machine_runs_without_ssh():
    done = complete("deepspeed", ["--num_gpus", "2", "--hostfile", "h", "--module", "train", "--x"], GANG)
    assert done.module == "deepspeed.launcher.launch"
    world = json.loads(base64.urlsafe_b64decode(done.args[0].partition("=")[2]))
    assert world == {"replica-0": [0, 1], "replica-1": [0, 1]}
    assert done.args[1:] == (
        ["--node_rank=1", "--master_addr=worker-0", "--master_port=29500", "--module", "train", "--x"]
    )


@pytest.mark.parametrize(
    ("options", "own", "other"),
    [
        ("--include localhost:0,1", ["4", "5"], [0, 1]),
        ("-i localhost:3,1,1", ["5", "7"], [1, 3]),
        ("--include=localhost", ["4", "5", "6", "7"], [0, 1, 2, 3]),
        ("--exclude=127.0.0.1:0", ["5", "6", "7"], [1, 2, 3]),
        ("-e localhost:1,2", ["4", "7"], [0, 3]),
        ("--num_gpus 2", ["4", "5"], [0, 1]),
        ("", ["4", "5", "6", "7"], [0, 1, 2, 3]),
    ],
)
def test_deepspeed_gives_its_processes_the_gpus_that_the_options_choose(options, own, other):
    gang = {**GANG, "CUDA_VISIBLE_DEVICES": "4,5,6,7", "PET_NPROC_PER_NODE": "4"}
    done = complete("deepspeed", [*options.split(), "train.py"], gang)
    assert json.loads(base64.urlsafe_b64decode(done.args[0].partition("=")[2])) == {
        "replica-0": other,
        "replica-1": own,
    }
    assert f"--num_gpus={len(own)}" in done.added
    assert done.args[-1] == "train.py"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--include worker-0@worker-1:0,2", "each replica is the machine `localhost`"),
        ("--include localhost:0,x", "such as `--include localhost:0,1`"),
        ("--include localhost:0,4", "--include names GPU 4, and a replica has 4 GPUs"),
        ("--exclude localhost", "--exclude localhost leaves no GPU"),
        ("--include localhost:0 --exclude localhost:1", "only one can be given"),
        ("--include localhost:0 --num_gpus 1", "only one can be given"),
        ("--num_gpus 8", "--num_gpus is 8, and a replica has 4 GPUs"),
    ],
)
def test_gpus_that_deepspeed_cannot_have_are_refused(options, sentence):
    gang = {**GANG, "CUDA_VISIBLE_DEVICES": "4,5,6,7", "PET_NPROC_PER_NODE": "4"}
    with pytest.raises(ValueError, match=sentence):
        complete("deepspeed", [*options.split(), "train.py"], gang)


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nnodes=2 --node-rank=1 --master-addr=worker-0 --master-port=29500 train.py",
        "torchrun --nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=etcd.example.org:2379 train.py",
        "accelerate launch --num_machines 2 --main_process_ip 10.0.0.7 a.py",
        "accelerate config",
        "accelerate --help",
        "lightning --help",
        "colossalai check -i",
        "deepspeed --autotuning run d.py",
        "python train.py",
    ],
)
def test_what_is_written_for_several_machines_or_launches_nothing_stays(line):
    name, *args = line.split()
    assert complete(name, args, GANG) is None


def test_a_single_replica_changes_nothing():
    assert complete("torchrun", ["--standalone", "train.py"], {**GANG, "PET_NNODES": "1"}) is None


def test_a_number_of_processes_that_the_replicas_cannot_share_is_refused():
    with pytest.raises(ValueError, match="--num_processes is 3, which 2 replicas cannot share equally"):
        complete("accelerate", ["launch", "--num_processes", "3", "a.py"], GANG)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("", ["--multi_gpu"]),
        ("distributed_type: 'NO'\n", ["--multi_gpu"]),
        ("distributed_type: FSDP\n", []),
        ("distributed_type: DEEPSPEED\n", ["--deepspeed_multinode_launcher=standard"]),
    ],
)
def test_accelerates_configuration_chooses_what_starts_the_processes(file, options, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(file)
    gang = {**GANG, "CUDA_VISIBLE_DEVICES": "0,1", "PET_NPROC_PER_NODE": "2"}
    args = complete("accelerate", ["launch", "--config_file", str(config), "a.py"], gang).args
    assert args == ["launch", *ACCELERATE.format(4).split(), *options, "--config_file", str(config), "a.py"]


@pytest.fixture
def python(tmp_path):
    """``python(words, **environment)``: a Python with the hook; a script of a launcher's name prints its arguments."""

    def python(*words, **environment):
        program = tmp_path / "torchrun"
        program.write_text(TELL)
        report = tmp_path / "report.jsonl"
        report.touch()
        env = {**GANG, **environment, "PYTHONPATH": HOOKS, "TRAINMASTER_REPORT_FILE": str(report)}
        done = subprocess.run(
            [sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        return done, report.read_text()

    return python


def test_the_hook_completes_a_launcher_and_reports_what_it_added(python):
    done, report = python("torchrun", "--standalone", "train.py", PET_NODE_RANK="0", RANK="0", HOROVOD_RANK="0")
    args, env = json.loads(done.stdout)
    assert args == [*TORCH.replace("rank=1", "rank=0").split(), "train.py"]
    assert not {"RANK", "HOROVOD_RANK"} & set(env)
    assert env["TRAINMASTER_LAUNCHED"] == "torchrun"
    sentence = f"torchrun: added for 2 replicas: {' '.join(args[:4])}"
    assert done.stderr == f"trainmaster: {sentence}\n"
    assert json.loads(report) == {"kind": "event", "event": "train.launcher", "reason": sentence}


def test_a_launcher_below_a_launcher_stays_as_it_is(python):
    done, report = python("torchrun", "--standalone", "x.py", TRAINMASTER_LAUNCHED="accelerate")
    assert (json.loads(done.stdout)[0], report) == (["--standalone", "x.py"], "")


def test_of_several_processes_with_the_same_launcher_the_first_launches(python):
    done, _ = python("torchrun", "x.py", LOCAL_WORLD_SIZE="2", LOCAL_RANK="1", PET_NNODES="1")
    assert (done.returncode, done.stdout) == (0, "")
    assert "local process 0 of this replica launches" in done.stderr
    done, _ = python("torchrun", "x.py", LOCAL_WORLD_SIZE="2", LOCAL_RANK="0", PET_NNODES="1")
    args, env = json.loads(done.stdout)
    assert (args, "LOCAL_RANK" in env) == (["x.py"], False)


def test_other_programs_keep_their_ranks_and_arguments(python, tmp_path):
    (tmp_path / "train.py").write_text(TELL)
    done, _ = python("train.py", "--standalone", RANK="1", LOCAL_WORLD_SIZE="2", LOCAL_RANK="1")
    args, env = json.loads(done.stdout)
    assert (args, env["RANK"], env["LOCAL_RANK"]) == (["--standalone"], "1", "1")


def test_lightning_gets_no_ranks_in_a_world_of_a_single_process(python, tmp_path):
    (tmp_path / "lightning.py").write_text("")
    (tmp_path / "train.py").write_text("import os\nbefore = os.environ['RANK']\nimport lightning\n" + TELL)
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    done, _ = python("train.py", **ranks, PET_NNODES="1")
    assert not set(ranks) & set(json.loads(done.stdout)[1])
    done, _ = python("train.py", **{**ranks, "WORLD_SIZE": "2"})
    assert set(ranks) <= set(json.loads(done.stdout)[1])


def _mpi_replicas(tmp_path, script, secrets=("secret", "secret")):
    """Two replicas that call ``mpirun`` at the same time; OpenMPI's own is the text ``script``."""
    put_launchers(str(tmp_path / "bin"))
    real = tmp_path / "real"
    real.mkdir()
    (real / "mpirun").write_text("#!/bin/sh\n" + script)
    (real / "mpirun").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    replicas = []
    for rank, secret in enumerate(secrets):
        token = tmp_path / f"token-{rank}"
        token.write_text(secret)
        env = {
            **GANG,
            "PET_NODE_RANK": str(rank),
            "PATH": f"{tmp_path / 'bin'}:{real}:/usr/bin:/bin",
            "TRAINMASTER_MPI_ENDPOINT": f"127.0.0.1:{port}",
            "TRAINMASTER_HOSTS": "worker-0:1,worker-1:1",
            "TRAINMASTER_TOKEN_FILE": str(token),
            "OWN": f"replica {rank}",
        }
        replicas.append(
            subprocess.Popen(["mpirun", "-np", "2", "x"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    return replicas


def test_mpirun_runs_once_and_its_agent_reaches_the_other_replicas(tmp_path):
    script = "$OMPI_MCA_plm_rsh_agent -x worker-1 echo 'over there:' '$OWN'\necho $OWN $*\n"
    first, second = _mpi_replicas(tmp_path, script)
    assert first.communicate(timeout=60)[0] == b"replica 0 -np 2 x\n"
    assert second.communicate(timeout=60)[0] == b"over there: replica 1\n"
    assert (first.returncode, second.returncode) == (0, 0)


def test_the_first_exit_code_of_mpirun_is_that_of_its_replica(tmp_path):
    first, second = _mpi_replicas(tmp_path, "exit 3\n")
    first.communicate(timeout=60)
    assert first.returncode == 3
    second.kill()
    second.communicate()


def test_a_program_without_the_attempts_token_is_not_listened_to(tmp_path):
    first, second = _mpi_replicas(tmp_path, "true\n", secrets=("secret", "another"))
    assert b"the connection to rank 0's mpirun is lost" in second.communicate(timeout=60)[1]
    assert second.returncode == 1
    first.kill()
    first.communicate()


RAY = {
    "__init__.py": """
import os
def init(address=None, **arguments):
    print("in", address or os.environ.get("RAY_ADDRESS") or "a cluster of its own", sorted(arguments))
def nodes():
    return [{"Alive": True} for _ in open(os.environ["CALLS"])]
""",
    "scripts/scripts.py": """
import json, os, signal, socket, sys
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[2:])
with open(os.environ["CALLS"], "a") as calls:
    print(json.dumps([sys.argv[1], options, "RANK" in os.environ]), file=calls)
if os.environ.get("NODE_FAILS"):
    sys.exit("no memory for the node")
if "head" in options:
    server = socket.create_server(("127.0.0.1", int(options["port"])))
signal.pause()
""",
}


@pytest.fixture
def ray_replicas(tmp_path):
    """``ray_replicas(*words, **environment)``: two replicas with a stand-in of Ray that start the same command.

    A name in ``environment`` that ends in ``_1`` is for the second replica alone. ``calls()``: of ``ray start``.
    """
    put_launchers(str(tmp_path / "bin"))
    (tmp_path / "modules/ray/scripts").mkdir(parents=True)
    for name, text in RAY.items():
        (tmp_path / "modules/ray" / name).write_text(text)
    (tmp_path / "calls").touch()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/ray").write_text(f'#!/bin/sh\nexec {sys.executable} -m ray.scripts.scripts "$@"\n')
    (tmp_path / "real/ray").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [str(free.getsockname()[1]) for free in (first, second)]
    replicas = []

    def start(*words, **environment):
        for rank in range(2):
            own = {name.removesuffix("_1"): value for name, value in environment.items() if rank or name[-2:] != "_1"}
            env = {
                **GANG,
                "PET_NODE_RANK": str(rank),
                "RANK": str(rank),
                "PET_MASTER_ADDR": "127.0.0.1",
                "PET_MASTER_PORT": ports[0],
                "TRAINMASTER_MPI_ENDPOINT": f"127.0.0.1:{ports[1]}",
                "TRAINMASTER_HOSTS": "127.0.0.1:2",
                "TRAINMASTER_ATTEMPT_ID": tmp_path.name,
                "PYTHONPATH": f"{HOOKS}:{tmp_path / 'modules'}",
                "CALLS": str(tmp_path / "calls"),
                "PATH": f"{tmp_path / 'bin'}:{tmp_path / 'real'}:/usr/bin:/bin",
                "OMP_NUM_THREADS": "2",
                **own,
            }
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            replicas.append(subprocess.Popen(words, env=env, text=True, cwd=tmp_path, **pipes))
        return replicas

    start.port = ports[0]
    start.calls = lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    yield start
    for replica in replicas:
        replica.terminate()  # which ends the node and the command, too
        replica.communicate(timeout=60)


def test_a_command_runs_once_in_a_ray_cluster_of_all_replicas(ray_replicas, tmp_path):
    text = "import os, ray; ray.init(num_cpus=8); print('RANK' in os.environ, os.environ['PET_NODE_RANK'])"
    run = ("ray", "symmetric-run", "--address", "127.0.0.1:6379", "--object-store-memory", "99999999", "--")
    first, second = ray_replicas(*run, sys.executable, "-c", text)
    printed, errors = first.communicate(timeout=60)
    assert printed == f"in 127.0.0.1:{ray_replicas.port} []\nFalse 0\n"
    assert "run once, by rank 0, with RAY_ADDRESS=127.0.0.1:" in errors
    assert second.communicate(timeout=60)[0] == ""
    assert (first.returncode, second.returncode) == (0, 0)
    (_, head, has_rank), (_, node, _) = ray_replicas.calls()
    assert ("head" in head, "head" in node, node["address"]) == (True, False, f"127.0.0.1:{ray_replicas.port}")
    assert not has_rank
    assert (head["port"], head["num-cpus"], head["node-ip-address"]) == (ray_replicas.port, "2", "127.0.0.1")
    assert "block" in head
    assert "object-store-memory" in node
    assert not Path(head["temp-dir"]).exists()


def test_the_exit_code_of_the_command_is_that_of_its_replica(ray_replicas):
    first, second = ray_replicas("ray", "symmetric-run", "--", sys.executable, "-c", "raise SystemExit(3)")
    first.communicate(timeout=60)
    assert first.returncode == 3
    second.terminate()  # as the platform does, when another replica has failed
    second.communicate(timeout=60)
    assert second.returncode != 0


def test_a_node_of_ray_that_ends_is_a_failure_of_its_replica(ray_replicas):
    wait = "import signal; signal.pause()"
    first, second = ray_replicas("ray", "symmetric-run", "--", sys.executable, "-c", wait, NODE_FAILS_1="1")
    errors = second.communicate(timeout=60)[1]
    assert second.returncode == 1
    assert "no memory for the node" in errors
    assert errors.splitlines()[-1].startswith("ray: Ray's node has ended while rank 0's command runs")
    assert first.poll() is None


def test_a_head_node_that_does_not_start_ends_rank_0(ray_replicas):
    first, _ = ray_replicas("ray", "symmetric-run", "--", sys.executable, "-c", "print(1)", NODE_FAILS="1")
    printed, errors = first.communicate(timeout=60)
    assert (first.returncode, printed) == (1, "")
    assert "Ray's head node did not start (exit code 1)" in errors


def test_a_command_that_does_not_exist_ends_the_cluster(ray_replicas):
    first, second = ray_replicas("ray", "symmetric-run", "--", "/no/such/program")
    assert "/no/such/program: No such file" in first.communicate(timeout=60)[1]
    assert first.returncode == 127
    second.terminate()
    second.communicate(timeout=60)
    assert second.returncode != 0


def test_a_replica_without_ray_gets_a_message(ray_replicas, tmp_path):
    path = f"{tmp_path / 'bin'}:{tmp_path}"
    first, _ = ray_replicas("/bin/sh", str(tmp_path / "bin/ray"), "symmetric-run", "--", "/bin/true", PATH=path)
    assert first.communicate(timeout=60)[1] == "ray: not found: install Ray where the job runs, such as in its image\n"
    assert first.returncode == 127


def test_sigterm_reaches_the_command_and_its_nodes_wait_for_it(ray_replicas, tmp_path):
    text = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    first, second = ray_replicas("ray", "symmetric-run", "--", sys.executable, "-c", text)
    assert first.stdout.readline() == "ready\n"
    first.terminate()
    first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_program_that_starts_ray_itself_is_started_again_in_the_cluster(ray_replicas, tmp_path):
    (tmp_path / "train.py").write_text("import ray, sys\nray.init('auto', num_cpus=4)\nprint(sys.argv[1:])\n")
    first, second = ray_replicas(sys.executable, "train.py", "--epochs", "3")
    assert first.communicate(timeout=60)[0] == "in auto []\n['--epochs', '3']\n"
    assert second.communicate(timeout=60)[0] == ""
    assert (first.returncode, second.returncode) == (0, 0)
    assert {options["num-cpus"] for _, options, _ in ray_replicas.calls()} == {"4"}


@pytest.mark.parametrize(
    ("program", "environment", "printed"),
    [
        ("ray.init()", {"TRAINMASTER_LAUNCHER": "none"}, "a cluster of its own []"),
        ("ray.init('local')", {}, "local []"),
        ("ray.init(num_cpus=2)", {"RAY_ADDRESS": "head.example.org:6379"}, "head.example.org:6379 ['num_cpus']"),
        ("ray.init()", {"TRAINMASTER_LAUNCHED": "torchrun"}, "a cluster of its own []"),
        ("ray.init()", {"PET_NNODES": "1"}, "a cluster of its own []"),
        ("ray.init()", {"TRAINMASTER_WORLD": "1"}, "a cluster of its own []"),
    ],
)
def test_a_program_that_names_its_cluster_or_wants_its_own_is_left_alone(ray_replicas, program, environment, printed):
    for replica in ray_replicas(sys.executable, "-c", f"import ray; {program}", **environment):
        assert replica.communicate(timeout=60)[0] == f"in {printed}\n"
    assert ray_replicas.calls() == []


def test_other_commands_of_ray_and_single_replicas_are_as_they_are(launch, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "ray").write_text("#!/bin/sh\necho own $*\n")
    (own / "ray").chmod(0o755)
    path = f"{tmp_path / 'bin'}:{own}:/usr/bin:/bin"
    assert launch("ray", "job", "submit", "--", "true", PATH=path, **GANG).stdout == "own job submit -- true\n"
    assert launch("ray", "symmetric-run", "--", "echo", "alone").stdout == "alone\n"
    addressed = ("ray", "symmetric-run", "--address", "10.0.0.7:6379", "--min-nodes", "2", "--", "x")
    assert launch(*addressed, PATH=path, **GANG).stdout == f"own {' '.join(addressed[1:])}\n"
    assert "install Ray" in launch("ray", "status", **GANG).stderr
