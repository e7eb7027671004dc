from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trainmaster_train as tm

CLUSTER = {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2223"]}


def tf_config(role: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": role, "index": index}})}


def platform(role: str, index: int, **more: str) -> dict[str, str]:
    layout = json.dumps({"roles": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "gpus": ["0", "3"]})
    who = {"TRAINMASTER_JOB_ID": "job_1", "TRAINMASTER_ROLE": role, "TRAINMASTER_INDEX": str(index)}
    return {**who, "TRAINMASTER_LAYOUT": layout, **more}


def test_outside_the_platform_it_is_a_single_worker_with_local_folders() -> None:
    context = tm.current({})

    assert (context.role, context.index, context.rank, context.world_size) == ("worker", 0, 0, 1)
    assert context.is_writer
    assert not context.is_in_platform
    if not Path("/data").exists():
        assert (context.data_dir, context.output_dir) == (Path("data"), Path("output"))


def test_in_the_platform_the_folders_are_the_fixed_ones() -> None:
    context = tm.current(platform("worker", 0))

    assert (context.data_dir, context.output_dir) == (Path("/data/data"), Path("/data/output"))
    assert context.checkpoint_dir == Path("/data/output/checkpoints")


def test_folders_that_the_platform_had_to_put_elsewhere_are_found() -> None:
    context = tm.current(platform("worker", 0, TRAINMASTER_DATA_DIR="/srv/in", TRAINMASTER_OUTPUT_DIR="/srv/out"))

    assert (context.data_dir, context.output_dir) == (Path("/srv/in"), Path("/srv/out"))


def test_the_ranks_are_torchs_where_they_are_set() -> None:
    more = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    context = tm.current(platform("worker", 1, **more))

    assert (context.rank, context.world_size, context.local_rank, context.local_world_size) == (5, 8, 1, 4)
    assert not context.is_writer


def test_the_layout_names_the_peers_and_the_gpus() -> None:
    context = tm.current(platform("ps", 0))

    assert context.peers == {"worker": ("a:1", "b:1"), "ps": ("c:1",)}
    assert context.gpus == ("0", "3")


def test_a_ps_has_no_rank_and_writes_nothing_for_the_others() -> None:
    context = tm.current(platform("ps", 0))

    assert context.rank is None
    assert not context.is_writer


@pytest.mark.parametrize(
    ("role", "index", "rank", "world"),
    [("chief", 0, 0, 3), ("worker", 0, 1, 3), ("worker", 1, 2, 3), ("ps", 0, None, 1), ("evaluator", 0, None, 1)],
)
def test_tf_config_alone_gives_role_and_rank(role: str, index: int, rank: int | None, world: int) -> None:
    context = tm.current(tf_config(role, index))

    assert (context.role, context.index, context.rank, context.world_size) == (role, index, rank, world)
    assert context.peers["ps"] == ("d:2223",)


def test_own_roles_are_ranked_by_name_where_there_is_neither_chief_nor_worker() -> None:
    layout = json.dumps({"roles": {"learner": ["a:1"], "actor": ["b:1", "c:1"]}})
    context = tm.current({"TRAINMASTER_ROLE": "learner", "TRAINMASTER_LAYOUT": layout})

    assert (context.rank, context.world_size) == (2, 3)


def test_a_custom_role_next_to_workers_has_no_rank() -> None:
    layout = json.dumps({"roles": {"worker": ["a:1"], "loader": ["b:1"]}})

    assert tm.current({"TRAINMASTER_ROLE": "loader", "TRAINMASTER_LAYOUT": layout}).rank is None


def test_a_sparse_cluster_names_the_ps() -> None:
    sparse = {"cluster": {"worker": {"1": "b:1"}, "ps": ["c:1"]}, "task": {"type": "worker", "index": 1}}
    context = tm.current({"TF_CONFIG": json.dumps(sparse)})

    assert context.peers == {"ps": ("c:1",)}
    assert context.rank == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRAINMASTER_INDEX", "one"),
        ("RANK", "1.5"),
        ("TF_CONFIG", "{"),
        ("TF_CONFIG", "[]"),
        ("TF_CONFIG", '{"task": {"index": "x"}}'),
        ("TF_CONFIG", '{"cluster": []}'),
        ("TRAINMASTER_LAYOUT", '{"roles": []}'),
        ("TRAINMASTER_LAYOUT", '"worker"'),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(variable: str, value: str) -> None:
    with pytest.raises(tm.ContextError, match=f"^{variable}: "):
        tm.current({variable: value})


def test_the_library_needs_nothing_but_the_standard_library() -> None:
    source = Path(tm.__file__).parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import trainmaster_train; assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
