"""Project and account: the order of the search, which takes at most a second."""

import _thread
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import AnonymousCredentials
from ml_diagnostics_common.credentials import find_cloud, instance_metadata, known_project
from ml_diagnostics_common.exceptions import CredentialsError
from ml_diagnostics_testing.faults import Status
from ml_diagnostics_testing.metadata import MetadataServer

from ..waiting import wait_until

ANONYMOUS = {"CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true"}


@pytest.fixture(scope="module")
def key() -> Any:
    """A service account's key as Google hands it out, with a private key that opens nothing."""
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "project-of-key",
        "private_key_id": "1",
        "private_key": private_key.decode(),
        "client_email": "robot@project-of-key.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }


@pytest.fixture
def nowhere(tmp_path: Path) -> Any:
    """An environment in which there is no cloud: an empty home, and no metadata server."""
    return {"HOME": str(tmp_path), "NO_GCE_CHECK": "true"}


@pytest.fixture
def metadata_server() -> Iterator[Any]:
    with MetadataServer(project="project-of-machine") as server:
        yield server


def configure_gcloud(folder: Any, project: Any, name: str = "default", active: Any = None) -> None:
    (folder / "configurations").mkdir(parents=True, exist_ok=True)
    (folder / "configurations" / f"config_{name}").write_text(f"[core]\naccount = a@b.c\nproject = {project}\n")
    if active:
        (folder / "active_config").write_text(active)


# --- The project --------------------------------------------------------------------------------------


def test_the_project_is_searched_for_in_order(tmp_path: Path, key: Any, metadata_server: MetadataServer) -> None:
    key_file = tmp_path / "key.json"
    key_file.write_text(json.dumps(key))
    configure_gcloud(tmp_path / ".config" / "gcloud", "project-of-gcloud")
    environ = {
        "HOME": str(tmp_path),
        "GOOGLE_CLOUD_PROJECT": "project-of-environment",
        "CLOUDSDK_CORE_PROJECT": "project-of-gcloud-environment",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key_file),
        **metadata_server.environment(),
    }

    def found() -> Any:
        cloud = find_cloud(environ=environ)
        assert known_project(environ) == cloud.project
        return cloud.project, cloud.project_source

    cloud = find_cloud("project-of-argument", environ=environ)
    assert (cloud.project, cloud.project_source) == ("project-of-argument", "the caller")
    assert found() == ("project-of-environment", "GOOGLE_CLOUD_PROJECT")
    del environ["GOOGLE_CLOUD_PROJECT"]
    assert found() == ("project-of-gcloud-environment", "CLOUDSDK_CORE_PROJECT")
    del environ["CLOUDSDK_CORE_PROJECT"]
    assert found() == ("project-of-key", str(key_file))
    del environ["GOOGLE_APPLICATION_CREDENTIALS"]
    assert found()[0] == "project-of-gcloud"
    environ["CLOUDSDK_CONFIG"] = str(tmp_path / "nothing")
    assert found() == ("project-of-machine", f"the metadata server at {metadata_server.host}")


def test_gclouds_active_configuration_names_the_project(tmp_path: Path, nowhere: Any) -> None:
    folder = tmp_path / "elsewhere"
    configure_gcloud(folder, "one%percent", name="default")
    configure_gcloud(folder, "two", name="work", active="work\n")
    environ = {**nowhere, **ANONYMOUS, "CLOUDSDK_CONFIG": str(folder)}
    assert find_cloud(environ=environ).project == "two"
    assert find_cloud(environ={**environ, "CLOUDSDK_ACTIVE_CONFIG_NAME": "default"}).project == "one%percent"


@pytest.mark.parametrize("content", [b"not an ini file", b"\xff\xfe", b"[core]\n[core]\n", b"[other]\nproject = p\n"])
def test_a_broken_configuration_of_gcloud_is_passed_over(tmp_path: Path, nowhere: Any, content: Any) -> None:
    configure_gcloud(tmp_path, "p")
    (tmp_path / "configurations" / "config_default").write_bytes(content)
    with pytest.raises(CredentialsError, match="config_default names none"):
        find_cloud(environ={**nowhere, **ANONYMOUS, "CLOUDSDK_CONFIG": str(tmp_path)})


# --- The credentials ----------------------------------------------------------------------------------


def test_credentials_from_a_pipe_are_left_for_google_auth(tmp_path: Path, nowhere: Any) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        os.write(descriptor, b'{"project_id": "of-the-key"}')
        assert known_project({**nowhere, "GOOGLE_APPLICATION_CREDENTIALS": str(pipe)}) == ""
        assert os.read(descriptor, 100) == b'{"project_id": "of-the-key"}'
    finally:
        os.close(descriptor)


def test_no_project_is_known_where_no_credentials_are(tmp_path: Path, nowhere: Any) -> None:
    configure_gcloud(tmp_path / ".config" / "gcloud", "of-gcloud")
    assert known_project(nowhere) == ""
    assert known_project({**nowhere, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1"}) == "of-gcloud"


def test_credentials_of_the_caller_are_taken_as_they_are(nowhere: Any) -> None:
    mine = AnonymousCredentials()
    assert find_cloud("p", mine, environ={**nowhere, "GOOGLE_APPLICATION_CREDENTIALS": "/broken"}).credentials is mine


def test_credentials_can_be_switched_off(nowhere: Any) -> None:
    cloud = find_cloud("p", environ={**nowhere, **ANONYMOUS, "GOOGLE_APPLICATION_CREDENTIALS": "/broken"})
    assert isinstance(cloud.credentials, AnonymousCredentials)
    assert cloud.principal == "anonymous"


def headers_of(credentials: Any) -> Any:
    headers: dict[str, str] = {}
    credentials.before_request(None, "GET", "https://logging.googleapis.com/", headers)
    return headers["authorization"]


def test_an_access_token_is_read_from_its_file_and_again_when_it_changes(tmp_path: Path, nowhere: Any) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    cloud = find_cloud("p", environ={**nowhere, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token_file)})
    assert headers_of(cloud.credentials) == "Bearer first"
    assert str(token_file) in (cloud.principal or "")
    token_file.write_text("second, and longer".replace(", ", "-").replace(" ", "-"))
    assert headers_of(cloud.credentials) == "Bearer second-and-longer"
    token_file.unlink()
    assert headers_of(cloud.credentials) == "Bearer second-and-longer"


@pytest.mark.parametrize("content", [None, "", "two words", b"\xff\xfe"])
def test_a_token_file_without_a_token_is_an_error_that_names_it(tmp_path: Path, nowhere: Any, content: Any) -> None:
    token_file = tmp_path / "token"
    if content is not None:
        token_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CredentialsError, match=f"CLOUDSDK_AUTH_ACCESS_TOKEN_FILE.*{token_file}.*write a token there"):
        find_cloud("p", environ={**nowhere, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token_file)})


def test_a_key_file_wins_over_application_default_credentials_and_those_over_the_machine(
    tmp_path: Path, key: Any, metadata_server: MetadataServer
) -> None:
    environ = {"CLOUDSDK_CONFIG": str(tmp_path), **metadata_server.environment()}
    assert find_cloud(environ=environ).principal == metadata_server.email
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user))
    assert find_cloud(environ=environ).credentials.refresh_token == "r"
    (tmp_path / "key.json").write_text(json.dumps(key))
    cloud = find_cloud(environ={**environ, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json")})
    assert cloud.principal == key["client_email"]
    assert "https://www.googleapis.com/auth/cloud-platform" in cloud.credentials.scopes


def test_the_environment_names_the_quota_project_of_key_file_and_machine_alike(
    tmp_path: Path, metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "paying-project")
    environ = {"CLOUDSDK_CONFIG": str(tmp_path), **metadata_server.environment()}
    assert find_cloud(environ=environ).credentials.quota_project_id == "paying-project"
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user))
    assert find_cloud(environ=environ).credentials.quota_project_id == "paying-project"


def test_the_login_of_gcloud_itself_is_not_used(tmp_path: Path, nowhere: Any) -> None:
    (tmp_path / "credentials.db").write_bytes(b"a login")
    (tmp_path / "access_tokens.db").write_bytes(b"a token")
    configure_gcloud(tmp_path, "p")
    with pytest.raises(CredentialsError, match="no Google Cloud credentials were found"):
        find_cloud(environ={**nowhere, "CLOUDSDK_CONFIG": str(tmp_path)})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "does not exist"),
        ("not json", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is JSON but no key"),
        ('{"type": "service_account"}', "google.auth does not accept"),
        ('{"type": "unheard-of"}', "google.auth does not accept"),
        ('{"type": "service_account", "client_email": "a@b", "token_uri": "u", "private_key": "x"}', "does not accept"),
    ],
)
def test_a_broken_key_file_is_an_error_with_a_remedy(tmp_path: Path, nowhere: Any, content: Any, what: Any) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CredentialsError, match=what) as caught:
        find_cloud("p", environ={**nowhere, "GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert str(path) in str(caught.value)
    assert "point GOOGLE_APPLICATION_CREDENTIALS at a key" in str(caught.value)


def test_a_key_file_that_is_a_folder_is_an_error_with_that_reason(tmp_path: Path, nowhere: Any) -> None:
    with pytest.raises(CredentialsError, match="cannot be read"):
        find_cloud("p", environ={**nowhere, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)})


def test_if_nothing_is_found_the_error_names_what_is_missing_and_what_was_searched(nowhere: Any) -> None:
    with pytest.raises(CredentialsError) as caught:
        find_cloud(environ=nowhere)
    message = str(caught.value)
    for part in (
        "no Google Cloud credentials were found",
        "GOOGLE_APPLICATION_CREDENTIALS is not set",
        "application_default_credentials.json does not exist",
        "the metadata server at 169.254.169.254",
        "no Google Cloud project was found",
        "GOOGLE_CLOUD_PROJECT is not set",
        "gcloud auth application-default login",
        "ML_DIAGNOSTICS_BACKEND=local",
    ):
        assert part in message


# --- The metadata server ------------------------------------------------------------------------------


def test_the_machine_provides_its_project_zone_account_and_cluster() -> None:
    with MetadataServer(project="p", zone="us-west1-a", attributes={"cluster-name": "c"}) as server:
        found = instance_metadata.instance_metadata(server.environment())
        assert found == instance_metadata.InstanceMetadata("p", "us-west1-a", server.email, "c")  # type: ignore[arg-type]


def test_the_metadata_server_is_asked_once_a_process(metadata_server: MetadataServer, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), **metadata_server.environment()}
    threads = [threading.Thread(target=find_cloud, kwargs={"environ": environ}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    find_cloud(environ=environ)
    assert sum(record.path.endswith("project-id") for record in metadata_server.requests) == 1


@pytest.mark.timing
def test_a_black_hole_costs_one_second_in_all(tmp_path: Path) -> None:
    # Connections are taken by the kernel and never answered.
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hole:
        environ = {"HOME": str(tmp_path), "GCE_METADATA_HOST": f"127.0.0.1:{hole.getsockname()[1]}"}
        start = time.monotonic()
        for _ in range(3):
            with pytest.raises(CredentialsError, match="did not answer"):
                find_cloud(environ=environ)
        assert 0.9 < time.monotonic() - start < 1.6


@pytest.mark.timing
def test_a_refused_connection_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_metadata, "on_google_hardware", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host = f"127.0.0.1:{closed.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(CredentialsError):
        find_cloud(environ={"HOME": str(tmp_path), "GCE_METADATA_HOST": host})
    assert time.monotonic() - start < 0.5


def test_a_captive_portal_is_not_taken_for_a_metadata_server() -> None:
    from ml_diagnostics_testing.http_server import LoopbackServer, Response

    class Portal(LoopbackServer):
        def handle(self, request: Any) -> Any:
            return Response(200, b"<html>please log in</html>")

    with Portal() as portal:
        assert instance_metadata.instance_metadata({"GCE_METADATA_HOST": f"127.0.0.1:{portal.port}"}) is None


def test_later_calls_return_a_late_answer(metadata_server: MetadataServer) -> None:
    metadata_server.faults.script([Status(503)])
    environ = {**metadata_server.environment(), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert instance_metadata.instance_metadata(environ) is None  # A new pod's metadata server is not up yet.
    assert wait_until(lambda: instance_metadata.instance_metadata(environ)).project == "project-of-machine"


def test_where_no_thread_can_start_nothing_is_found_and_nothing_raised(
    metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_threads(function: Any, arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_more_threads)
    assert instance_metadata.instance_metadata(metadata_server.environment()) is None


def test_no_gce_check_forbids_to_ask(metadata_server: MetadataServer) -> None:
    environ = {**metadata_server.environment(), "NO_GCE_CHECK": "true"}
    assert instance_metadata.instance_metadata(environ) is None
    assert metadata_server.requests == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_asks_for_itself(metadata_server: MetadataServer) -> None:
    environ = metadata_server.environment()
    assert instance_metadata.instance_metadata(environ) is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if instance_metadata.instance_metadata(environ) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_real_google_auth_gets_its_tokens_from_the_machine(metadata_server: MetadataServer, tmp_path: Path) -> None:
    code = """
import google.auth.transport.requests
from ml_diagnostics_common.credentials import find_cloud
cloud = find_cloud()
cloud.credentials.refresh(google.auth.transport.requests.Request())
print(cloud.project, cloud.principal, cloud.credentials.token)
"""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **metadata_server.environment()}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["project-of-machine", metadata_server.email, metadata_server.token]
