"""The names that the cluster and all parts of ours share: groups, kinds, labels, and the variables of a pod."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALLOW_CAPTURES_FROM",
    "CLAIMED_BY",
    "CONNECTIONS",
    "CONNECTION_GROUP",
    "CONNECTION_KIND",
    "CONNECTION_VERSION",
    "EXEMPT_LABEL",
    "EXEMPT_NAMESPACES",
    "IDENTIFIER",
    "JOBSET_NAME_LABEL",
    "JOBSET_UID_LABEL",
    "JOB_NAME_LABEL",
    "LABEL",
    "LOOKED_UP",
    "LWS_NAME_LABEL",
    "METADATA",
    "NAMESPACE",
    "NAMESPACE_NAME_LABEL",
    "OPERATOR",
    "POLICY",
    "POLICY_PARAMETERS",
    "RAY_CLUSTER_LABEL",
    "SUPPORTED",
    "TTL",
    "WEBHOOK",
    "WEBHOOK_CERTIFICATE",
    "WEBHOOK_CONFIGURATION",
]

IDENTIFIER: Final = "GKE_DIAGON_IDENTIFIER"
METADATA: Final = "GKE_DIAGON_METADATA"
"""The variables that a run reads; GKE's managed webhook sets the same."""

LABEL: Final = "managed-mldiagnostics-gke"
"""With the value `true` on a namespace, a workload or a pod, its pods get the variables."""
EXEMPT_LABEL: Final = "diagon-webhook-exempt"
"""With the value `true` on a namespace or a pod, its pods, or this one, never get them."""
NAMESPACE: Final = "gke-mldiagnostics"
"""The namespace of the webhook and the operator."""
EXEMPT_NAMESPACES: Final = ("kube-system", "kube-node-lease")
"""Beside that of the webhook itself."""
NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""The API server sets it on each namespace, from Kubernetes 1.21 on."""

OPERATOR: Final = "mldiagnostics-connection-operator"
"""The operator's service account, and its Deployment."""
WEBHOOK: Final = "mldiagnostics-injection-webhook"
"""The Service of the webhook, and its Deployment."""
WEBHOOK_CERTIFICATE: Final = f"{WEBHOOK}-certificate"
"""The Secret of a webhook that signs its certificate itself."""
WEBHOOK_CONFIGURATION: Final = f"{WEBHOOK}-mutating-webhook-config"
"""The MutatingWebhookConfiguration by which the API server asks the webhook."""
POLICY: Final = "mldiagnostics-injection"
"""The MutatingAdmissionPolicy that does the same without a server, and its binding."""
POLICY_PARAMETERS: Final = "mldiagnostics-cluster"
"""The ConfigMap with the name of the cluster, for the policy."""

JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID_LABEL: Final = "jobset.sigs.k8s.io/jobset-uid"
LWS_NAME_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
RAY_CLUSTER_LABEL: Final = "ray.io/cluster"
JOB_NAME_LABEL: Final = "job-name"

SUPPORTED: Final = {
    ("batch", "Job"): "jobs",
    ("jobset.x-k8s.io", "JobSet"): "jobsets",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): "leaderworkersets",
    ("ray.io", "RayCluster"): "rayclusters",
    ("ray.io", "RayJob"): "rayjobs",
    ("trainer.kubeflow.org", "TrainJob"): "trainjobs",
}
"""The resource of each kind, in any version of its group, that can be the workload of a pod."""

LOOKED_UP: Final = {**SUPPORTED, ("", "Pod"): "pods", ("apps", "StatefulSet"): "statefulsets"}
"""The resource of each kind that may be between a pod and its workload, or be the workload."""

CONNECTION_GROUP: Final = "diagon.gke.io"
CONNECTION_VERSION: Final = "v1alpha1"
CONNECTION_KIND: Final = "MLDiagnosticsConnection"
CONNECTIONS: Final = "mldiagnosticsconnections"
ALLOW_CAPTURES_FROM: Final = "mldiagnostics.dev/allow-captures-from"
"""The annotation of a namespace with the namespaces with objects that may capture its pods, separated by commas."""
CLAIMED_BY: Final = "mldiagnostics.dev/claimed-by"
"""The annotation with the operator that captures an object; set before its status."""
TTL: Final = "mldiagnostics.dev/ttl-seconds-after-finished"
"""The annotation with the seconds after which a finished object is deleted; 0 for never."""
