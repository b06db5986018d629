"""The connection of a person's machine: from the files that kubectl reads.

Source of the format: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import Connection
from google_cloud_mldiagnostics.exceptions import KubernetesConfigurationError

__all__ = ["read_kubeconfig"]

_PLUGIN_SECONDS: Final = 30.0
_UNSUPPORTED: Final = {
    "auth-provider": "which Kubernetes no longer supports",
    "username": "which Kubernetes no longer supports",
    "as": "which is not supported here",
}
_KEPT_SECONDS: Final = 60.0
"""For a token of a plugin without an end."""


def read_kubeconfig(
    path: Path | None = None, context: str | None = None, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Return the connection of a context.

    Args:
        path: The file; None for those of KUBECONFIG, else ~/.kube/config.
        context: The name of the context; None for the current one.
        environ: The environment.

    Raises:
        KubernetesConfigurationError: There is no such file or context, or it needs what is not supported.
    """
    files = [path] if path is not None else _files(environ)
    config = _Config([(file, _read(file)) for file in files if path is not None or file.exists()])
    if not config.documents:
        raise KubernetesConfigurationError(
            f"there is no {', '.join(map(str, files))}: get the credentials of your cluster, as with `gcloud container "
            "clusters get-credentials`, or set KUBECONFIG"
        )
    name = context or config.current_context()
    chosen, _ = config.find("contexts", "context", name)
    cluster, cluster_folder = config.find("clusters", "cluster", str(chosen.get("cluster", "")))
    user, user_folder = config.find("users", "user", str(chosen.get("user", "")))
    server = str(cluster.get("server", ""))
    if not server:
        raise KubernetesConfigurationError(f"the cluster of the context {name} has no server")
    proxy = str(cluster.get("proxy-url") or "")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise KubernetesConfigurationError(f"the proxy of the context {name} is not an HTTP proxy: {proxy}")
    tls = _tls(cluster, cluster_folder, user, user_folder) if server.startswith("https:") else None
    server_name = str(cluster.get("tls-server-name") or "") or None
    return Connection(server, tls, proxy=proxy or None, server_name=server_name, **_token(user, user_folder, name))


class _Config:
    """Several files: of an entry that is in more than one of them, the first is used, as by kubectl."""

    def __init__(self, documents: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
        self.documents = documents

    def current_context(self) -> str:
        """Return the name of the context that is used by default."""
        for _, document in self.documents:
            if document.get("current-context"):
                return str(document["current-context"])
        raise KubernetesConfigurationError(
            "no context is the current one: kubectl config use-context NAME, or give --context NAME"
        )

    def find(self, plural: str, key: str, name: str) -> tuple[Mapping[str, Any], Path]:
        """Return an entry by its name, and the folder that its paths are relative to."""
        names = []
        for path, document in self.documents:
            for entry in document.get(plural) or ():
                if isinstance(entry, dict) and entry.get("name") == name:
                    return entry.get(key) or {}, path.parent
                names.append(str(entry.get("name")) if isinstance(entry, dict) else "?")
        known = f"there are {', '.join(sorted(names))}" if names else "there is none"
        raise KubernetesConfigurationError(f"the kubeconfig has no {key} {name!r}: {known}")


def _files(environ: Mapping[str, str]) -> list[Path]:
    given = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part) for part in given] or [Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config"]


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KubernetesConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise KubernetesConfigurationError(f"{path} is not a valid kubeconfig: {error}") from error
    if not isinstance(document, dict):
        raise KubernetesConfigurationError(f"{path} is not a valid kubeconfig: expected a mapping")
    return document


def _tls(
    cluster: Mapping[str, Any], cluster_folder: Path, user: Mapping[str, Any], user_folder: Path
) -> ssl.SSLContext:
    try:
        authority = _content(cluster, "certificate-authority", cluster_folder)
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate = _content(user, "client-certificate", user_folder)
        key = _content(user, "client-key", user_folder)
        if certificate and key:
            with tempfile.NamedTemporaryFile() as file:  # `load_cert_chain` takes no bytes.
                file.write(certificate + b"\n" + key)
                file.flush()
                context.load_cert_chain(file.name)
    except (OSError, ValueError) as error:
        raise KubernetesConfigurationError(f"a certificate of the kubeconfig cannot be used: {error}") from error
    return context


def _content(entry: Mapping[str, Any], key: str, folder: Path) -> bytes:
    """Return what an entry has as `key-data`, or in the file of `key`; empty without both."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(str(entry[f"{key}-data"]), validate=True)
    return (folder / str(entry[key])).read_bytes() if entry.get(key) else b""


def _token(user: Mapping[str, Any], folder: Path, context: str) -> dict[str, Any]:
    """Return the arguments of a `Connection` for the token of a user."""
    for key, reason in _UNSUPPORTED.items():
        if user.get(key):
            raise KubernetesConfigurationError(
                f"the context {context} identifies itself by {key}, {reason}: use a token, a client certificate, or a "
                "credential plugin (exec)"
            )
    if user.get("tokenFile"):
        return {"token_file": folder / str(user["tokenFile"])}
    if user.get("token"):
        token = str(user["token"])
        return {"read_token": lambda: token}
    if user.get("exec"):
        return {"read_token": _Plugin(user["exec"], folder)}
    return {}


class _Plugin:
    """A program that prints a token, such as gke-gcloud-auth-plugin; it is run again when the token ends.

    Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    """

    def __init__(self, entry: Mapping[str, Any], folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._entry = entry
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def __call__(self) -> str:
        """Return the token.

        Raises:
            KubernetesConfigurationError: The program is missing, or failed.
        """
        with self._lock:  # Of several requests at once, one runs it.
            if self._clock() >= self._until:
                status = self._run()
                self._token, self._until = str(status.get("token", "")), self._end(status)
            return self._token

    def _run(self) -> Mapping[str, Any]:
        command = str(self._entry.get("command", ""))
        program = str(self._folder / command) if os.sep in command else command
        version = str(self._entry.get("apiVersion", "client.authentication.k8s.io/v1"))
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        given = {str(each["name"]): str(each["value"]) for each in self._entry.get("env") or ()}
        try:
            done = subprocess.run(
                [program, *map(str, self._entry.get("args") or ())],
                env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_PLUGIN_SECONDS,
            )
            status = json.loads(done.stdout)["status"]
            if not status.get("token"):
                raise KeyError("token")
        except FileNotFoundError as error:
            hint = str(self._entry.get("installHint", "")).strip()
            raise KubernetesConfigurationError(f"{command} is not installed. {hint}".strip()) from error
        except subprocess.CalledProcessError as error:
            raise KubernetesConfigurationError(f"{command} failed: {error.stderr.strip()[-500:]}") from error
        except subprocess.TimeoutExpired as error:
            raise KubernetesConfigurationError(f"{command} gave no token within {_PLUGIN_SECONDS:.0f} s") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise KubernetesConfigurationError(f"{command} gave no token: {error!r:.300}") from error
        return dict(status)

    def _end(self, status: Mapping[str, Any]) -> float:
        try:
            end = datetime.datetime.fromisoformat(str(status["expirationTimestamp"]).replace("Z", "+00:00"))
        except (KeyError, ValueError):
            return self._clock() + _KEPT_SECONDS
        return end.timestamp() - 10.0
