"""PyTorch/XLA is profiled through torch_xla.debug.profiler's public functions.

torch_xla itself cannot be installed beside the rest (its torch alone is gigabytes). A stand-in of that module keeps to
its signatures and rules, and writes a real xplane with the profiler that both frameworks share.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from google_cloud_mldiagnostics._profiling.engines import XlaEngine, engine_for
from google_cloud_mldiagnostics._system_configs import collect_software
from google_cloud_mldiagnostics.core.xprof import Xprof, start_on_demand_xprof, stop_on_demand_xprof
from google_cloud_mldiagnostics.mlrun_types import Framework

from ..waiting import wait_until
from .profiled_runs import profiled_run, reported_processes, reported_sessions, xplanes

pytest.importorskip("jax")

PROFILER = '''
"""start_trace(log_dir), stop_trace() and start_server(port, only_on_master=True), as torch_xla has them."""
try:
    from jax._src.lib import _profiler
except ImportError:  # JAX 0.6.0.
    from jax._src.lib import xla_client
    _profiler = xla_client.profiler

session, folder, servers = None, None, []

def start_trace(log_dir):
    global session, folder
    if session is not None:
        raise RuntimeError("Only one profile may be run at a time.")
    session, folder = _profiler.ProfilerSession(), log_dir

def stop_trace():
    global session
    if session is None:
        raise RuntimeError("No profile started")
    session.export(session.stop(), folder)
    session = None

class ProfilerServer:
    def __del__(self):
        servers.remove(self.port)

def start_server(port, only_on_master=True):
    assert only_on_master is False
    server = ProfilerServer()
    server.port = port
    servers.append(port)
    return server
'''


@pytest.fixture
def torch_xla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "torch_xla" / "debug"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "profiler.py").write_text(textwrap.dedent(PROFILER))
    monkeypatch.syspath_prepend(tmp_path)
    yield package / "profiler.py"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_xla"]:
        del sys.modules[name]


def test_a_run_of_pytorch_is_profiled_by_torch_xla(torch_xla: Path) -> None:
    with profiled_run("run-1", framework=Framework.PYTORCH) as active:
        with Xprof(session_id="torch"):
            sum(range(1000))
        assert sys.modules["torch_xla.debug.profiler"].session is None
        assert xplanes(active.folder / "profiles") == ["plugins/profile/torch/host-a.xplane.pb"]
        assert reported_sessions("run-1") == [("torch", "ACTIVE"), ("torch", "SUCCEEDED")]


def test_on_demand_its_server_runs_on_every_process_until_it_is_stopped(torch_xla: Path) -> None:
    with profiled_run("run-1", framework=Framework.PYTORCH):
        start_on_demand_xprof(0)
        import torch_xla  # type: ignore[no-redef]  # noqa: F401  # The server waits for this.

        (process,) = wait_until(lambda: reported_processes("run-1"))
        profiler = sys.modules["torch_xla.debug.profiler"]
        assert profiler.servers == [process["profiler_port"]]
        stop_on_demand_xprof()
        assert profiler.servers == []


def test_a_torch_xla_without_start_trace_is_logged_and_costs_a_profile(
    torch_xla: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    torch_xla.write_text("def start_server(port, only_on_master=True): ...")
    with profiled_run("run-1", framework=Framework.PYTORCH):
        with Xprof(session_id="old"):
            pass
        assert "install a newer one" in caplog.text
        assert reported_sessions("run-1") == [("old", "FAILED")]


def test_a_missing_torch_xla_is_logged_and_costs_a_profile(
    in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    with profiled_run("run-1", framework=Framework.PYTORCH), Xprof():
        pass
    assert "torch_xla, which cannot be imported" in caplog.text


@pytest.mark.parametrize(("device", "expected"), [("TPU", True), ("CUDA", True), ("CPU", False), ("", False)])
def test_pjrt_device_decides_whether_a_device_is_expected(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: bool
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", device)
    assert XlaEngine().has_accelerator() is expected


def test_a_program_with_only_torch_xla_needs_no_engine_argument(
    torch_xla: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    import torch_xla  # type: ignore[no-redef]  # noqa: F401

    assert isinstance(engine_for(Framework.JAX), XlaEngine)
    assert collect_software(environ={})["framework"] == "PYTORCH"
