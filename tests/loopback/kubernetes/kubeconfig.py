"""The kubeconfig of a loopback cluster."""

import json


def kubeconfig(url: str, context: str, namespace: str = "") -> str:
    """Return a kubeconfig with one context. It has no credentials, because kubectl sends none without TLS.

    Args:
        url: The URL of the cluster.
        context: The name of the context, of its cluster and of its user.
        namespace: The default namespace of commands; by default "default".
    """
    target: dict[str, str] = {"cluster": context, "user": context}
    if namespace:
        target["namespace"] = namespace
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url}}],
        "users": [{"name": context, "user": {}}],
        "contexts": [{"name": context, "context": target}],
        "current-context": context,
    }
    return json.dumps(config, indent=1) + "\n"  # JSON is YAML
