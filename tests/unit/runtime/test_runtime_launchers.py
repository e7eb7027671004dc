from __future__ import annotations

import json
import subprocess
import sys

import pytest
from trainmaster_runtime.launchers import put_launchers

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
    assert modes == {"horovodrun": 0o755, "perseusrun": 0o755}
