"""The files of /trainmaster/order, against what they are to be."""

import json
import subprocess
from datetime import timedelta

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.layout import Ports
from core.domain.sharing.resources import ResourceRequest
from executors.base import ENVIRONMENTS, MountOrder, ReplicaKey, ReplicaOrder
from executors.containers import labels, names, paths
from executors.containers.order_files import command_of_image, render_order, render_world

KEY = ReplicaKey(JobId("job-1"), AttemptId("att-06f9s2m3k1q7w8x9y0z"), "worker", 1, 2)


def order(**changes):
    values = {
        "key": KEY,
        "job_name": "mnist",
        "attempt_number": 3,
        "node": "n1",
        "command": ("python", "train.py"),
        "args": ("--note", "it's $HOME\n`ls`"),
        "env": {"TF_CONFIG": '{"task": {"index": 1}}', "CUDA_VISIBLE_DEVICES": "2,3"},
        "process_env": ({"RANK": "2"}, {"RANK": "3"}),
        "request": ResourceRequest(cpu_milli=1000, memory_bytes=2**30, gpu_count=2),
        "gpus": ("2", "3"),
        "image": "python:3.11-slim",
        "project": "default",
        "files": {"/data/.trainmaster/hostfile": "a slots=1\nb slots=1\n"},
        "mounts": (MountOrder("/srv/out", "/data/output", read_only=False),),
        "peer_hosts": ("worker-0", "worker-1"),
        "deadline_s": 0.5,
        "api_url": "http://api:8765",
        "token": "secret-token",
    }
    return ReplicaOrder(**{**values, **changes})


def test_mounts_are_listed_by_inode_where_the_engine_follows_paths_later():
    mounts = (MountOrder("/srv/out", "/data/output", False, inode=7), MountOrder("/srv/in", "/data/data", True))
    files = render_order(order(mounts=mounts), image_command=None, is_watched=True)
    assert files["places"] == b"7 /data/output\n"
    assert "places" not in render_order(order(mounts=mounts), image_command=None)
    assert "places" not in render_order(order(), image_command=None, is_watched=True)


def test_layers_are_shared_where_the_order_mounts_their_folder():
    environment = {"requirements": ["einops"]}
    shared = MountOrder("/srv/out/vision/.environments", ENVIRONMENTS, read_only=False)
    alone = json.loads(render_order(order(environment=environment), image_command=None)["order.json"])
    assert alone["environment"] == {"requirements": ["einops"], "store": "/data/.trainmaster/environments"}
    files = render_order(order(environment=environment, mounts=(shared,)), image_command=None)
    assert json.loads(files["order.json"])["environment"]["store"] == ENVIRONMENTS
    assert b"TM_ENVIRONMENT=named" in files["order.sh"]
    assert b"TM_ENVIRONMENT=''" in render_order(order(), image_command=None)["order.sh"]


def test_order_json_is_the_runtimes_order_with_the_places_of_a_container():
    files = render_order(
        order(code_digest="sha256:" + "a" * 64, code_path="/home/platform/archives/a"),
        image_command=None,
        termination_path=paths.TERMINATION_LOG,
    )
    assert sorted(files) == ["order.json", "order.sh", "token"]
    assert files["token"] == b"secret-token"
    assert json.loads(files["order.json"]) == {
        "version": 1,
        "environment": {},
        "key": {
            "job_id": "job-1",
            "attempt_id": "att-06f9s2m3k1q7w8x9y0z",
            "role": "worker",
            "index": 1,
            "generation": 2,
        },
        "attempt_number": 3,
        "command": ["python", "train.py"],
        "args": ["--note", "it's $HOME\n`ls`"],
        "env": {"TF_CONFIG": '{"task": {"index": 1}}', "CUDA_VISIBLE_DEVICES": "0,1"},
        "process_env": [{"RANK": "2"}, {"RANK": "3"}],
        "files": {"/data/.trainmaster/hostfile": "a slots=1\nb slots=1\n"},
        "code_path": None,
        "code_digest": "sha256:" + "a" * 64,
        "mounts": [{"source": "/data/output", "target": "/data/output", "read_only": False}],
        "cpu_limit_milli": None,
        "memory_limit_bytes": None,
        "shm_bytes": None,
        "pids_limit": 32768,
        "stop_grace_s": 30.0,
        "exit_grace_s": 30.0,
        "peers_grace_s": 300.0,
        "peer_hosts": ["worker-0", "worker-1"],
        "deadline_s": 0.5,
        "api_url": "http://api:8765",
        "log_limit_bytes": 0,
        "view": "as_is",
        "world": None,
        "joins_warm": False,
        "cwd": "/data",
        "termination_path": "/dev/termination-log",
        "request_path": "/trainmaster/asked/stop",
        "enforced": ["cpu", "memory"],
        "use_cgroups": False,
    }


def test_neither_token_nor_secret_paths_of_the_host_are_in_the_order():
    files = render_order(order(code_path="/home/platform/archives/a"), image_command=None)
    text = files["order.json"] + files["order.sh"]
    assert b"secret-token" not in text
    assert b"/srv/out" not in text
    assert b"/home/platform" not in text


def test_order_sh_says_the_same_to_a_shell():
    files = render_order(order(), image_command=None)
    script = files["order.sh"].decode() + (
        "tm_run() { printf '<%s>' \"$@\"; }\n"
        'tm_write() { printf \'{%s=%s}\' "$1" "$2"; }\n'
        "tm_env; tm_env_1; tm_files; tm_command\n"
        'printf "|%s|%s|%s|%s|%s|%s" "$TF_CONFIG" "$CUDA_VISIBLE_DEVICES" "$RANK" "$TM_PROCESSES" "$TM_DEADLINE"'
        ' "$TM_LOG"\n'
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == (
        "{/data/.trainmaster/hostfile=a slots=1\nb slots=1\n}"
        "<python><train.py><--note><it's $HOME\n`ls`>"
        '|{"task": {"index": 1}}|0,1|3|2|1|/data/output/.trainmaster/logs/job-1/3/worker-1.log'
    )


def test_a_text_goes_to_the_images_shell_with_its_arguments_whole():
    files = render_order(order(command="echo hi &&", args=("a b",)), image_command=None)
    assert "tm_run \"$TM_SHELL\" -c 'echo hi && \"$@\"' sh 'a b'" in files["order.sh"].decode()


def test_without_a_command_the_images_own_runs_in_its_own_folder():
    own = command_of_image(["/entry.sh"], ["serve"], ())
    data = json.loads(render_order(order(command=None, args=()), image_command=own)["order.json"])
    assert (data["command"], data["args"], data["cwd"]) == (["/entry.sh", "serve"], [], None)


def test_arguments_take_the_place_of_the_images_own():
    own = command_of_image(["/entry.sh"], ["serve"], ("train", "-v"))
    data = json.loads(render_order(order(command=None, args=("train", "-v")), image_command=own)["order.json"])
    assert (data["command"], data["args"]) == (["/entry.sh", "train", "-v"], [])


@pytest.mark.parametrize("own", [None, ()])
def test_no_command_anywhere_is_refused_with_the_field(own):
    with pytest.raises(ExecutorRefused, match="set `command`") as refused:
        render_order(order(command=None), image_command=own)
    assert refused.value.field == "roles.worker.command"


def test_code_without_a_source_is_refused():
    wanted = order(code_digest="sha256:" + "a" * 64, api_url=None)
    with pytest.raises(ExecutorRefused, match="code archive"):
        render_order(wanted, image_command=None)
    placed = render_order(wanted, image_command=None, code_path=paths.CODE)
    assert json.loads(placed["order.json"])["code_path"] == "/trainmaster/code.tar.gz"


def test_devices_that_the_user_named_stay():
    data = json.loads(render_order(order(env={"CUDA_VISIBLE_DEVICES": "1"}), image_command=None)["order.json"])
    assert data["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    data = json.loads(render_order(order(gpus=(), env={"CUDA_VISIBLE_DEVICES": ""}), image_command=None)["order.json"])
    assert data["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_the_images_own_data_is_covered_only_when_code_is_given():
    assert paths.scratch_folders(order()) == ("/trainmaster/state", "/data/.trainmaster")
    with_code = paths.scratch_folders(order(code_digest="sha256:" + "a" * 64))
    assert with_code == ("/trainmaster/state", "/data")


def test_the_entry_needs_nothing_of_the_image():
    assert paths.entry() == ("/trainmaster/runtime/busybox", "sh", "/trainmaster/runtime/start")


def test_labels_lead_back_to_the_key():
    found = labels.replica_labels("mine", order())
    assert found == {
        "trainmaster/instance": "mine",
        "trainmaster/project": "default",
        "trainmaster/job": "job-1",
        "trainmaster/attempt": "att-06f9s2m3k1q7w8x9y0z",
        "trainmaster/role": "worker",
        "trainmaster/index": "1",
        "trainmaster/generation": "2",
    }
    assert labels.key_of(found) == KEY
    assert labels.key_of(labels.attempt_labels("mine", order())) is None
    assert labels.key_of({**found, labels.INDEX: "x"}) is None
    assert labels.selector("mine", KEY.attempt_id).items() <= found.items()


def test_a_label_that_engines_would_refuse_keeps_apart_from_others():
    item, other = labels.label_value("Straße " * 20), labels.label_value("Straße " * 21)
    assert item != other
    assert len(item) <= 63
    assert labels.label_value(item) == item


def test_names_are_labels_and_never_the_same_for_two():
    assert names.replica_name(KEY) == "att-06f9s2m3k1q7w8x9y0z-worker-1-g2"
    assert names.host_name("worker", 1) == "worker-1"
    assert names.attempt_name(KEY.attempt_id) == "att-06f9s2m3k1q7w8x9y0z"
    # The longest that a spec allows still tells all of itself.
    longest = ReplicaKey(KEY.job_id, KEY.attempt_id, "r" * 20, 9999, 999)
    assert len(names.replica_name(longest)) <= 63
    long = [ReplicaKey(KEY.job_id, AttemptId("att-" + "a" * 50), "w" * 20, n, 1) for n in range(20)]
    found = {names.replica_name(key) for key in long}
    assert len(found) == 20
    assert all(len(name) <= 63 and names.fit(name) == name for name in found)


def test_the_shell_gets_graces_in_whole_seconds_and_never_less():
    files = render_order(order(stop_grace=timedelta(seconds=2.2)), image_command=None)
    assert "TM_STOP_GRACE=3\n" in files["order.sh"].decode()


def test_the_limit_of_the_log_is_in_the_order() -> None:
    limited = json.loads(render_order(order(), image_command=None, log_limit_bytes=2**20)["order.json"])
    free = json.loads(render_order(order(), image_command=None)["order.json"])
    assert (limited["log_limit_bytes"], free["log_limit_bytes"]) == (2**20, 0)


def test_a_world_update_has_the_container_s_own_devices_and_no_variables_of_the_job():
    reported = json.loads(render_world(order(world=4, job_variables=frozenset({"TF_CONFIG"}))))
    assert reported["world"] == 4
    assert reported["env"] == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert reported["kept_env"] == ["TF_CONFIG"]
    assert reported["process_env"] == [{"RANK": "2"}, {"RANK": "3"}]


def test_worlds_that_follow_each_other_have_no_port_in_common():
    first = Ports(framework=2223)
    assert names.ports_of_world(1, first) == first
    used = [first, *(names.ports_of_world(world, first) for world in range(2, 2252))]
    numbers = [port for ports in used for port in (ports.framework, ports.torch, ports.dmlc, ports.gloo)]
    assert len(set(numbers)) == len(numbers)
    assert all(1024 < port < 32_768 for port in numbers)
    assert names.ports_of_world(2252, first) == names.ports_of_world(2, first)
