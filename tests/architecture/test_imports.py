"""Modules, and the folders that hold them, import each other in one direction only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import grimp

from tests.architecture.source_tree import PACKAGES

# Imports (importer, imported) that close a circle between folders. Each is to go; a new entry needs a reason as good.
FOLDER_EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("api.app", "api.checkpoints"): "the factory builds the application's inspector of checkpoints",
    ("api.app", "api.endpoints"): "the factory builds the application's proxy to endpoints",
    ("api.app", "api.oidc"): "the factory reads the login providers, whose mistakes show at start",
    ("api.app", "api.protocols"): "the factory builds the state of other systems' protocols",
    ("api.app", "api.tensorboard"): "the factory builds the application's viewers",
    ("api.auth", "api.app"): "a caller is looked up in the unit of work that serves the request",
    ("api.http", "api.app"): "the middleware refuses requests while the application shuts down",
    ("api.http", "api.protocols"): "the middleware answers in XML where the object store's protocol wants that",
    ("api.jobs", "api.checkpoints"): "a job may resume from a checkpoint, which is looked up",
    ("api.jobs", "api.studies"): "a list of jobs may be that of one study",
    ("api.prometheus", "api.app"): "a scrape reads the database in a unit of work",
    ("api.prometheus", "api.http"): "a scrape is a route, and the middleware counts requests",
    ("api.protocols.vertex.training", "api.protocols.vertex.serving"): "a pipeline uploads a model",
    ("core.storage", "core.db"): "volumes and archives are rows, and repositories return storage's types",
    ("core.storage", "core.inspection"): "a job may resume from any checkpoint that inspection discovers",
    (
        "executors.kubernetes.pods",
        "executors.kubernetes.placeholders",
    ): "the pod of a replica on a shared GPU needs a placeholder",
    ("scheduler.control.attempts.launching", "scheduler.control.attempts.storage"): "commands need the loaded attempt",
    ("scheduler.messaging", "scheduler.process"): "Celery's tasks run in the scheduler's process, which starts Celery",
    ("scheduler.simulator.reading", "scheduler.simulator.estimates"): "a scenario states what is known of durations",
    ("scheduler.simulator.traces", "scheduler.simulator.reading"): "traces become arrivals",
    ("trainmaster.cli.jobs", "trainmaster.cli.planner"): "a job is shown with its what-if forecast",
    ("trainmaster.client.flows", "trainmaster.client.compose"): "a study's code is packed and uploaded like a job's",
    ("trainmaster.wire", "trainmaster.studies"): "a study's wire model contains its specification",
    ("trainmaster_runtime.process", "trainmaster_runtime.warm"): "a process may be forked from a warm parent",
    ("trainmaster_runtime.view", "trainmaster_runtime.process"): "the view of the file system is made of mounts",
    ("trainmaster_runtime.warm", "trainmaster_runtime.main"): "a forked child runs the main program",
    ("trainmaster_train.ps.checkpoint", "trainmaster_train.ps.worker"): "the chief asks the servers for their shards",
    ("trainmaster_train.ps.server", "trainmaster_train.ps.checkpoint"): "a server writes its shard",
}


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles = strongly_connected(module_imports())
    assert not circles, "Import circles:\n" + "\n".join(" → ".join(circle) for circle in circles)


def test_no_folders_import_each_other_in_a_circle() -> None:
    pairs = folder_imports(module_imports())
    circles = strongly_connected(by_importer(pairs.keys() - FOLDER_EXCEPTIONS.keys()))
    assert not circles, "Circles between folders:\n" + "\n".join(
        f"{' → '.join(circle)}:\n"
        + "\n".join(
            f"  {pairs[pair]}" for pair in sorted(pairs.keys() - FOLDER_EXCEPTIONS.keys()) if {*pair} <= {*circle}
        )
        for circle in circles
    )


def test_every_folder_exception_closes_a_circle() -> None:
    pairs = folder_imports(module_imports()).keys()
    others = pairs - FOLDER_EXCEPTIONS.keys()
    superfluous = [
        pair for pair in FOLDER_EXCEPTIONS if pair not in pairs or not strongly_connected(by_importer([*others, pair]))
    ]
    assert not superfluous, f"These exceptions close no circle: take them off FOLDER_EXCEPTIONS: {superfluous}"


def test_a_circle_between_folders_is_found() -> None:
    imports = {"a.left.x": {"a.right.y"}, "a.right.y": set[str](), "a.right.z": {"a.left.x", "b.other"}}
    assert folder_imports(imports) == {
        ("a.left", "a.right"): "a.left.x → a.right.y",
        ("a.right", "a.left"): "a.right.z → a.left.x",
    }
    assert strongly_connected(by_importer(folder_imports(imports))) == [["a.left", "a.right"]]


def test_a_circle_is_found() -> None:
    assert strongly_connected({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]


@cache
def module_imports() -> Mapping[str, set[str]]:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def folder_imports(imports: Mapping[str, set[str]]) -> dict[tuple[str, str], str]:
    """Pairs of siblings, folders or modules of one package, of which the first imports the second; with an example."""
    pairs: dict[tuple[str, str], str] = {}
    for importer in sorted(imports):
        for imported in sorted(imports[importer]):
            above, below = importer.split("."), imported.split(".")
            depth = next((at for at, (a, b) in enumerate(zip(above, below, strict=False)) if a != b), 0)
            if depth:
                pair = ".".join(above[: depth + 1]), ".".join(below[: depth + 1])
                pairs.setdefault(pair, f"{importer} → {imported}")
    return pairs


def by_importer(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    imports: dict[str, set[str]] = {}
    for importer, imported in pairs:
        imports.setdefault(importer, set()).add(imported)
        imports.setdefault(imported, set())
    return imports


def strongly_connected(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Components of more than one module, by Tarjan's algorithm (SIAM J. Comput. 1, 1972), without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    components = []
    for root in sorted(imports):
        if root in index:
            continue
        work = [(root, iter(sorted(imports[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            module, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(imports[target]))))
                    break
                if target in on_stack:
                    low[module] = min(low[module], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    component: list[str] = []
                    while not component or component[-1] != module:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        components.append(sorted(component))
    return components
