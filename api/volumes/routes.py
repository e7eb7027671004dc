from __future__ import annotations

from trainmaster.wire.admin import VolumeView
from trainmaster.wire.base import Page
from trainmaster.wire.volumes import VolumeCreate

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.volumes import service

router = new_router("volumes", "/volumes")


@router.get("", operation_id="list_volumes", summary="The volumes that jobs may use")
def list_volumes(caller: Reader, context: AppContextDep, page: PageParams) -> Page[VolumeView]:
    """In order of name. `root` and `config` are shown to platform admins only."""
    with context.read() as work:
        return service.list_volumes(work, caller, page)


@router.post("", operation_id="create_volume", summary="Register a volume", status_code=201)
def create_volume(body: VolumeCreate, caller: PlatformAdmin, context: AppContextDep) -> VolumeView:
    """`root` is the volume's folder on the control plane: required for a local volume; without it files and logs are
    not served. `config` is how containers mount it: `nfs` takes `server` and `path`, `pvc` a `claim`, `csi` a `driver`
    with its `attributes`, `local` a `path` if the folder is elsewhere on the nodes.
    """
    root = service.check_root(body, context.settings)
    service.demand_no_models(body, root, context.volumes.find(context.settings.default_volume, context.clock()))
    with context.write() as work:
        return service.view_of(service.register(work, caller, body, root), caller)


@router.get("/{volume}", operation_id="get_volume", summary="One volume")
def get_volume(volume: str, caller: Reader, context: AppContextDep) -> VolumeView:
    with context.read() as work:
        return service.view_of(service.load(work, volume), caller)


@router.delete("/{volume}", operation_id="delete_volume", summary="Remove a volume", status_code=204)
def delete_volume(volume: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Its files stay. Refused while jobs that have not ended use it."""
    with context.write() as work:
        service.remove(work, caller, volume, context.settings)
