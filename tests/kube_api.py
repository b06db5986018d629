"""A real Kubernetes API server on loopback: kube-apiserver with etcd, without a kubelet, so that pods stay Pending.

One server for all workers of a test run, which the last one stops. The binary is that of KUBE_APISERVER, else the one
that `nox -s kube_apiserver` has built, else of `../shared/kube-apiserver`, else on PATH; etcd is on PATH (Debian:
etcd-server).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import lzma
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .waiting import free_port, is_alive, wait_until

__all__ = ["ADMIN", "KubeApi", "UnavailableError", "shared_server"]

ADMIN: Final = "admin-token"
_BUILT: Final = Path(__file__).parents[1] / "build" / "kube-apiserver"
_PACKED: Final = Path(__file__).parents[2] / "shared" / "kube-apiserver" / "kube-apiserver.xz"
_START_SECONDS: Final = 90.0
_ACCOUNTS: Final = {
    "stranger": "stranger",
    "webhook": "mldiagnostics-injection-webhook",
    "operator": "mldiagnostics-connection-operator",
}
"""The service account that each token is for."""

_started: list[subprocess.Popen[bytes]] = []
"""The programs that this process started; the last worker, which may be another one, stops them."""


class UnavailableError(Exception):
    """No API server can be started here; the message says what is missing."""


class KubeApi:
    """A running API server.

    Attributes:
        url: Its base URL.
        authority: The file of the certificate that it presents.
        kubeconfig: A file by which kubectl is its administrator.
    """

    def __init__(self, folder: Path, port: int) -> None:
        """Describe the server of a folder."""
        self.folder = folder
        self.url = f"https://127.0.0.1:{port}"
        self.authority = folder / "certificates" / "apiserver.crt"
        self.kubeconfig = folder / "kubeconfig"

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings of a client that trusts this server alone."""
        return ssl.create_default_context(cafile=str(self.authority))

    def token_file(self, name: str = ADMIN) -> Path:
        """Return a file with a token of `tokens.csv`."""
        path = self.folder / f"token-{name}"
        if not path.exists():  # Replaced in one step: an operator of another test may be reading it.
            part = path.with_name(f"{path.name}.{os.getpid()}")
            part.write_text(name)
            part.replace(path)
        return path

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", token: str = ADMIN
    ) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            urllib.error.HTTPError: The server refused it.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self.context()) as response:
            return dict(json.loads(response.read() or b"{}"))

    def apply(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """Create an object in the collection of a path, or return the existing one."""
        try:
            return self.call("POST", path, document)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise AssertionError(error.read().decode()) from error
            return self.call("GET", f"{path}/{document['metadata']['name']}")

    def refusal(self, method: str, path: str, body: Any = None) -> int:
        """Return the status with which a request is refused."""
        try:
            self.call(method, path, body)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        raise AssertionError(f"{method} {path} was not refused")

    def wait_until_served(self, path: str) -> None:
        """Wait until the objects of a new kind can be listed."""

        def is_served() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):
                return bool(self.call("GET", path))
            return False

        wait_until(is_served)

    def kill(self) -> None:
        """Kill the API server, without a chance to end in order; its storage runs on."""
        port, etcd, server = _running(self.folder)
        os.kill(server, signal.SIGKILL)
        for process in _started:
            if process.pid == server:
                process.wait(10)
        (self.folder / "running").write_text(f"{port} {etcd}")

    def start_again(self) -> None:
        """Start the API server again after `kill`, at its port, and wait until it answers."""
        port, etcd = _running(self.folder)
        server = _run("apiserver", self.folder)
        (self.folder / "running").write_text(f"{port} {etcd} {server}")
        _wait_until_ready(self, [etcd, server])


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[KubeApi]:
    """Return the server of a test run: the first worker starts it, the last one stops it.

    Args:
        folder: The folder of this server, the same in all workers.

    Raises:
        UnavailableError: A program is missing.
    """
    binary, etcd = _binary(), shutil.which("etcd")
    if etcd is None:
        raise UnavailableError("etcd is not installed (Debian: apt-get install etcd-server)")
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / "users"
    users.mkdir(exist_ok=True)
    own = users / str(os.getpid())
    with _locked(folder):
        own.touch()
        port = _running_port(folder) or _start(folder, binary, etcd)
    try:
        yield KubeApi(folder, port)
    finally:
        with _locked(folder):
            own.unlink()
            if not any(is_alive(int(user.name)) for user in users.iterdir()):
                _stop(folder)


def _binary() -> str:
    given = os.environ.get("KUBE_APISERVER", "")
    if given:
        return given
    if _BUILT.exists():
        return str(_BUILT)
    if _PACKED.exists():
        unpacked = Path(os.environ.get("TMPDIR", "/tmp")) / f"kube-apiserver-{os.getuid()}"
        if not unpacked.exists():
            part = unpacked.with_name(f"{unpacked.name}.{os.getpid()}")
            with lzma.open(_PACKED) as packed, part.open("wb") as target:
                shutil.copyfileobj(packed, target)
            part.chmod(0o700)
            part.rename(unpacked)
        return str(unpacked)
    found = shutil.which("kube-apiserver")
    if found is None:
        raise UnavailableError(
            "no kube-apiserver: `nox -s kube_apiserver` builds it, or set KUBE_APISERVER to its path"
        )
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _running(folder: Path) -> list[int]:
    """Return the port of the server, and the processes of etcd and of it."""
    return [*map(int, (folder / "running").read_text().split())]


def _running_port(folder: Path) -> int | None:
    try:
        port, *pids = _running(folder)
    except FileNotFoundError:
        return None
    return port if all(map(is_alive, pids)) else None


def _start(folder: Path, binary: str, etcd: str) -> int:
    port, client_port, peer_port = free_port(), free_port(), free_port()
    shutil.rmtree(folder / "etcd", ignore_errors=True)
    subprocess.run(["openssl", "genrsa", "-out", str(folder / "accounts.key")], check=True, capture_output=True)
    accounts = [
        f"{name},system:serviceaccount:gke-mldiagnostics:{account},{name}" for name, account in _ACCOUNTS.items()
    ]
    tokens = [f"{ADMIN},admin,admin,system:masters", *accounts]
    (folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
    storage = f"http://127.0.0.1:{client_port}"
    commands = {
        "etcd": [
            etcd,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={storage}",
            f"--advertise-client-urls={storage}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
        ],
        "apiserver": [
            binary,
            f"--etcd-servers={storage}",
            f"--cert-dir={folder / 'certificates'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            f"--service-account-key-file={folder / 'accounts.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
        ],
    }
    for name, command in commands.items():
        (folder / f"{name}.json").write_text(json.dumps(command))
    pids = [_run(name, folder) for name in commands]
    (folder / "running").write_text(" ".join(map(str, [port, *pids])))
    server = KubeApi(folder, port)
    _write_kubeconfig(server)
    _wait_until_ready(server, pids)
    return port


def _run(name: str, folder: Path) -> int:
    """Start a program whose command is in a file, and return its process."""
    command = json.loads((folder / f"{name}.json").read_text())
    with (folder / f"{name}.log").open("ab") as log:
        environ = {name: value for name, value in os.environ.items() if name != "GOGC"}  # It lives for long.
        popen = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environ, start_new_session=True)
        _started.append(popen)
    return _started[-1].pid


def _wait_until_ready(server: KubeApi, pids: list[int]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError, ssl.SSLError):
            if server.call("GET", "/api/v1/namespaces/default")["metadata"]["name"] == "default":
                return
        if time.monotonic() >= deadline or not all(map(is_alive, pids)):
            log_end = (server.folder / "apiserver.log").read_text()[-2000:]
            _stop(server.folder)
            raise AssertionError(f"the API server did not start: {log_end}")
        time.sleep(0.2)


def _stop(folder: Path) -> None:
    pids: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        _, *pids = _running(folder)
        (folder / "running").unlink()
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for process in _started:
        if process.pid in pids:  # Others are of another server.
            process.wait(10)


def _write_kubeconfig(server: KubeApi) -> None:
    cluster = {"server": server.url, "certificate-authority": str(server.authority)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "loopback",
        "clusters": [{"name": "loopback", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": ADMIN}}],
        "contexts": [{"name": "loopback", "context": {"cluster": "loopback", "user": "admin"}}],
    }
    server.kubeconfig.write_text(json.dumps(config))
