"""What each framework relies on, said one by one; the golden files hold the rest."""

from __future__ import annotations

import json

import pytest

from core.domain.contracts import AttemptContext, Paths, TrialContext, render
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress


def tf_config(env):
    return json.loads(env["TF_CONFIG"])


def cluster_spec(env):
    return json.loads(env["CLUSTER_SPEC"])


# --- TF_CONFIG


def test_a_single_replica_has_no_tf_config_but_a_cluster_spec(gang):
    env = gang({}).env("worker")
    assert "TF_CONFIG" not in env
    assert cluster_spec(env)["cluster"] == {"workerpool0": ["worker-0:2222"]}


def test_the_evaluator_is_a_task_but_never_in_the_cluster(gang):
    job = gang({"chief": True, "workers": 2, "ps": 1, "evaluator": True})
    for role in ("chief", "worker", "ps", "evaluator"):
        assert set(tf_config(job.env(role))["cluster"]) == {"chief", "worker", "ps"}
    assert tf_config(job.env("evaluator"))["task"] == {"type": "evaluator", "index": 0}


def test_without_a_chief_there_is_none_in_the_cluster(gang):
    assert set(tf_config(gang({"workers": 2}).env("worker", 1))["cluster"]) == {"worker"}


def test_ps_listen_on_their_own_port(gang):
    config = tf_config(gang({"workers": 1, "ps": 2}).env("ps", 1))
    assert config["cluster"]["ps"] == ["ps-0:2223", "ps-1:2223"]
    assert config["task"] == {"type": "ps", "index": 1}
    assert config["environment"] == "cloud"


def test_own_roles_stay_out_of_tensorflow(gang):
    job = gang({"roles": {"worker": 2, "loader": 1}})
    assert "TF_CONFIG" not in job.env("loader")
    assert set(tf_config(job.env("worker"))["cluster"]) == {"worker"}


def test_a_sparse_worker_sees_itself_and_every_ps(gang):
    job = gang({"workers": 3, "ps": 2, "sparse": True})
    assert tf_config(job.env("worker", 1))["cluster"] == {
        "worker": {"1": "worker-1:2222"},
        "ps": ["ps-0:2223", "ps-1:2223"],
    }
    assert tf_config(job.env("ps", 1))["cluster"] == {"ps": ["ps-0:2223", "ps-1:2223"]}


def test_uai_calls_the_chief_master(gang):
    job = gang({"chief": True, "workers": 1, "contract": "uai"})
    assert tf_config(job.env("chief"))["task"] == {"type": "master", "index": 0}
    assert set(tf_config(job.env("worker"))["cluster"]) == {"master", "worker"}


def test_uai_counts_the_master_as_one_of_the_workers(gang):
    job = gang({"workers": 3, "ps": 3, "contract": "uai"})
    config = tf_config(job.env("worker", 2))
    assert config["cluster"]["master"] == ["worker-0:2222"]
    assert config["cluster"]["worker"] == ["worker-1:2222", "worker-2:2222"]
    assert config["task"] == {"type": "worker", "index": 1}


# --- Vertex


def test_pools_are_chief_workers_ps_evaluators(gang):
    spec = cluster_spec(gang({"chief": True, "workers": 2, "ps": 1, "evaluator": True}).env("evaluator"))
    assert {name: len(pool) for name, pool in spec["cluster"].items()} == {
        "workerpool0": 1,
        "workerpool1": 2,
        "workerpool2": 1,
        "workerpool3": 1,
    }
    assert spec["task"] == {"type": "workerpool3", "index": 0}
    assert len(spec["job"]["workerPoolSpecs"]) == 4


def test_without_a_chief_worker_0_is_pool_0(gang):
    job = gang({"workers": 3})
    assert cluster_spec(job.env("worker", 0))["task"] == {"type": "workerpool0", "index": 0}
    assert cluster_spec(job.env("worker", 2))["task"] == {"type": "workerpool1", "index": 1}


def test_an_empty_pool_keeps_its_place_in_the_job(gang):
    spec = cluster_spec(gang({"workers": 1, "ps": 1}).env("ps"))
    assert "workerpool1" not in spec["cluster"]
    assert [bool(pool) for pool in spec["job"]["workerPoolSpecs"]] == [True, False, True]


def test_a_trial_knows_its_number_and_its_output_is_its_own_already(gang):
    env = gang({}, trial=TrialContext("study-1", "digits", 7, {"lr": 0.1})).env("worker")
    assert env["AIP_MODEL_DIR"] == "/data/output/model/"
    assert (env["CLOUD_ML_TRIAL_ID"], env["TRAINMASTER_TRIAL_ID"]) == ("7", "7")
    assert cluster_spec(env)["task"]["trial"] == "7"
    assert "CLOUD_ML_TRIAL_ID" not in gang({}).env("worker")


@pytest.mark.parametrize(
    ("written", "role"),
    [({"roles": {"worker": 2, "loader": 1}}, "loader"), ({"workers": 2, "ps": 1, "contract": "mxnet"}, "scheduler")],
)
def test_a_replica_in_no_pool_is_a_task_of_its_roles_name_and_sees_the_pools(gang, written, role):
    job = gang(written)
    spec = cluster_spec(job.env(role))
    assert spec["task"] == {"type": role, "index": 0}
    assert spec["cluster"] == cluster_spec(job.env("worker"))["cluster"]


def test_the_region_is_the_platforms_setting(gang):
    assert gang({}).env("worker")["CLOUD_ML_REGION"] == "local"
    assert gang({}, region="eu-west").env("worker")["CLOUD_ML_REGION"] == "eu-west"


# --- ranks


def test_ranks_count_the_chief_first_and_then_the_workers(gang):
    job = gang({"chief": True, "workers": 2, "ps": 1, "evaluator": True})
    assert [job.env(role, index)["RANK"] for role, index in (("chief", 0), ("worker", 0), ("worker", 1))] == list("012")
    assert job.env("worker", 1)["WORLD_SIZE"] == "3"
    assert job.env("worker", 1)["MASTER_ADDR"] == "chief-0"


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_ps_and_evaluator_have_no_rank(gang, role):
    env = gang({"workers": 2, "ps": 1, "evaluator": True}).env(role)
    assert not {"RANK", "PET_NNODES", "HOROVOD_RANK", "JAX_PROCESS_ID", "DMLC_TASK_ID"} & set(env)


def test_a_replica_runs_one_process_for_each_gpu(gang):
    job = gang({"workers": 2, "gpus": 4})
    rendered = job("worker", 1)
    assert [process["RANK"] for process in rendered.process_env] == ["4", "5", "6", "7"]
    assert [process["LOCAL_RANK"] for process in rendered.process_env] == ["0", "1", "2", "3"]
    assert {process["WORLD_SIZE"] for process in rendered.process_env} == {"8"}
    assert rendered.env["PET_NPROC_PER_NODE"] == "4"
    assert not {"RANK", "LOCAL_RANK", "HOROVOD_RANK"} & set(rendered.env)


def test_every_rank_of_a_mixed_gang_is_there_once(gang):
    job = gang({"roles": {"chief": 1, "worker": {"replicas": 3, "processes_per_replica": 2}}})
    replicas = [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
    ranks = [
        job.env(role, index, process)["RANK"]
        for role, index in replicas
        for process in range(len(job(role, index).process_env))
    ]
    assert ranks == [str(rank) for rank in range(7)]


def test_a_ps_is_one_process_even_where_it_has_gpus(gang):
    job = gang({"roles": {"worker": 1, "ps": {"resources": {"gpus": 2}}}})
    assert len(job("ps").process_env) == 1
    assert job.env("ps")["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_torchrun_gets_its_own_variables_and_is_started_once(gang):
    rendered = gang({"workers": 2, "gpus": 8, "command": "torchrun train.py"})("worker", 1)
    assert rendered.process_env == ({},)
    assert rendered.env["PET_NPROC_PER_NODE"] == "8"
    assert (rendered.env["PET_NNODES"], rendered.env["PET_NODE_RANK"]) == ("2", "1")
    assert rendered.env["PET_RDZV_ENDPOINT"] == "worker-0:29500"
    assert rendered.env["PET_MAX_RESTARTS"] == "0"
    assert not {"RANK", "MASTER_ADDR", "HOROVOD_RANK", "JAX_PROCESS_ID"} & set(rendered.env)


def test_uai_ranks_are_the_nodes_numbers(gang):
    job = gang({"workers": 2, "gpus": 4, "contract": "uai"})
    env = job.env("worker", 1)
    assert (env["RANK"], env["WORKER_NUM"], env["WORKER_GPU_NUM"]) == ("1", "2", "4")
    assert len(job("worker", 1).process_env) == 1
    assert not {"WORLD_SIZE", "LOCAL_RANK"} & set(env)


def test_own_roles_are_the_world_where_there_are_no_workers(gang):
    job = gang({"roles": {"beta": 1, "alpha": 1}})
    assert (job.env("alpha")["RANK"], job.env("beta")["RANK"]) == ("0", "1")


# --- Horovod


def test_horovod_counts_local_ranks_inside_a_replica(gang):
    """Two replicas on one machine see their own GPUs alone: rank 2 is the first device of the second replica."""
    env = gang({"workers": 2, "gpus": 2}).env("worker", 1, process=0)
    assert (env["HOROVOD_RANK"], env["HOROVOD_LOCAL_RANK"], env["HOROVOD_LOCAL_SIZE"]) == ("2", "0", "2")
    assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("1", "2")


def test_horovods_local_groups_never_meet_although_replicas_share_an_address(gang):
    """The store's scope is ``local_<HOROVOD_HOSTNAME>``: with 127.0.0.1 for both, they would read each other's keys."""
    job = gang({"workers": 2})
    layout = Layout(
        tuple(
            ReplicaAddress("worker", index, "127.0.0.1", Ports(*range(20000 + 4 * index, 20004 + 4 * index)), "node")
            for index in range(2)
        )
    )
    envs = [render(job.spec, layout, replica, job.context).env for replica in layout.replicas]
    assert envs[0]["HOROVOD_HOSTNAME"] != envs[1]["HOROVOD_HOSTNAME"]
    assert {env["HOROVOD_GLOO_RENDEZVOUS_PORT"] for env in envs} == {"20003"}
    assert {env["HOROVOD_GLOO_IFACE"] for env in envs} == {"lo"}
    assert {env["MASTER_PORT"] for env in envs} == {"20001"}


def test_horovods_cross_group_holds_only_replicas_with_that_local_rank(gang):
    job = gang({"roles": {"chief": 1, "worker": {"replicas": 2, "processes_per_replica": 2}}})
    assert job.env("worker", 0, process=1)["HOROVOD_CROSS_RANK"] == "0"
    assert job.env("worker", 0, process=1)["HOROVOD_CROSS_SIZE"] == "2"
    assert job.env("worker", 0, process=0)["HOROVOD_CROSS_RANK"] == "1"
    assert job.env("worker", 0, process=0)["HOROVOD_CROSS_SIZE"] == "3"


def test_horovods_interface_is_named_on_the_loopback_alone(gang):
    """How the interface of another address is called, only the runtime there can see."""
    assert "HOROVOD_GLOO_IFACE" not in gang({"workers": 2}).env("worker")


def test_torch_never_shares_its_store_and_a_user_who_does_is_reported(gang):
    assert gang({"workers": 2, "ps": 1}).env("ps")["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    rendered = gang({"env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 0}})("worker")
    assert rendered.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "0"
    assert rendered.clashes == ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE",)


# --- MPI, ps-lite, JAX


def test_the_hostfile_names_each_host_once(gang):
    job = gang({"workers": 2, "processes_per_replica": 2})
    rendered = job("worker")
    assert rendered.files == {"/data/.trainmaster/hostfile": "worker-0 slots=2\nworker-1 slots=2\n"}
    assert rendered.env["TRAINMASTER_HOSTS"] == "worker-0:2,worker-1:2"
    assert rendered.env["OMPI_MCA_orte_default_hostfile"] in rendered.files
    layout = Layout(tuple(ReplicaAddress("worker", i, "127.0.0.1", Ports(), "n", (), 2) for i in range(2)))
    alone = render(job.spec, layout, layout.replicas[0], job.context)
    assert alone.env["TRAINMASTER_HOSTS"] == "127.0.0.1:4"


def test_mxnet_roles_are_scheduler_server_and_worker(gang):
    job = gang({"workers": 2, "ps": 1, "contract": "mxnet"})
    assert [job.env(role)["DMLC_ROLE"] for role in ("scheduler", "ps", "worker")] == ["scheduler", "server", "worker"]
    assert {job.env(role)["DMLC_PS_ROOT_URI"] for role in ("scheduler", "ps", "worker")} == {"scheduler-0"}
    assert job.env("worker", 1)["DMLC_WORKER_ID"] == "1"
    assert "DMLC_WORKER_ID" not in job.env("ps")
    assert "RANK" not in job.env("scheduler")


def test_a_job_without_a_scheduler_has_no_dmlc_role(gang):
    """``import mxnet`` in the role of a server never returns: only a job that asked for it may be told."""
    assert "DMLC_ROLE" not in gang({"workers": 2, "ps": 1}).env("ps")


def test_jax_processes_of_one_replica_share_its_gpus_out(gang):
    job = gang({"workers": 1, "gpus": 4, "processes_per_replica": 2})
    assert [process["JAX_LOCAL_DEVICE_IDS"] for process in job("worker").process_env] == ["0,1", "2,3"]


# --- always


def test_the_devices_are_named_or_hidden_but_never_left_to_chance(gang):
    assert gang({"gpus": 2}).env("worker")["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert gang({}).env("worker")["CUDA_VISIBLE_DEVICES"] == ""


def test_devices_that_the_engine_assigns_are_not_named(gang):
    job = gang({"gpus": 1})
    layout = Layout((ReplicaAddress("worker", 0, "worker-0", Ports(), "n"),))
    assert "CUDA_VISIBLE_DEVICES" not in render(job.spec, layout, layout.replicas[0], job.context).env


def test_a_part_of_a_gpu_is_one_device_and_tells_programs_their_share(gang):
    env = gang({"gpus": 0.25}).env("worker")
    assert env["CUDA_VISIBLE_DEVICES"] == "0"
    assert env["TRAINMASTER_GPU_FRACTION"] == "0.25"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"
    assert "TRAINMASTER_GPU_FRACTION" not in gang({"gpus": 1}).env("worker")


def test_processes_of_one_replica_divide_its_part_of_a_gpu(gang):
    env = gang({"gpus": 0.5, "processes_per_replica": 2}).env("worker")
    assert env["TRAINMASTER_GPU_FRACTION"] == "0.5"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"


@pytest.mark.parametrize(
    ("written", "threads"),
    [
        ({"cpu": 8, "gpus": 4}, "2"),
        ({"cpu": 8, "gpus": 4, "command": "torchrun train.py"}, "2"),
        ({"cpu": "500m"}, "1"),
        ({"cpu": 3}, "3"),
        ({"workers": 2}, "1"),
        ({}, None),
        ({"cpu": 8, "env": {"OMP_NUM_THREADS": 5}}, "5"),
    ],
)
def test_threads_are_the_cpus_of_a_process(gang, written, threads):
    assert gang(written).env("worker").get("OMP_NUM_THREADS") == threads


def test_a_users_variable_wins_and_the_clash_is_named(gang):
    job = gang({"workers": 1, "gpus": 2, "env": {"MASTER_PORT": 1234, "MINE": "x", "OMP_NUM_THREADS": 2}})
    rendered = job("worker")
    assert rendered.env["MASTER_PORT"] == "1234"
    assert all("MASTER_PORT" not in process for process in rendered.process_env)
    assert rendered.clashes == ("MASTER_PORT",)


def test_a_role_s_variable_wins_over_the_jobs_and_a_secret_counts_as_the_users(gang):
    job = gang({"env": {"A": 1}, "roles": {"worker": {"env": {"A": 2}}}, "secrets": ["TF_CONFIG"]})
    rendered = job("worker", TF_CONFIG="s3cret")
    assert (rendered.env["A"], rendered.env["TF_CONFIG"]) == ("2", "s3cret")


def test_the_same_value_is_no_clash(gang):
    assert gang({"env": {"MASTER_PORT": 29500}})("worker").clashes == ()


def test_resuming_names_the_checkpoint_and_a_first_attempt_has_none(gang):
    assert "TRAINMASTER_RESUME_FROM" not in gang({}).env("worker")
    env = gang({}, resume_from="/data/output/checkpoints/step-9").env("worker")
    assert env["TRAINMASTER_RESUME_FROM"] == "/data/output/checkpoints/step-9"


def test_other_folders_move_every_path(gang):
    job = gang({"contract": "uai", "command": "train.py"}, paths=Paths("/w", "/d", "/o"))
    rendered = job("worker")
    words = json.dumps([dict(rendered.env), dict(rendered.files), rendered.command])
    assert "/data" not in words.replace("--data_dir", "")
    assert "--work_dir=/w --data_dir=/d --output_dir=/o --log_dir=/o" in rendered.command


def test_the_layout_is_reported_by_role(gang):
    layout = json.loads(gang({"workers": 2, "ps": 1, "gpus": 1}).env("worker")["TRAINMASTER_LAYOUT"])
    assert layout == {"roles": {"worker": ["worker-0:2222", "worker-1:2222"], "ps": ["ps-0:2223"]}, "gpus": ["0"]}


def test_a_variable_that_linux_does_not_take_is_left_out_and_named(gang):
    job = gang({"workers": 4096})
    layout = Layout(
        tuple(ReplicaAddress("worker", i, f"worker-{i}.a-rather-long-service.svc", Ports(), "n") for i in range(4096))
    )
    rendered = render(job.spec, layout, layout.replicas[4095], job.context)
    assert "TF_CONFIG" in rendered.omitted
    assert rendered.env["RANK"] == "4095"
    assert all(len(f"{name}={value}") < 131_072 for name, value in rendered.env.items())


def test_an_ipv6_host_is_put_in_brackets(gang):
    job = gang({"workers": 1})
    layout = Layout((ReplicaAddress("worker", 0, "fd00::1", Ports(), "n"),))
    env = render(job.spec, layout, layout.replicas[0], job.context).env
    assert env["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:2222"
    assert env["MASTER_ADDR"] == "fd00::1"


# --- command


def test_arguments_follow_a_list_and_are_quoted_into_a_text(gang):
    job = gang({"command": ["python", "t.py"], "args": ["--name", "a b"]})
    assert (job("worker").command, job("worker").args) == (("python", "t.py"), ("--name", "a b"))
    job = gang({"command": "cd src\npython t.py\n", "args": ["--name", "a b"]})
    assert (job("worker").command, job("worker").args) == ("cd src\npython t.py --name 'a b'", ())
    job = gang({"command": 'for i in 1 2; do t "$@"; done', "args": ["--name", "a b"]})
    assert job("worker").command == "set -- --name 'a b'; for i in 1 2; do t \"$@\"; done"


def test_uai_appends_its_five_arguments_after_the_users(gang):
    rendered = gang({"contract": "uai", "command": ["train.py"], "args": ["--x"], "gpus": 2})("worker")
    assert rendered.command == ("python", "train.py")
    assert rendered.args == (
        "--x",
        "--work_dir=/data",
        "--data_dir=/data/data",
        "--output_dir=/data/output",
        "--log_dir=/data/output",
        "--num_gpus=2",
    )


@pytest.mark.parametrize("written", ["python3 -u train.py", "/opt/conda/bin/python train.py"])
def test_uai_leaves_a_command_that_names_its_python(gang, written):
    assert gang({"contract": "uai", "command": written})("worker").command.startswith(f"{written} --work_dir")


def test_placeholders_are_filled_in_and_nothing_else_is_touched(gang):
    job = gang({"chief": True, "workers": 2, "ps": 1, "command": "t {job_name} {task_index} {x} ${task_index} {}"})
    assert job("worker", 1).command == "t worker 2 {x} ${task_index} {}"
    assert job("chief").command == "t worker 0 {x} ${task_index} {}"
    job = gang({"workers": 2, "ps": 1, "command": ["t"], "args": ["--ps={ps_hosts}", "--w={worker_hosts}"]})
    assert job("ps").args == ("--ps=ps-0:2223", "--w=worker-0:2222,worker-1:2222")


def test_the_context_is_a_value(gang):
    job = gang({})
    assert isinstance(job.context, AttemptContext)
    assert job("worker") == job("worker")


def test_a_job_with_an_experiment_of_vertex_ai_has_a_run_of_its_own_there(gang):
    name = "projects/p/locations/l/metadataStores/default/contexts/e"
    env = gang({"env": {"AIP_EXPERIMENT_NAME": name}})("worker").env
    assert (env["AIP_EXPERIMENT_NAME"], env["AIP_EXPERIMENT_RUN_NAME"]) == (name, env["TRAINMASTER_JOB_ID"])
    named = gang({"env": {"AIP_EXPERIMENT_NAME": name, "AIP_EXPERIMENT_RUN_NAME": f"{name}-r"}})("worker")
    assert (named.env["AIP_EXPERIMENT_RUN_NAME"], named.clashes) == (f"{name}-r", ())
    board = {"env": {"AIP_TENSORBOARD_RESOURCE_NAME": "projects/p/locations/l/tensorboards/1"}}
    assert gang(board, **REPORTS).env("worker")["AIP_TENSORBOARD_API_URI"] == "http://api:8765/"
    assert not [name for name in gang({}).env("worker") if name.startswith(("AIP_EXPERIMENT", "AIP_TENSORBOARD_API"))]


def test_in_jobs_of_vertex_ai_cloud_storages_clients_speak_to_the_platform(gang):
    here = {"VERTEX_AI_SDK_SERVER": "trainmaster"}
    env = gang({"env": here}, **REPORTS).env("worker")
    assert (env["API_ENDPOINT_OVERRIDE"], env["FSSPEC_GCS_ENDPOINT_URL"]) == ("http://api:8765", "http://api:8765")
    assert "STORAGE_EMULATOR_HOST" not in env  # google-cloud-storage would send no token
    assert "TRAINMASTER_OUTPUT_URI" not in env
    named = gang({"env": here, "output": "data/runs/1"}, **REPORTS).env("worker")
    assert (named["AIP_MODEL_DIR"], named["TRAINMASTER_OUTPUT_URI"]) == ("/data/output/model/", "gs://data/runs/1")
    key = {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}
    for others in ({}, {"env": here | key}, {"env": here, "secrets": list(key)}):
        assert "API_ENDPOINT_OVERRIDE" not in gang(others, **REPORTS).env("worker")


# --- MLflow ----------------------------------------------------------------------------------------------------------

REPORTS = {"api_url": "http://api:8765/", "token": "tma_att-1.mac"}


def test_mlflow_logs_to_the_platform_and_each_replica_into_a_run_of_its_own(gang):
    job = gang({"workers": 2, "ps": 1}, **REPORTS)
    assert {name: value for name, value in job.env("worker").items() if name.startswith("MLFLOW_")} == {
        "MLFLOW_TRACKING_URI": "http://api:8765/mlflow",
        "MLFLOW_TRACKING_TOKEN": "tma_att-1.mac",
        "MLFLOW_RUN_ID": "att-1",
    }
    assert job.env("worker", 1)["MLFLOW_RUN_ID"] == "att-1-worker-1"
    assert job.env("ps")["MLFLOW_RUN_ID"] == "att-1-ps-0"


def test_a_server_of_the_users_own_gets_neither_our_token_nor_a_run_that_it_does_not_have(gang):
    job = gang({"env": {"MLFLOW_TRACKING_URI": "https://mlflow.example.org"}}, **REPORTS)
    rendered = job("worker")
    assert rendered.env["MLFLOW_TRACKING_URI"] == "https://mlflow.example.org"
    assert "MLFLOW_TRACKING_TOKEN" not in rendered.env
    assert "MLFLOW_RUN_ID" not in rendered.env
    assert rendered.clashes == ("MLFLOW_TRACKING_URI",)
    by_secret = gang({"secrets": ["MLFLOW_TRACKING_URI"]}, **REPORTS)("worker", MLFLOW_TRACKING_URI="https://x")
    assert "MLFLOW_TRACKING_TOKEN" not in by_secret.env


def test_without_a_token_nothing_is_reported_of_mlflow(gang):
    assert not [name for name in gang({}, api_url="http://api:8765").env("worker") if name.startswith("MLFLOW_")]
