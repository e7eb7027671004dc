"""A kubeconfig of exactly the rights in ``deploy/kubernetes``, on whichever cluster; and calls as rights."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from core.domain.errors import ExecutorRefused
from executors.kubernetes.api_server.access import Access
from executors.kubernetes.api_server.client import Json, KubernetesClient, ObjectExists, ObjectNotFound, path

MANIFESTS = Path(__file__).parents[3] / "deploy" / "kubernetes"
RBAC = "rbac.authorization.k8s.io/v1"
_GROUP_OF = {"Role": RBAC, "RoleBinding": RBAC, "ClusterRole": RBAC, "ClusterRoleBinding": RBAC}

# verb, API group, resource
Right = tuple[str, str, str]

# Every call that the driver makes: verb, API group, resource.
CLUSTER_WIDE = {
    ("list", "", "pods"),  # cache: all pods, for the room on nodes; and the pods of one attempt, afresh
    ("watch", "", "pods"),
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
    ("get", "", "nodes"),  # ending: does its kubelet report?
}
IN_THE_NAMESPACE = {
    ("get", "", "namespaces"),
    ("create", "", "pods"),
    ("get", "", "pods"),
    ("patch", "", "pods"),  # ending: asks to stop by an annotation
    ("delete", "", "pods"),
    ("create", "", "services"),
    ("get", "", "services"),
    ("list", "", "services"),
    ("delete", "", "services"),
    ("create", "", "secrets"),
    ("delete", "", "secrets"),
    ("deletecollection", "", "secrets"),
    ("create", "", "configmaps"),
    ("get", "", "configmaps"),
    ("list", "", "configmaps"),
    ("delete", "", "configmaps"),
    ("list", "", "events"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("create", "policy", "poddisruptionbudgets"),
    ("delete", "policy", "poddisruptionbudgets"),
}
PER_PROJECT = {("create", "", "namespaces"), ("patch", "", "namespaces")}


def manifests(*files: str) -> list[Json]:
    found: list[Json] = []
    for file in files:
        found += [item for item in yaml.safe_load_all((MANIFESTS / file).read_text()) if item]
    return found


def rights_of(role: Json) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def right_of(method: str, url: str) -> tuple[bool, Right]:
    """The right that a call needs, and whether it is needed in all of the cluster."""
    url, _, mark = url.partition("?")
    found = re.fullmatch(r"/(?:api/v1|apis/([^/]+)/[^/]+)(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?", url)
    assert found is not None, url
    group, namespace, resource, name = found.groups()
    if resource == "namespaces" and name:
        namespace = name
    verb = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
    if mark == "watch":
        verb = "watch"
    elif verb == "delete" and not name:
        verb = "deletecollection"
    return namespace is None, (verb, group or "", resource)


class Limited:
    """Makes the manifests' objects under names of their own, and a kubeconfig of their service account."""

    def __init__(self, admin: KubernetesClient, mark: str, namespace: str, *files: str) -> None:
        self.admin, self.mark, self.namespace = admin, mark, namespace
        self.made: list[str] = []
        for item in manifests(*files):
            self._make(self._renamed(item))

    def kubeconfig(self, folder: Path) -> Access:
        """Its access; the file lies in ``folder``."""
        link = Access().connect()
        authority = Path(str(link.pool.connection_pool_kw["ca_certs"])).read_bytes()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "limited",
            "clusters": [
                {
                    "name": "it",
                    "cluster": {
                        "server": link.host,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": "limited", "user": {"token": self._token()}}],
            "contexts": [{"name": "limited", "context": {"cluster": "it", "user": "limited"}}],
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(document))
        file.chmod(0o600)
        return Access(kubeconfig=str(file))

    def close(self) -> None:
        for url in reversed(self.made):
            try:
                self.admin.delete(url)
            except ObjectNotFound:
                pass

    def _renamed(self, item: Json) -> Json:
        """The same with the namespace of this run, and names that no other run has."""
        home = f"{self.mark}-home"

        def new(name: str) -> str:
            return {"trainmaster-jobs": self.namespace, "trainmaster": home}.get(name, f"{self.mark}-{name}")

        metadata = item["metadata"]
        if item["kind"] == "Namespace":
            metadata["name"] = new(metadata["name"])
        elif "namespace" in metadata:
            metadata["namespace"] = new(metadata["namespace"])
        else:
            metadata["name"] = f"{self.mark}-{metadata['name']}"
        for subject in item.get("subjects", ()):
            subject["namespace"] = new(subject["namespace"])
        if item.get("roleRef", {}).get("kind") == "ClusterRole":
            item["roleRef"]["name"] = f"{self.mark}-{item['roleRef']['name']}"
        return item

    def _make(self, item: Json) -> None:
        group = _GROUP_OF.get(item["kind"], "v1")
        resource = f"{item['kind'].lower()}s"
        namespace = item["metadata"].get("namespace", "")
        url = path(resource, namespace, group=group)
        try:
            self.admin.post(url, item)
        except ObjectExists:
            return
        self.made.append(f"{url}/{item['metadata']['name']}")

    def _token(self) -> str:
        """By the TokenRequest API; where there is none, the Secret that older clusters make for every account."""
        home = f"{self.mark}-home"
        account = path("serviceaccounts", home, "trainmaster")
        request: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        try:
            return str(self.admin.post(f"{account}/token", request)["status"]["token"])
        except (ObjectNotFound, ExecutorRefused):
            pass
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for secret in self._token_secrets(account, home):
                token = (secret.get("data") or {}).get("token")
                if token:
                    return base64.b64decode(token).decode()
            time.sleep(0.2)
        raise AssertionError("the cluster gives no token for a service account")

    def _token_secrets(self, account: str, home: str) -> Iterator[Json]:
        for named in self.admin.get(account).get("secrets") or ():
            yield self.admin.get(path("secrets", home, named["name"]))
