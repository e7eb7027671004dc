"""Jobs as pods of a Kubernetes cluster: stable v1 APIs, 1.20 to today."""

from executors.kubernetes.executor import KubernetesExecutor as KubernetesExecutor
