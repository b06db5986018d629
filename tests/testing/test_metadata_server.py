"""The loopback metadata server works with the real google.auth."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_testing.faults import Hang, Status
from ml_diagnostics_testing.metadata import MetadataServer

GOOGLE = {"Metadata-Flavor": "Google"}


@pytest.fixture
def server() -> Iterator[Any]:
    with MetadataServer(project="p", zone="us-west4-a", attributes={"cluster-name": "c"}) as server:
        yield server


def ask(server: Any, path: Any, headers: Any = GOOGLE, timeout: float = 10) -> Any:
    request = urllib.request.Request(f"{server.url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode(), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("project/project-id", "p"),
        ("project/numeric-project-id", "123456789012"),
        ("instance/zone", "projects/123456789012/zones/us-west4-a"),
        ("instance/attributes/cluster-name", "c"),
        ("instance/attributes/", "cluster-name\n"),
        ("instance/service-accounts/default/email", "tester@test-project.iam.gserviceaccount.com"),
        ("instance/service-accounts/default/scopes", "https://www.googleapis.com/auth/cloud-platform\n"),
        ("universe/universe-domain", "googleapis.com"),
    ],
)
def test_a_question_is_answered_as_text(server: Any, path: str, answer: str) -> None:
    status, body, headers = ask(server, f"/computeMetadata/v1/{path}")
    assert (status, body, headers["Metadata-Flavor"]) == (200, answer, "Google")


def test_a_folder_is_a_list_of_names_or_json(server: Any) -> None:
    assert ask(server, "/computeMetadata/v1/")[1] == "instance/\nproject/\nuniverse/\n"
    _, body, headers = ask(server, "/computeMetadata/v1/?recursive=true")
    tree = json.loads(body)
    assert headers["Content-Type"] == "application/json"
    assert tree["project"]["projectId"] == "p"
    assert tree["instance"]["attributes"] == {"cluster-name": "c"}
    account = tree["instance"]["serviceAccounts"]["default"]
    assert account == {
        "aliases": ["default"],
        "email": server.email,
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }


def test_a_token_is_json_and_can_be_changed(server: Any) -> None:
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    assert json.loads(ask(server, path)[1]) == {
        "access_token": "token-of-the-metadata-server",
        "expires_in": 3600,
        "token_type": "Bearer",
    }
    server.token = "another"
    assert json.loads(ask(server, path)[1])["access_token"] == "another"


def test_the_flavour_is_demanded(server: Any) -> None:
    assert ask(server, "/computeMetadata/v1/project/project-id", headers={})[0] == 403
    assert ask(server, "/", headers={})[2]["Metadata-Flavor"] == "Google"


def test_what_is_not_there_is_a_404(server: Any) -> None:
    for path in ("/computeMetadata/v1/instance/attributes/none", "/computeMetadata/v1/instance/zone/x", "/other"):
        assert ask(server, path)[0] == 404


def test_a_machine_may_have_no_service_account() -> None:
    with MetadataServer(email=None) as server:
        assert ask(server, "/computeMetadata/v1/instance/service-accounts/default/email")[0] == 404


def test_faults_may_apply_to_tokens_only(server: Any) -> None:
    server.faults.always(Status(503), on="token")
    assert ask(server, "/computeMetadata/v1/instance/service-accounts/default/token")[0] == 503
    assert ask(server, "/computeMetadata/v1/project/project-id")[0] == 200
    server.faults.always(Hang(), on="metadata")
    with pytest.raises(TimeoutError):
        ask(server, "/computeMetadata/v1/project/project-id", timeout=0.1)


def test_the_real_google_auth_takes_it_for_the_machines_own(server: Any, tmp_path: Path) -> None:
    code = """
import google.auth, google.auth.transport.requests
credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(google.auth.transport.requests.Request())
print(project, credentials.service_account_email, credentials.token, not credentials.expired)
"""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server.environment()}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["p", server.email, server.token, "True"]
