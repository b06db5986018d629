"""The loopback token endpoint, asked by the real google.auth."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.oauth2 import service_account
from ml_diagnostics_testing.faults import Skew, Status
from ml_diagnostics_testing.oauth import OAuthServer

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def refreshed(server: Any, scopes: Any = (SCOPE,), **changes: Any) -> Any:
    credentials = service_account.Credentials.from_service_account_info({**server.key(), **changes}, scopes=scopes)
    credentials.refresh(Request())
    return credentials


def test_a_service_account_gets_a_token_for_the_scopes_that_it_asks_for(oauth_server: OAuthServer) -> None:
    credentials = refreshed(oauth_server, scopes=[SCOPE, "openid"])
    assert credentials.token in oauth_server.tokens
    assert oauth_server.scopes == [[SCOPE, "openid"]]
    assert credentials.valid
    assert refreshed(oauth_server).token != credentials.token


def test_no_token_without_a_scope(oauth_server: OAuthServer) -> None:
    with pytest.raises(RefreshError, match="invalid_scope"):
        refreshed(oauth_server, scopes=None)
    assert not oauth_server.tokens


def test_no_token_for_another_account_or_out_of_date(oauth_server: OAuthServer) -> None:
    with pytest.raises(RefreshError, match="account not found"):
        refreshed(oauth_server, client_email="mallory@test-project.iam.gserviceaccount.com")
    oauth_server.faults.always(Skew(7200))
    with pytest.raises(RefreshError, match="short-lived"):
        refreshed(oauth_server)


def test_nonsense_is_refused_as_by_google(oauth_server: OAuthServer) -> None:
    ask = Request()
    for body, error in (
        (b"", "unsupported_grant_type"),
        (b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=x", "invalid_grant"),
        (b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=a.W10.c", "invalid_grant"),
    ):
        answer = ask(oauth_server.token_url, method="POST", body=body)
        assert (answer.status, json.loads(answer.data)["error"]) == (400, error)
    assert ask(oauth_server.url, method="GET").status == 404


def test_faults_hit_it_as_any_server(oauth_server: OAuthServer) -> None:
    oauth_server.faults.script([Status(400)], on="token")
    with pytest.raises(RefreshError):
        refreshed(oauth_server)
    assert refreshed(oauth_server).valid


def test_the_key_is_a_file_for_its_owner_alone(oauth_server: OAuthServer, tmp_path: Path) -> None:
    file = oauth_server.write_key(tmp_path / "key.json")
    assert file.stat().st_mode & 0o777 == 0o600
    credentials = service_account.Credentials.from_service_account_file(str(file), scopes=[SCOPE])
    credentials.refresh(Request())
    assert credentials.expiry.timestamp() > time.time() - 86400
