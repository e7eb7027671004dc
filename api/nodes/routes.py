from __future__ import annotations

from trainmaster.wire.admin import HolderView, NodeLabelsSet, NodeView
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.nodes import holders, service

router = new_router("nodes")


@router.get("/nodes", operation_id="list_nodes", summary="The nodes and what is used on them")
def list_nodes(caller: Reader, context: AppContextDep, page: PageParams) -> Page[NodeView]:
    """By name."""
    with context.read() as work:
        return service.list_nodes(work, caller, page)


@router.get("/holders", operation_id="list_holders", summary="Which replicas hold what on the nodes")
def list_holders(caller: Reader, context: AppContextDep, page: PageParams) -> Page[HolderView]:
    """Everything that is not free to the planner. Jobs of projects that are not yours are not named."""
    with context.read() as work:
        return holders.list_page(work, caller, page)


@router.get("/nodes/{node}", operation_id="get_node", summary="One node")
def get_node(node: str, caller: Reader, context: AppContextDep) -> NodeView:
    with context.read() as work:
        return service.get_node(work, caller, node)


@router.post("/nodes/{node}/cordon", operation_id="cordon_node", summary="Place nothing new on a node")
def cordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """What runs there goes on. Repeating replaces the reason."""
    with context.write() as work:
        return service.cordon(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/drain", operation_id="drain_node", summary="Empty a node")
def drain_node(node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None) -> NodeView:
    """Nothing new is placed there, and what runs there is stopped with its grace and goes on elsewhere from its last checkpoint,
    which does not count as a restart. Jobs that are not preemptible run to their end. `uncordon` opens the node again.
    """
    with context.write() as work:
        return service.drain(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/uncordon", operation_id="uncordon_node", summary="Place replicas on a node again")
def uncordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    with context.write() as work:
        return service.uncordon(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/release", operation_id="release_node", summary="Lift a node's quarantine")
def release_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """New replicas are placed there again, and what failed there before counts no more. A cordon stays."""
    with context.write() as work:
        return service.release(work, caller, node, body.reason if body else "")


@router.put("/nodes/{node}/labels", operation_id="set_node_labels", summary="Set the labels that admins give to a node")
def set_node_labels(node: str, body: NodeLabelsSet, caller: PlatformAdmin, context: AppContextDep) -> NodeView:
    """Replaces the admins' labels. They win over what the executor reports; node selectors meet both."""
    with context.write() as work:
        return service.set_labels(work, caller, node, body.labels)


@router.delete("/nodes/{node}", operation_id="delete_node", summary="Forget a node that is gone", status_code=204)
def delete_node(node: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Refused while it is ready or holds replicas. A node that comes back is added again, without cordon, quarantine and labels."""
    with context.write() as work:
        service.remove(work, caller, node)
