from __future__ import annotations

import pytest
from trainmaster_runtime.prepare import PathMap

PATHS = PathMap(
    {"/data": "/run/work", "/data/data": "/volumes/in", "/data/output": "/volumes/out", "/mnt/set": "/v/set"}
)


@pytest.mark.parametrize(
    ("text", "mapped"),
    [
        ("/data", "/run/work"),
        ("/data/train.py", "/run/work/train.py"),
        ("/data/data/x", "/volumes/in/x"),
        ("/data/output/model/", "/volumes/out/model/"),
        ("--data_dir=/data/data", "--data_dir=/volumes/in"),
        ("/data:/usr/lib:/data/output", "/run/work:/usr/lib:/volumes/out"),
        ("cat /data/data/x > '/data/output/y'; ls /data", "cat /volumes/in/x > '/volumes/out/y'; ls /run/work"),
        ('{"dir": "/data/output"}', '{"dir": "/volumes/out"}'),
        ("/mnt/set/a", "/v/set/a"),
        ("/data/dataset", "/run/work/dataset"),
    ],
)
def test_paths_of_the_job_become_real_ones(text, mapped):
    assert PATHS.text(text) == mapped


@pytest.mark.parametrize(
    "text", ["/database", "/home/me/data/x", "/mnt/settings", "s3://bucket/data/x", "my/data", "data"]
)
def test_what_only_looks_alike_stays(text):
    assert PATHS.text(text) == text


def test_every_value_of_the_environment_is_mapped():
    assert PATHS.env({"A": "/data/data", "B": "plain"}) == {"A": "/volumes/in", "B": "plain"}
