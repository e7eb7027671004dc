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


@router.get("/nodes", operation_id="list_nodes", summary="The nodes and their usage")
def list_nodes(caller: Reader, context: AppContextDep, page: PageParams) -> Page[NodeView]:
    """In order of name."""
    with context.read() as work:
        return service.list_nodes(work, caller, page)


@router.get("/holders", operation_id="list_holders", summary="The replicas that hold resources on the nodes")
def list_holders(caller: Reader, context: AppContextDep, page: PageParams) -> Page[HolderView]:
    """All resources that are not free to the planner. Jobs of projects that you may not see are not named."""
    with context.read() as work:
        return holders.list_page(work, caller, page)


@router.get("/nodes/{node}", operation_id="get_node", summary="One node")
def get_node(node: str, caller: Reader, context: AppContextDep) -> NodeView:
    with context.read() as work:
        return service.get_node(work, caller, node)


@router.post("/nodes/{node}/cordon", operation_id="cordon_node", summary="Close a node to new replicas")
def cordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """Running replicas continue. Repeating the request replaces the reason."""
    with context.write() as work:
        return service.cordon(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/drain", operation_id="drain_node", summary="Drain a node")
def drain_node(node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None) -> NodeView:
    """Closes the node to new replicas. Its running jobs are stopped with their grace period and resume elsewhere from
    their last checkpoint, which does not count as a restart. Jobs that are not preemptible run to their end.
    `uncordon` opens the node again.
    """
    with context.write() as work:
        return service.drain(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/uncordon", operation_id="uncordon_node", summary="Open a cordoned or drained node")
def uncordon_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    with context.write() as work:
        return service.uncordon(work, caller, node, body.reason if body else "")


@router.post("/nodes/{node}/release", operation_id="release_node", summary="Lift a node's quarantine")
def release_node(
    node: str, caller: PlatformAdmin, context: AppContextDep, body: ReasonRequest | None = None
) -> NodeView:
    """The node takes new replicas again, and its earlier failures are forgotten. A cordon stays."""
    with context.write() as work:
        return service.release(work, caller, node, body.reason if body else "")


@router.put("/nodes/{node}/labels", operation_id="set_node_labels", summary="Set the admins' labels of a node")
def set_node_labels(node: str, body: NodeLabelsSet, caller: PlatformAdmin, context: AppContextDep) -> NodeView:
    """Replaces the admins' labels. They take precedence over labels from the executor; node selectors match both."""
    with context.write() as work:
        return service.set_labels(work, caller, node, body.labels)


@router.delete("/nodes/{node}", operation_id="delete_node", summary="Remove a node that is gone", status_code=204)
def delete_node(node: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    """Refused while it is ready or has replicas. A node that returns is added again, without cordon, quarantine and
    labels.
    """
    with context.write() as work:
        service.remove(work, caller, node)
