"""A simulated viewer VM: the startup script runs in a folder, with stand-ins for the programs and services of a VM."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.http_server import Request, Response
from ml_diagnostics_testing.metadata import MetadataServer
from xprofiler.viewers.startup import STARTUP_SCRIPT

BUCKET = "test-bucket"
_CONFIGURATIONS = "dl-platform-public-configs"

# Each records its call; a file `fails-NAME` in the folder makes it fail. Programs of systemd-run continue to run.
_RECORD = (
    'printf "%s\\n" "$(basename "$0") $*" >>"$SANDBOX/calls"; [ ! -e "$SANDBOX/fails-$(basename "$0")" ] || exit 7\n'
)
_STAND_INS = {
    "apt-get": "echo apt prints something\n",
    "docker": '[ "$1" != inspect ] || cat "$SANDBOX/agent"\n',
    "curl": 'exec "$REAL_CURL" "$@"\n',
    "pip": "",
    "sleep": "exec /bin/sleep 0.05\n",
    "journalctl": "echo the journal of xprofiler\n",
    "systemd-run": """
while [ "$1" != -- ]; do case "$1" in --setenv=*) export "${1#--setenv=}";; esac; shift; done; shift
"$@" >"$SANDBOX/xprof.log" 2>&1 3>&- & echo $! >"$SANDBOX/xprof.pid"
""",
}
_PYTHON = r"""
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin" && printf '#!/bin/sh\nexec "%s" "$@"\n' "$VIEWER_PYTHON" >"$3/bin/python" &&
    chmod +x "$3/bin/python" && ln -sf "$SANDBOX/bin/pip" "$3/bin/pip"
else exec "$REAL_PYTHON" "$@"; fi
"""


class ProxyServer(http.server.ThreadingHTTPServer):
    """The proxy of a region: issues an id to a client that proves to be a VM."""

    def __init__(self) -> None:
        self.registered: list[dict[str, str]] = []
        self.is_broken = False
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        proxy = self.server
        assert isinstance(proxy, ProxyServer)
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        proxy.registered.append(dict(self.headers))
        self.send_response(403 if proxy.is_broken or self.path != "/request-endpoint" else 200)
        body = b'{"backendID": "4f1e-backend", "hostname": "4f1e-backend-dot-us-central1.example"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class VmMetadataServer(MetadataServer):
    """A machine's metadata server that also proves the identity of the machine."""

    def handle(self, request: Request) -> Response:
        if request.path.endswith("/identity"):
            audience = request.query.get("audience", "")
            return Response(200, f"identity-for {audience}".encode(), {"Metadata-Flavor": "Google"})
        return super().handle(request)


class _RecordingStorage(CloudStorageServer):
    """A Cloud Storage that stores all statuses, not only the last."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        super().__init__([BUCKET, _CONFIGURATIONS])

    def handle(self, request: Request) -> Response:
        if "startup_output.json" in request.query.get("name", ""):
            self.statuses.append(json.loads(request.body))
        return super().handle(request)


class PlayedVm:
    """The VM, its metadata server, its bucket and the proxy; a context manager."""

    def __init__(
        self, folder: Path, log_directory: str = f"gs://{BUCKET}/run", *, python: str = sys.executable
    ) -> None:
        self.folder = folder
        self.storage = _RecordingStorage()
        self.proxy = ProxyServer()
        self.metadata = VmMetadataServer(
            zone="us-central1-a",
            attributes={"xprofiler_log_directory": log_directory, "tensorboard-plugin-profile": "2.24.2"},
        )
        regions = {"us-central1": [self.proxy.url]}
        configuration = {"agent-docker-containers": {"latest": {"proxy-urls": regions}}}
        self.storage.write(_CONFIGURATIONS, "proxy-agent-config.json", json.dumps(configuration).encode())
        self.key = "/".join([*log_directory.removeprefix("gs://").split("/")[1:], "test-vm", "startup_output.json"])
        self._python = python
        self._write_stand_ins()

    def __enter__(self) -> PlayedVm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_xprof()
        self.proxy.shutdown()
        self.proxy.server_close()
        self.metadata.close()
        self.storage.close()

    def environment(self, port: int) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SANDBOX": str(self.folder),
            "REAL_CURL": shutil.which("curl") or "curl",
            "REAL_PYTHON": shutil.which("python3") or sys.executable,
            "VIEWER_PYTHON": self._python,
            "XPROFILER_HOME": str(self.folder / "opt"),
            "XPROFILER_PORT": str(port),
            "STORAGE_EMULATOR_HOST": self.storage.url,
            # Otherwise gcsfs first sends a request over gRPC, which no setting redirects.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            **self.metadata.environment(),
        }

    def start(self, port: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(STARTUP_SCRIPT)],
            env=self.environment(port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def boot(self, port: int) -> subprocess.CompletedProcess[str]:
        """Run the startup script to its end."""
        process = self.start(port)
        output, _ = process.communicate(timeout=100)
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def break_program(self, name: str) -> None:
        (self.folder / f"fails-{name}").touch()

    def calls(self) -> list[str]:
        """Return the calls of the stand-ins."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def status(self) -> dict[str, Any]:
        """Return the status in the log directory."""
        status: dict[str, Any] = json.loads(self.storage.read(BUCKET, self.key))
        return status

    def states(self) -> list[str]:
        """Return all reported states, in order."""
        return [status["state"] for status in self.storage.statuses]

    def links(self) -> list[str]:
        """Return the proxy's ids of all states that were ready, in order."""
        return [status["tb_backend_id"] for status in self.storage.statuses if status["state"] == "ready"]

    def stop_xprof(self) -> None:
        path = self.folder / "xprof.pid"
        if path.exists():
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
            path.unlink()

    def _write_stand_ins(self) -> None:
        (self.folder / "bin").mkdir()
        (self.folder / "agent").write_text("true 0\n")
        for name, body in {**_STAND_INS, "python3": _PYTHON}.items():
            path = self.folder / "bin" / name
            path.write_text(f"#!/bin/sh\n{'' if name == 'python3' else _RECORD}{body}")
            path.chmod(0o755)
