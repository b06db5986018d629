"""The fixtures that users get by installing the package."""

import subprocess
import sys
from pathlib import Path

from ml_diagnostics_testing.cloud_logging import CloudLoggingServer
from ml_diagnostics_testing.cloud_monitoring import CloudMonitoringServer
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.metadata import MetadataServer
from ml_diagnostics_testing.oauth import OAuthServer


def test_each_service_is_a_fixture(
    cloud_logging_server: CloudLoggingServer,
    cloud_monitoring_server: CloudMonitoringServer,
    cloud_storage_server: CloudStorageServer,
    metadata_server: MetadataServer,
    oauth_server: OAuthServer,
) -> None:
    assert isinstance(cloud_logging_server, CloudLoggingServer)
    assert isinstance(cloud_monitoring_server, CloudMonitoringServer)
    assert isinstance(cloud_storage_server, CloudStorageServer)
    assert isinstance(metadata_server, MetadataServer)
    assert isinstance(oauth_server, OAuthServer)
    google = (cloud_logging_server, cloud_monitoring_server, cloud_storage_server)
    assert len({server.port for server in (*google, metadata_server, oauth_server)}) == 5


def test_the_environment_points_at_the_server(cloud_logging_server: CloudLoggingServer) -> None:
    assert cloud_logging_server.environment() == {
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": f"http://127.0.0.1:{cloud_logging_server.port}/",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_PROJECT": "test-project",
        "GOOGLE_CLOUD_PROJECT": "test-project",
    }


def test_the_plugin_costs_a_test_run_nothing_until_a_fixture_is_asked_for() -> None:
    script = "import sys, ml_diagnostics_testing.pytest_plugin; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {"grpc", "google.cloud.logging_v2", "google.cloud.monitoring_v3", "http.server", "requests"} & set(
        modules
    )


def test_the_readmes_test_passes_for_a_user_who_copies_it(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "packages/testing/README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]
    assert "def test_" in example
    (tmp_path / "test_readme.py").write_text(example, encoding="utf-8")
    # google.api_core warns of the oldest Python that it still runs on.
    filters = ["-W", "error", "-W", "ignore:You are using a:FutureWarning"]
    command = [sys.executable, "-m", "pytest", "-q", *filters, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
