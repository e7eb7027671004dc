"""Volumes that the cluster's driver will refuse are told before a job is."""

from __future__ import annotations

from core.db.engine import unit_of_work
from core.db.tables import Volume
from core.settings import Settings
from scheduler.executor_factory import refused_volumes


def test_local_volumes_outside_of_the_allowed_folders_are_reported(plane, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_EXECUTOR", "kubernetes")
    with unit_of_work(plane.sessions) as session:
        now = plane.engine.now
        for name, kind, root, config in (
            ("here", "local", "/seen/here", {"path": "/srv/sets"}),
            ("elsewhere", "local", "/mnt/elsewhere", {}),
            ("claim", "pvc", "/mnt/claim", {"claim": "c"}),
        ):
            session.add(Volume(id=f"vol-{name}", name=name, kind=kind, root=root, config=config, created_at=now))
    before = {volume.name for volume in plane.all(Volume) if volume.kind == "local"} - {"here", "elsewhere"}

    def sentences(host_paths):
        monkeypatch.setenv("TRAINMASTER_HOST_PATHS", host_paths)
        sentences = refused_volumes(plane.sessions, Settings())
        return [s for s in sentences if not any(f"Volume {name} " in s for name in before)]

    (sentence,) = sentences("/srv")
    assert "Volume elsewhere lies at /mnt/elsewhere" in sentence
    assert "TRAINMASTER_HOST_PATHS=/mnt/elsewhere" in sentence
    assert sentences("/srv:/mnt") == []
    assert len(sentences("")) == 2, "empty allows none"
    monkeypatch.setenv("TRAINMASTER_EXECUTOR", "docker")
    assert sentences("/srv") == [], "an engine of its own rules"


def test_a_volume_without_a_path_on_the_nodes_has_no_source(plane):
    """Not the node's root, where a driver that mounts paths would read and write."""
    with unit_of_work(plane.sessions) as session:
        now = plane.engine.now
        session.add(Volume(id="vol-claim", name="claim", kind="pvc", root=None, config={"claim": "c"}, created_at=now))
    plane.submit(input="claim/etc")
    plane.settle()
    (key,) = plane.engine.live()
    mounts = {mount.target: mount for mount in plane.engine.order_of(key).mounts}
    assert mounts["/data/data"].source == ""
    assert mounts["/data/data"].volume.path == "etc"
    assert mounts["/data/output"].source == f"{plane.folder}/default/job"
