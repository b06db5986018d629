"""The file that leads kubectl to a cluster."""

import json


def kubeconfig(url: str, context: str, namespace: str = "") -> str:
    """Returns a kubeconfig with one context, and without credentials: kubectl sends none where there is no TLS.

    Args:
        url: The cluster.
        context: What the context, its cluster and its user are called.
        namespace: What commands mean that name none; empty is "default".
    """
    meant: dict[str, str] = {"cluster": context, "user": context}
    if namespace:
        meant["namespace"] = namespace
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url}}],
        "users": [{"name": context, "user": {}}],
        "contexts": [{"name": context, "context": meant}],
        "current-context": context,
    }
    return json.dumps(config, indent=1) + "\n"  # JSON is YAML
