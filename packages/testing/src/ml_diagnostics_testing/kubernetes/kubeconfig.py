"""The file that leads kubectl to a cluster."""

import json


def kubeconfig(url: str, context: str, namespace: str = "", token: str = "") -> str:
    """Returns a kubeconfig with one context.

    Args:
        url: The cluster.
        context: What the context, its cluster and its user are called.
        namespace: Where commands without one mean; empty is "default".
        token: Who asks; empty is nobody.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url}}],
        "users": [{"name": context, "user": {"token": token} if token else {}}],
        "contexts": [
            {
                "name": context,
                "context": {
                    "cluster": context,
                    "user": context,
                    **({"namespace": namespace} if namespace else {}),
                },
            }
        ],
        "current-context": context,
    }
    return json.dumps(config, indent=1) + "\n"  # JSON is YAML
