"""Requests to Google's APIs: gcloud's settings, the account, retries, and messages of failures."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from googleapiclient import discovery_cache
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import (
    CommandError,
    NotFoundError,
    NotPermittedError,
    TimedOutError,
    exit_code_of,
)
from ml_diagnostics_common.credentials import CloudEnvironment
from ml_diagnostics_common.exceptions import DiagnosticsError
from ml_diagnostics_common.worker import in_parallel
from ml_diagnostics_testing.faults import Delay, Drip, Hang, Oversize, Reset, Status, Truncate
from ml_diagnostics_testing.http_server import Request, Response, json_response
from ml_diagnostics_testing.metadata import MetadataServer
from ml_diagnostics_testing.oauth import OAuthServer
from xprofiler import __version__
from xprofiler.gcloud import api as google_api
from xprofiler.gcloud import login
from xprofiler.gcloud.api import GoogleApi
from xprofiler.gcloud.errors import operation_error
from xprofiler.gcloud.settings import GcloudSettings
from xprofiler.serve.server import Server

from ..loopback.compute import ComputeServer
from ..waiting import wait_until
from .conftest import Run
from .typed_commands import typed
from .viewer_vms import ZONE, add_viewer
from .xspaces import tpu_host


def zone_of(api: GoogleApi, zone: str = ZONE) -> dict[str, Any]:
    return api.execute(api.compute.zones().get(project=api.project, zone=zone), f"find the zone {zone}")


# --- gcloud's settings ---------------------------------------------------------------------------------


def configured(folder: Path, text: str, name: str = "default") -> dict[str, str]:
    """Write a folder of gcloud with one configuration, and return the variable that names it."""
    (folder / "configurations").mkdir(parents=True, exist_ok=True)
    (folder / "configurations" / f"config_{name}").write_text(text)
    return {"CLOUDSDK_CONFIG": str(folder)}


def test_the_configuration_applies_if_no_variable_is_set(tmp_path: Path) -> None:
    environ = configured(
        tmp_path,
        "[core]\nproject = p1\naccount = me@example.com\n[compute]\nzone = z1\n[auth]\ndisable_credentials = True\n"
        "[api_endpoint_overrides]\ncompute = http://127.0.0.1:1/compute/v1/\n",
    )
    settings = GcloudSettings.load(environ)
    assert (settings.project, settings.zone, settings.account) == ("p1", "z1", "me@example.com")
    assert settings.endpoint("compute") == "http://127.0.0.1:1/compute/v1/"
    assert settings.endpoint("tpu") is None
    assert settings.environ["CLOUDSDK_AUTH_DISABLE_CREDENTIALS"] == "True"


def test_variables_take_precedence_over_the_configuration(tmp_path: Path) -> None:
    environ = configured(tmp_path, "[core]\nproject = p1\n[compute]\nzone = z1\n")
    settings = GcloudSettings.load({**environ, "CLOUDSDK_CORE_PROJECT": "p2", "CLOUDSDK_COMPUTE_ZONE": "z2"})
    assert (settings.project, settings.zone) == ("p2", "z2")


@pytest.mark.parametrize("by", ["file", "variable"])
def test_the_active_configuration_is_read(tmp_path: Path, by: str) -> None:
    environ = configured(tmp_path, "[core]\nproject = p1\n")
    configured(tmp_path, "[core]\nproject = p3\n", "work")
    if by == "file":
        (tmp_path / "active_config").write_text("work\n")
    else:
        environ["CLOUDSDK_ACTIVE_CONFIG_NAME"] = "work"
    assert GcloudSettings.load(environ).project == "p3"


@pytest.mark.parametrize("text", ["", "no section", "[core\nproject=p", "\udcff", "[core]\nproject = %(x)s"])
def test_an_invalid_configuration_is_ignored(tmp_path: Path, text: str) -> None:
    environ = configured(tmp_path, "")
    (tmp_path / "configurations" / "config_default").write_bytes(text.encode(errors="surrogateescape"))
    assert GcloudSettings.load(environ).project in ("", "%(x)s")


def test_the_command_follows_the_configuration(
    run: Run, compute_server: ComputeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_viewer(compute_server, "xprof-a")
    text = (
        "[core]\nproject = test-project\n[auth]\ndisable_credentials = True\n"
        f"[api_endpoint_overrides]\ncompute = {compute_server.url}/compute/v1/\n"
    )
    for name, value in configured(tmp_path, text).items():
        monkeypatch.setenv(name, value)
    assert "xprof-a" in run("list").output


# --- The account ---------------------------------------------------------------------------------------


@pytest.fixture
def unknown(cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ComputeServer:
    """A cloud that requires a token, without a login and without gcloud."""
    cloud.accepted_tokens = set()
    monkeypatch.delenv("CLOUDSDK_AUTH_DISABLE_CREDENTIALS")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return cloud


Gcloud = Callable[..., Path]


@pytest.fixture
def gcloud(tmp_path: Path) -> Gcloud:
    """Replace gcloud by a program that counts its calls."""

    def stand_in(answer: Mapping[str, Any] | None, complaint: str = "") -> Path:
        calls, program = tmp_path / "calls", tmp_path / "bin" / "gcloud"
        (tmp_path / "answer").write_text(json.dumps(answer))
        end = "exit 1" if answer is None else f"IFS= read -r line < {tmp_path}/answer; printf '%s' \"$line\""
        program.write_text(f"#!/bin/sh\necho \"$*\" >> {calls}\necho '{complaint}' >&2\n{end}\n")
        program.chmod(0o755)
        return calls

    return stand_in


def credential(token: str, expiry: str = "2099-01-01T00:00:00Z") -> dict[str, Any]:
    """Return the output of `gcloud config config-helper`."""
    return {
        "configuration": {"properties": {"core": {"account": "me@example.com"}}},
        "credential": {"access_token": token, "token_expiry": expiry},
    }


def test_application_default_credentials_are_first(
    unknown: ComputeServer,
    gcloud: Gcloud,
    oauth_server: OAuthServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run: Run,
) -> None:
    pytest.importorskip("cryptography")
    unknown.accepted_tokens = oauth_server.tokens
    calls = gcloud(credential("of-gcloud"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(oauth_server.write_key(tmp_path / "key.json")))
    add_viewer(unknown, "xprof-a")
    ended = run("list")
    assert "xprof-a" in ended.output, ended.errors
    assert not calls.exists()


def test_without_them_gclouds_login_is_used_and_requested_once(
    unknown: ComputeServer, gcloud: Gcloud, run: Run
) -> None:
    unknown.accepted_tokens = {"of-gcloud"}
    calls = gcloud(credential("of-gcloud"))
    for number in range(501):
        add_viewer(unknown, f"xprof-{number}")
    ended = run("list", "-v")
    assert ended.code == 0
    assert len(unknown.requests) == 2
    assert calls.read_text() == "config config-helper --format=json --min-expiry=5m\n"
    assert "of-gcloud" not in ended.errors


def test_gclouds_login_reads_and_writes_buckets(unknown: ComputeServer, gcloud: Gcloud) -> None:
    gcloud(credential("of-gcloud"))
    api = GoogleApi(GcloudSettings.load(), Console())
    api.storage.write("gs://test-bucket/a", b"1")
    assert unknown.storage.read("test-bucket", "a") == b"1"


def test_summaries_of_a_bucket_need_gclouds_login_and_no_project(
    unknown: ComputeServer, gcloud: Gcloud, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xprof")
    calls = gcloud(credential("of-gcloud"))
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    unknown.storage.write("test-bucket", "l/plugins/profile/s/h.xplane.pb", tpu_host())
    ended = run("summary", "gs://test-bucket/l")
    assert ended.code == 0, ended.errors
    assert "1 host, 4 cores of TPU v5p" in ended.output
    assert calls.read_text() == "config config-helper --format=json --min-expiry=5m\n"
    with Server("gs://test-bucket/l", 0, Console()) as server:
        page = urllib.request.urlopen(server.wait_until_ready() + "/summary.json", timeout=60).read()
    assert json.loads(page)["device"] == "TPU v5p"


def test_verbose_prints_requests_to_storage_and_no_secret(
    unknown: ComputeServer, gcloud: Gcloud, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reads:
        name, summary, passes_on = "list", "read", False

        def prepare_parser(self, parser: object) -> None:
            pass

        def run(self, options: object, console: Console) -> int:
            GoogleApi(GcloudSettings.load(), console).storage.write("gs://test-bucket/a", b"1" * 9_000_000)
            return 0

    gcloud(credential("a-secret"))
    monkeypatch.setattr("xprofiler.commands.list.ListCommand", Reads)
    ended = run("list", "--verbose")
    assert ended.code == 0, ended.errors
    assert '"POST /upload/storage/v1/b/test-bucket/o?' in ended.errors
    assert "a-secret" not in ended.errors
    assert not re.search(r"upload_id=(?!\.\.\.)", ended.errors)
    assert run("list").errors == ""


@pytest.mark.parametrize(("status", "path", "code"), [(403, "gs://test-bucket/a", 4), (None, "gs://no/a", 3)])
def test_a_refusal_of_storage_has_the_same_exit_codes(
    cloud: ComputeServer, api: GoogleApi, status: int | None, path: str, code: int
) -> None:
    if status:
        cloud.storage.faults.always(Status(status))
    with pytest.raises(DiagnosticsError) as raised:
        api.storage.read(path)
    assert exit_code_of(raised.value) == code


def test_an_expired_token_is_requested_again(unknown: ComputeServer, gcloud: Gcloud) -> None:
    unknown.accepted_tokens = {"first", "second"}
    calls = gcloud(credential("first", "2000-01-01T00:00:00Z"))
    api = GoogleApi(GcloudSettings.load(), Console())
    zone_of(api)
    gcloud(credential("second"))
    zone_of(api)
    unknown.accepted_tokens = {"second"}
    before = len(calls.read_text().splitlines())
    zone_of(api)
    assert len(calls.read_text().splitlines()) == before


def test_the_account_of_gcloud_is_named_in_refusals(unknown: ComputeServer, gcloud: Gcloud, run: Run) -> None:
    unknown.accepted_tokens = {"t"}
    unknown.is_permitted = False
    gcloud(credential("t"))
    assert "grant me@example.com the role" in run("list").errors


def test_the_machines_own_account_is_last(
    unknown: ComputeServer, metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch, gcloud: Gcloud
) -> None:
    monkeypatch.delenv("NO_GCE_CHECK")
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    gcloud(None, "ERROR: You do not currently have an active account selected.")
    unknown.accepted_tokens = None
    add_viewer(unknown, "xprof-a")
    ended = typed("list")  # In a process of its own: google.auth probes once for the metadata server.
    assert "xprof-a" in ended.output, ended.errors
    assert metadata_server.requests


@pytest.mark.parametrize("has_gcloud", [True, False])
def test_without_any_login_one_message_has_a_remedy(
    unknown: ComputeServer, gcloud: Gcloud, run: Run, has_gcloud: bool
) -> None:
    if has_gcloud:
        gcloud(None, "ERROR: (gcloud.config.config-helper) You do not currently have an active account selected.")
    ended = run("list")
    why = "You do not currently have an active account selected." if has_gcloud else "gcloud is not installed"
    assert ended.code == 4
    assert len(ended.errors.splitlines()) == 1
    assert why in ended.errors
    assert ended.errors.endswith("run 'gcloud auth login', or 'gcloud auth application-default login'\n")


@pytest.mark.parametrize("answer", [{}, {"credential": {}}, [], "text", credential("t", "tomorrow")], ids=repr)
def test_the_output_of_gcloud_may_be_anything(unknown: ComputeServer, gcloud: Gcloud, run: Run, answer: Any) -> None:
    gcloud(answer)
    ended = run("list")
    assert ended.code == 4
    assert "gcloud's answer holds no token" in ended.errors


def test_a_broken_key_is_not_passed_over_for_another_login(
    unknown: ComputeServer, gcloud: Gcloud, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = gcloud(credential("t"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    ended = run("list")
    assert ended.code == 4
    assert "missing.json, which does not exist" in ended.errors
    assert not calls.exists()


def test_gclouds_login_without_a_project_is_not_exchanged_for_the_machines(
    unknown: ComputeServer,
    metadata_server: MetadataServer,
    monkeypatch: pytest.MonkeyPatch,
    gcloud: Gcloud,
    run: Run,
) -> None:
    gcloud(credential("t"))
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT")
    for name, value in metadata_server.environment().items():
        monkeypatch.setenv(name, value)
    ended = run("list")
    assert ended.code == 2
    assert "no Google Cloud project is set" in ended.errors


def test_the_project_of_a_key_suffices(
    unknown: ComputeServer, oauth_server: OAuthServer, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    unknown.accepted_tokens = oauth_server.tokens
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(oauth_server.write_key(tmp_path / "key.json")))
    assert run("list").code == 0


# --- Retries and timeouts ------------------------------------------------------------------------------


def test_requests_name_our_package(cloud: ComputeServer, api: GoogleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = []
    handle = cloud.handle
    monkeypatch.setattr(
        cloud, "handle", lambda request: agents.append(request.headers["User-Agent"]) or handle(request)
    )
    zone_of(api)
    assert agents == [f"xprofiler/{__version__} (gzip)"]


def test_a_permanent_failure_is_given_up(cloud: ComputeServer, api: GoogleApi) -> None:
    cloud.faults.always(Status(503))
    with pytest.raises(CommandError, match=r"a scripted fault \(HTTP 503\); try again"):
        zone_of(api)
    assert 2 < len(cloud.requests) < 10


def test_waits_grow_and_respect_retry_after(cloud: ComputeServer) -> None:
    waits: list[float] = []
    api = GoogleApi(GcloudSettings.load(), Console(), sleep=waits.append)
    cloud.faults.script([Status(503), Status(503), Status(429, retry_after=7)])
    zone_of(api)
    assert waits[0] < 0.3 < 7 <= waits[2]


def test_a_retry_after_beyond_the_deadline_is_given_up(cloud: ComputeServer, api: GoogleApi) -> None:
    cloud.faults.always(Status(429, retry_after=3600))
    with pytest.raises(CommandError, match="request quota"):
        zone_of(api)
    assert len(cloud.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
def test_a_refused_request_is_not_repeated(cloud: ComputeServer, api: GoogleApi, status: int) -> None:
    cloud.faults.always(Status(status))
    kinds = {
        400: CommandError,
        401: NotPermittedError,
        403: NotPermittedError,
        404: NotFoundError,
        409: CommandError,
    }
    with pytest.raises(DiagnosticsError) as raised:
        zone_of(api)
    assert type(raised.value) is kinds[status]
    assert len(cloud.requests) == 1


@pytest.mark.parametrize("reason", ["rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"])
def test_too_many_requests_are_not_a_missing_permission_and_are_sent_again(
    cloud: ComputeServer, api: GoogleApi, reason: str
) -> None:
    cloud.faults.script([Status(403, reason=reason), Status(403, reason=reason)])
    assert zone_of(api)["name"] == ZONE
    cloud.faults.always(Status(403, reason=reason))
    with pytest.raises(CommandError, match="the request quota is exhausted") as raised:
        zone_of(api)
    assert not isinstance(raised.value, NotPermittedError)


def test_an_exhausted_quota_is_not_a_missing_permission(cloud: ComputeServer, api: GoogleApi) -> None:
    cloud.faults.always(Status(403, reason="quotaExceeded"))
    with pytest.raises(CommandError, match="request more quota") as raised:
        zone_of(api)
    assert not isinstance(raised.value, NotPermittedError)
    assert len(cloud.requests) == 1


def test_a_server_that_is_silent_is_not_waited_for(cloud: ComputeServer) -> None:
    cloud.faults.always(Hang())
    api = GoogleApi(GcloudSettings.load(), Console(), request_seconds=0.2)
    with pytest.raises(TimedOutError, match="there was no answer in time"):
        zone_of(api)
    wait_until(lambda: cloud.requests)
    assert len(cloud.requests) == 1


def test_a_long_request_gets_its_timeout_on_an_open_connection(cloud: ComputeServer) -> None:
    api = GoogleApi(GcloudSettings.load(), Console(), request_seconds=2.0)
    zone_of(api)
    cloud.faults.script([Delay(2.5)])
    request = api.compute.zones().get(project=api.project, zone=ZONE)
    assert api.execute(request, "wait", timeout_seconds=60)["name"] == ZONE


@pytest.mark.parametrize("fault", [Oversize(3_000_000_000), Oversize(2 << 30, gzip=True)], ids=repr)
def test_an_answer_of_any_size_is_given_up(cloud: ComputeServer, api: GoogleApi, fault: Oversize) -> None:
    cloud.faults.script([fault])
    assert zone_of(api)["name"] == ZONE
    cloud.faults.always(fault)
    with pytest.raises(CommandError, match="larger than 64 MiB"):
        zone_of(api)


def test_headers_that_drip_are_not_waited_for(cloud: ComputeServer) -> None:
    cloud.faults.always(Drip(0.05))
    api = GoogleApi(GcloudSettings.load(), Console(), request_seconds=0.3)
    with pytest.raises(TimedOutError, match="there was no answer in time"):
        zone_of(api)


@pytest.mark.parametrize("page", [{"items": {"a": {}}, "nextPageToken": "again"}, {"nextPageToken": "page NUMBER"}])
def test_a_list_that_never_ends_is_an_error(
    cloud: ComputeServer, api: GoogleApi, monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]
) -> None:
    def handle(request: Request) -> Response:
        token = str(page["nextPageToken"]).replace("NUMBER", str(len(cloud.requests)))
        return json_response({**page, "nextPageToken": token})

    monkeypatch.setattr(cloud, "handle", handle)
    instances = api.compute.instances()
    request = instances.aggregatedList(project=api.project)
    with pytest.raises(CommandError, match=r"could not list the VMs .*(repeats|100 pages in a row had nothing new)"):
        list(api.pages(request, instances.aggregatedList_next, "list the VMs"))
    assert len(cloud.requests) <= 101


@pytest.mark.parametrize("fault", [Reset(), Truncate(5)], ids=repr)
def test_a_broken_connection_is_replaced(cloud: ComputeServer, api: GoogleApi, fault: Reset | Truncate) -> None:
    zone_of(api)
    cloud.faults.script([fault, fault])
    assert zone_of(api)["name"] == ZONE


def test_an_unreachable_api_is_reported(cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:1/compute/v1/")
    api = GoogleApi(GcloudSettings.load(), Console(), sleep=lambda seconds: None)
    with pytest.raises(CommandError, match=r"could not find .* Connection refused.*; check the network"):
        zone_of(api)


def test_a_page_of_a_proxy_is_an_error(cloud: ComputeServer, api: GoogleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "handle", lambda request: Response(200, b"<html>log in", {}))
    with pytest.raises(CommandError, match="the answer is not from Google"):
        zone_of(api)


def test_an_endpoint_that_is_not_a_url_is_named(
    cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "localhost")
    ended = run("list")
    assert ended.code == 2
    assert "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE is 'localhost'" in ended.errors


def test_no_token_is_sent_to_another_machine_without_tls(
    cloud: ComputeServer, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://10.0.0.1:80/compute/v1/")
    ended = run("list")
    assert ended.code == 2
    assert "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE is 'http://10.0.0.1:80/compute/v1'" in ended.errors
    assert "https" in ended.errors


# --- Operations, and the description of the API --------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", CommandError, "try another zone, or later"),
        ("QUOTA_EXCEEDED", CommandError, "request more quota"),
        ("RESOURCE_NOT_FOUND", NotFoundError, ""),
        ("PERMISSIONS_ERROR", NotPermittedError, ""),
        ("SOMETHING_NEW", CommandError, ""),
    ],
)
def test_failed_operations_have_a_remedy(code: str, kind: type[CommandError], advice: str) -> None:
    failed = {"status": "DONE", "error": {"errors": [{"code": code, "message": "It is so."}]}}
    error = operation_error(failed, "create the VM a")
    assert type(error) is kind
    assert str(error).startswith(f"could not create the VM a: It is so ({code})")
    assert advice in str(error)


def test_operations_that_succeeded_are_not_an_error() -> None:
    assert operation_error({"status": "DONE"}, "do it") is None


@pytest.mark.parametrize(("service", "version"), [("compute", "v1"), ("tpu", "v2")])
def test_our_part_of_a_description_is_googles(service: str, version: str) -> None:
    ours = json.loads(Path(google_api.__file__).with_name(f"{service}_api.json").read_text())
    theirs = json.loads(discovery_cache.get_static_doc(service, version))
    assert all(ours[field] == theirs[field] for field in ("id", "rootUrl", "servicePath"))
    described = methods(theirs)
    assert methods(ours)
    for id_, method in methods(ours).items():
        real = described[id_]
        for field in ("httpMethod", "path", "parameterOrder", "request", "response"):
            assert method.get(field) == real.get(field), id_
        for parameter, given in method["parameters"].items():
            if parameter == "returnPartialSuccess":  # gcloud sends this parameter, but not every description has it.
                continue
            assert given.items() <= real["parameters"][parameter].items(), (id_, parameter)
        required = {key for key, value in real["parameters"].items() if value.get("required")}
        assert required <= method["parameters"].keys()


def methods(description: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the methods of a description and of the resources inside of it, by their ids."""
    found = {method["id"]: method for method in description.get("methods", {}).values()}
    for resource in description.get("resources", {}).values():
        found |= methods(resource)
    return found


def test_googles_descriptions_are_not_read(
    cloud: ComputeServer, api: GoogleApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a description of Google's was read")

    monkeypatch.setattr(discovery_cache, "get_static_doc", refuse)
    cloud.add_tpu("slice", workers=1)
    assert zone_of(api)
    nodes = api.tpu.projects().locations().nodes()
    assert nodes.get(name="projects/p/locations/z/nodes/n").uri.endswith("/v2/projects/p/locations/z/nodes/n?alt=json")


def test_messages_name_no_url_with_a_query(cloud: ComputeServer, api: GoogleApi) -> None:
    cloud.faults.always(Status(403))
    with pytest.raises(NotPermittedError) as raised:
        zone_of(api)
    assert not re.search(r"https?://127", str(raised.value))


def test_threads_share_one_login_at_the_first_use(api: GoogleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def find_login(settings: GcloudSettings, console: Console) -> CloudEnvironment:
        found.append(settings.project)
        time.sleep(0.2)
        return CloudEnvironment(settings.project, None, None, "a test")

    monkeypatch.setattr(login, "find_login", find_login)
    assert in_parallel(lambda _: api.project, range(16)) == ["test-project"] * 16
    assert len(found) == 1
