"""Every test runs on its own: its own folder, no cloud, and errors of recording calls are raised.

Besides those of `ml_diagnostics_testing`, these fixtures start the loopback servers that only our own tests use.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from ml_diagnostics_common import environment, file_systems, guard
from ml_diagnostics_common.credentials import instance_metadata
from ml_diagnostics_testing.certificates import CertificateAuthority

from .console.web.browser import CHROMIUM
from .waiting import end_children

if TYPE_CHECKING:
    from .kube_api import KubeApi
    from .loopback.compute import ComputeServer
    from .loopback.control_plane import ControlPlaneServer
    from .loopback.kubernetes import KubernetesServer

_TESTS = Path(__file__).parent
_PREFIXES = ("ML_DIAGNOSTICS_", "CLOUDSDK_", "GOOGLE_", "GCE_METADATA_", "STORAGE_EMULATOR_", "NO_GCE_")

# A test asserts no absolute time: one example may take long on a machine with other work.
# A change is judged by the same examples in each run; `nox -s slow` looks for new ones.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("slow", deadline=None, derandomize=False)
hypothesis.settings.load_profile("tests")

# A shell's background jobs ignore Ctrl-C, and those of nohup SIGHUP: so would each program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _measure_threads_of_workers() -> None:
    """Let coverage measure workers: it traces threads of `threading` only, and they start theirs by `_thread`."""
    trace, start = threading.gettrace(), _thread.start_new_thread
    if trace is None:
        return

    def start_traced(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        def run(*given: Any) -> None:
            sys.settrace(trace)
            function(*given)

        return start(run, arguments)

    _thread.start_new_thread = start_traced  # type: ignore[assignment]


_measure_threads_of_workers()


def pytest_configure(config: pytest.Config) -> None:
    """Let each worker collect another part of the tests first; use all examples of Hypothesis where they are selected.

    In a fresh clone the first one to import a module compiles it, for all. In the same order, all would compile each.
    """
    if "hypothesis" in config.option.markexpr:
        hypothesis.settings.load_profile("slow")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or [Path(each).resolve() for each in config.args] != [_TESTS]:
        return
    found = sorted(path for path in _TESTS.iterdir() if path.is_dir() or path.match("test_*.py"))
    parts = [str(path) for path in found if path.name != "__pycache__"]
    start = int(worker["workerid"].removeprefix("gw")) * len(parts) // worker["workercount"]
    config.args = [*parts[start:], *parts[:start]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without collections of garbage, and leave them and all modules out of those that follow."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


_LONGEST = "test_docs_examples.py"
"""The file that is run first: it takes minutes of one process, for which the others would wait at the end."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Run tests of timing once more if they fail; every other test fails at once. All workers have the same order."""
    yield
    items.sort(key=lambda item: (item.path.name != _LONGEST, item.path))
    for item in items:
        if item.get_closest_marker("browser") and CHROMIUM is None:
            item.add_marker(pytest.mark.skip("Chromium is not installed"))
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("timing"):
                item.add_marker(pytest.mark.flaky(reruns=1))


_numbers = itertools.count()


@pytest.fixture(scope="session")
def _records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for those of all tests: pytest searches all of its own for the number of the next."""
    return tmp_path_factory.mktemp("ml-diagnostics")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, _records: Path) -> None:
    for name in list(os.environ):
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)
    folder = _records / str(next(_numbers))
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("ML_DIAGNOSTICS_DIR", str(folder))
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "local")
    monkeypatch.setenv("ML_DIAGNOSTICS_RAISE", "1")
    monkeypatch.setenv("GOGC", "400")  # A sixth of the CPU of kubectl, which is started some 1,000 times, is garbage.
    guard.LOSSES._counts.clear()
    guard._logged_in_this_process.clear()
    environment._announced.clear()
    file_systems._announced.clear()
    instance_metadata._probes_of_this_process.clear()  # By port, and two servers may have the same one in turns.


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """A failed test costs no other: what it leaves behind would be an error of the test that collects the garbage."""
    yield
    end_children()


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    """A run that a test leaves active is an error of this test, not of the next one in the process."""
    yield
    state = sys.modules.get("google_cloud_mldiagnostics._run_state.active_run")
    active = state.active_run() if state else None
    if active:
        active.run.finish()
        pytest.fail(f"the test left the run {active.run.name} active")


@pytest.fixture(scope="session")
def session_authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def certificate_authority(
    session_authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> CertificateAuthority:
    """Return the authority of servers with TLS, trusted by this process; gRPC reads the first test's file only."""
    for name, value in session_authority.environment().items():
        monkeypatch.setenv(name, value)
    return session_authority


@pytest.fixture
def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as in production: failures of recording calls are counted and logged, not raised."""
    monkeypatch.setenv("ML_DIAGNOSTICS_RAISE", "0")


@pytest.fixture
def compute_server() -> Iterator[ComputeServer]:
    """Start Compute Engine and Cloud Storage on loopback; `.environment()` redirects clients to both."""
    from .loopback.compute import ComputeServer

    with ComputeServer() as server:
        yield server


@pytest.fixture
def control_plane_server() -> Iterator[ControlPlaneServer]:
    """Start the control plane of runs on loopback; `.environment()` redirects clients to it."""
    from .loopback.control_plane import ControlPlaneServer

    with ControlPlaneServer() as server:
        yield server


@pytest.fixture(scope="session")
def kube_api(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[KubeApi]:
    """Start a real Kubernetes API server, one for all workers, with the kinds of workloads; else skip the test."""
    from .google_cloud_mldiagnostics.kubernetes.clusters import CUSTOM_KINDS, add_kind, allow_webhook
    from .kube_api import UnavailableError, shared_server

    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "kube-api"
    try:
        with shared_server(shared) as server:
            for kind in CUSTOM_KINDS:
                add_kind(server, *kind)
            allow_webhook(server)
            yield server
    except UnavailableError as error:
        pytest.skip(f"no Kubernetes API server: {error}")


@pytest.fixture
def kubernetes_server() -> Iterator[KubernetesServer]:
    """Start a Kubernetes cluster on loopback; `.environment()` points kubectl to it."""
    from .loopback.kubernetes import KubernetesServer

    with KubernetesServer() as server:
        yield server
