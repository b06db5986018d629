"""A webhook without cert-manager: it signs its certificate, and at no step of a renewal a connection fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.names import WEBHOOK, WEBHOOK_CERTIFICATE
from google_cloud_mldiagnostics._kubernetes.webhook.authority import (
    SETTLE_SECONDS,
    SignedState,
    first_state,
    renewed_state,
)
from google_cloud_mldiagnostics._kubernetes.webhook.certificates import Pair
from google_cloud_mldiagnostics._kubernetes.webhook.self_signed import SelfSigned
from google_cloud_mldiagnostics.exceptions import KubernetesApiError

from ...kube_api import ADMIN, KubeApi
from ...waiting import wait_until
from .clusters import CONFIGURATIONS, Webhook, create, register, variables
from .test_webhook_rights import allow

_Value = TypeVar("_Value")
_DAY = 86400.0
_NOW = 1_800_000_000.0
_NAMES = ("localhost",)


def is_trusted(pair: Pair, bundle: bytes) -> bool:
    """Return True if a client that trusts the bundle accepts a server with the pair, whatever the time is."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for file, data in zip(files, pair, strict=True):
            file.write_bytes(data)
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(*files)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.verify_flags |= 0x200000  # X509_V_FLAG_NO_CHECK_TIME: the clock of these tests is not that of OpenSSL.
    trusting.load_verify_locations(cadata=bundle.decode())
    ends = [ssl.MemoryBIO() for _ in range(2)]
    client = trusting.wrap_bio(ends[0], ends[1], server_hostname="localhost")
    server = serving.wrap_bio(ends[1], ends[0], server_side=True)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError:
        return False
    return client.version() is not None


# --- Renewal, without a cluster ------------------------------------------------------------------------


def test_the_certificate_is_renewed_at_two_thirds_of_its_life_and_the_authority_stays() -> None:
    state = first_state(_NOW, _NAMES)
    assert renewed_state(state, _NOW + 59.9 * _DAY, _NAMES, is_trusted=True) == state
    renewed = renewed_state(state, _NOW + 60.1 * _DAY, _NAMES, is_trusted=True)
    assert (renewed.authority, renewed.bundle) == (state.authority, state.bundle)
    assert renewed.leaf != state.leaf
    assert is_trusted(renewed.leaf, state.bundle)


def test_while_the_authority_changes_every_replica_is_trusted_by_every_api_server() -> None:
    """An API server may be one step behind the Secret, or a replica."""
    now = _NOW + 2 * 365.1 * _DAY
    states = [first_state(_NOW, _NAMES)]
    for _ in range(20):
        following = renewed_state(states[-1], now, _NAMES, is_trusted=True)
        if following != states[-1]:
            assert SignedState.read({key: value for key, value in following.data().items() if value}) == following
            states.append(following)
        now += SETTLE_SECONDS / 3
    assert [(state.next_authority is not None, bool(state.old_certificate)) for state in states] == [
        (False, False),
        (True, False),
        (True, False),  # The certificate is due, too.
        (False, True),
        (False, False),
    ]
    for before, after in itertools.pairwise(states):
        for leaf in (before.leaf, after.leaf):
            assert is_trusted(leaf, before.bundle)
            assert is_trusted(leaf, after.bundle)
    assert not is_trusted(states[0].leaf, states[-1].bundle)


def test_a_new_authority_signs_nothing_until_the_api_server_has_it() -> None:
    now = _NOW + 2 * 365.1 * _DAY
    state = renewed_state(first_state(_NOW, _NAMES), now, _NAMES, is_trusted=True)
    assert state.next_authority is not None
    later = renewed_state(state, now + 10 * SETTLE_SECONDS, _NAMES, is_trusted=False)
    assert (later.authority, later.next_authority) == (state.authority, state.next_authority)
    assert is_trusted(later.leaf, state.bundle)


def test_an_authority_that_has_expired_is_replaced_at_once() -> None:
    state = first_state(_NOW, _NAMES)
    now = _NOW + 4 * 365 * _DAY
    renewed = renewed_state(state, now, _NAMES, is_trusted=False)
    assert is_trusted(renewed.leaf, renewed.bundle)
    assert renewed.authority != state.authority
    assert renewed_state(renewed, now, _NAMES, is_trusted=True) == renewed


def test_another_name_of_the_server_is_another_certificate() -> None:
    state = first_state(_NOW, _NAMES)
    renewed = renewed_state(state, _NOW, (*_NAMES, "other"), is_trusted=True)
    assert renewed.leaf != state.leaf
    assert renewed_state(renewed, _NOW, _NAMES, is_trusted=True) == renewed


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("value", ["", "?", base64.b64encode(b"no PEM").decode()])
def test_a_secret_that_is_damaged_is_an_error(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        SignedState.read({**first_state(_NOW, _NAMES).data(), key: value})


def test_a_certificate_of_another_authority_is_an_error() -> None:
    state, other = first_state(_NOW, _NAMES), first_state(_NOW, _NAMES)
    with pytest.raises(ValueError, match="has not signed"):
        SignedState.read({key: value or "" for key, value in state._replace(leaf=other.leaf).data().items()})
    mixed = state._replace(leaf=Pair(state.leaf.certificate, other.leaf.key))
    with pytest.raises(ValueError, match="does not belong"):
        SignedState.read({key: value or "" for key, value in mixed.data().items()})


# --- With the real API server --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def client(server: KubeApi, account: str) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(Connection(server.url, server.context(), server.token_file(account))) as api:
        yield api


def using(server: KubeApi, use: Callable[[KubernetesApi], Awaitable[_Value]], account: str = ADMIN) -> _Value:
    async def call() -> _Value:
        async with client(server, account) as api:
            return await use(api)

    return asyncio.run(call())


def allow_signing(server: KubeApi, namespace: str, *without: str) -> None:
    """Give an account that has no rights those that it needs for one namespace, but for some of them."""
    secret = {"apiGroups": [""], "resources": ["secrets"]}
    configuration = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": [f"webhook-{namespace}"],
        "verbs": ["get", "patch"],
    }
    rules: dict[str, Any] = {
        "create": {**secret, "verbs": ["create"]},
        "secret": {**secret, "resourceNames": [WEBHOOK_CERTIFICATE], "verbs": ["get", "patch"]},
    }
    subjects = [{"kind": "ServiceAccount", "name": "stranger", "namespace": "gke-mldiagnostics"}]
    root = "/apis/rbac.authorization.k8s.io/v1"
    for path, kind, some in (
        (f"{root}/namespaces/{namespace}/role", "Role", [rules[key] for key in rules if key not in without]),
        (f"{root}/clusterrole", "ClusterRole", [configuration] if "configuration" not in without else []),
    ):
        name = f"signing-{namespace}"
        server.apply(f"{path}s", {"metadata": {"name": name}, "rules": some})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        server.apply(f"{path}bindings", {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects})


def wait_until_allowed(server: KubeApi, namespace: str, *, configuration: bool = True) -> None:
    """Wait until the API server knows the rights of the account: on the secret, and on the configuration."""
    paths = [f"/api/v1/namespaces/{namespace}/secrets/{WEBHOOK_CERTIFICATE}"]
    paths += [f"{CONFIGURATIONS}/webhook-{namespace}"] * configuration

    async def is_allowed(api: KubernetesApi) -> bool:
        for path in paths:
            try:
                await api.get(path)
            except KubernetesApiError as error:
                if error.status != 404:
                    return False
        return True

    wait_until(lambda: using(server, is_allowed, "stranger"))


def bundles(server: KubeApi, name: str) -> list[bytes]:
    entries = server.call("GET", f"{CONFIGURATIONS}/{name}")["webhooks"]
    return [base64.b64decode(entry["clientConfig"].get("caBundle", "")) for entry in entries]


def signed(namespace: str, configuration: str) -> Callable[[KubernetesApi], Awaitable[Pair]]:
    return lambda api: SelfSigned(api, namespace, configuration=configuration).pair()


@pytest.fixture
def configuration(kube_api: KubeApi, namespace: str) -> str:
    """Register no webhook that runs, and return the name of its configuration."""
    return register(kube_api, namespace, 1, timeout_seconds=1)


def test_a_server_that_signs_itself_is_trusted_with_these_rights_and_no_others(
    kube_api: KubeApi, labelled: str, tmp_path: Path
) -> None:
    allow_signing(kube_api, labelled)
    allow(kube_api, labelled)
    webhook = Webhook(kube_api, tmp_path, "stranger", namespace=labelled, configuration=f"webhook-{labelled}")
    register(kube_api, labelled, webhook.port)
    wait_until_allowed(kube_api, labelled)
    try:
        with webhook:
            webhook.wait_until_asked(labelled)
            job = create(kube_api, labelled, "Job", "job")
            assert "GKE_DIAGON_IDENTIFIER" in variables(create(kube_api, labelled, "Pod", "pod", job))
            assert "WARNING" not in webhook.log
    finally:
        kube_api.call("DELETE", f"{CONFIGURATIONS}/webhook-{labelled}")


def test_two_replicas_that_start_at_once_share_one_certificate(
    kube_api: KubeApi, namespace: str, configuration: str
) -> None:
    async def start(api: KubernetesApi) -> list[Pair]:
        replicas = [SelfSigned(api, namespace, configuration=configuration) for _ in range(4)]
        return await asyncio.gather(*(replica.pair() for replica in replicas))

    pairs = using(kube_api, start)
    assert len(set(pairs)) == 1
    assert all(is_trusted(pairs[0], bundle) for bundle in bundles(kube_api, configuration))


def test_two_replicas_fill_the_empty_secret_of_the_chart_without_a_right_to_create_one(
    kube_api: KubeApi, namespace: str, configuration: str, caplog: pytest.LogCaptureFixture
) -> None:
    kube_api.apply(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": WEBHOOK_CERTIFICATE}})
    allow_signing(kube_api, namespace, "create")

    async def start(api: KubernetesApi) -> list[Pair]:
        replicas = [SelfSigned(api, namespace, configuration=configuration) for _ in range(4)]
        return await asyncio.gather(*(replica.pair() for replica in replicas))

    wait_until_allowed(kube_api, namespace)
    pairs = using(kube_api, start, "stranger")
    assert len(set(pairs)) == 1
    assert all(is_trusted(pairs[0], bundle) for bundle in bundles(kube_api, configuration))
    assert "WARNING" not in caplog.text


def test_two_replicas_change_the_authority_together_and_are_trusted_at_each_step(
    kube_api: KubeApi, namespace: str, configuration: str
) -> None:
    times: list[float] = [_NOW]

    async def run(api: KubernetesApi) -> list[Pair]:
        replicas = [SelfSigned(api, namespace, configuration=configuration, clock=lambda: times[-1]) for _ in range(2)]
        seen: list[Pair] = []
        served: Sequence[Pair] = []
        for step in range(9):
            served_before, served = served, await asyncio.gather(*(replica.pair() for replica in replicas))
            (bundle,) = set(bundles(kube_api, configuration))
            assert all(is_trusted(pair, bundle) for pair in (*served_before, *served))
            assert len(set(served)) <= 2
            seen += [pair for pair in served if pair not in seen]
            times.append(_NOW + 2 * 365.1 * _DAY + step * SETTLE_SECONDS / 2)
        return seen

    assert len(using(kube_api, run)) >= 2
    (bundle,) = set(bundles(kube_api, configuration))
    assert bundle.count(b"BEGIN CERTIFICATE") == 1


def test_a_damaged_secret_is_replaced(
    kube_api: KubeApi, namespace: str, configuration: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = {"metadata": {"name": WEBHOOK_CERTIFICATE}, "data": {"ca.crt": "bm8gUEVN"}}
    kube_api.apply(f"/api/v1/namespaces/{namespace}/secrets", secret)
    pair = using(kube_api, signed(namespace, configuration))
    assert all(is_trusted(pair, bundle) for bundle in bundles(kube_api, configuration))
    assert f"The Secret {WEBHOOK_CERTIFICATE} is not valid" in caplog.text


@pytest.mark.parametrize("missing", ["create", "secret"])
def test_without_a_right_on_the_secret_there_is_a_clear_error(
    kube_api: KubeApi, namespace: str, configuration: str, missing: str
) -> None:
    allow_signing(kube_api, namespace, missing)
    with pytest.raises(KubernetesApiError, match=r"refused with 403: secrets.* is forbidden"):
        using(kube_api, signed(namespace, configuration), "stranger")


def test_without_the_right_on_the_configuration_the_server_starts_and_warns(
    kube_api: KubeApi, namespace: str, configuration: str, caplog: pytest.LogCaptureFixture
) -> None:
    allow_signing(kube_api, namespace, "configuration")
    wait_until_allowed(kube_api, namespace, configuration=False)
    pair = using(kube_api, signed(namespace, configuration), "stranger")
    assert pair.certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    assert "The API server may not trust the webhook" in caplog.text
    assert "mutatingwebhookconfigurations" in caplog.text


def test_the_certificate_has_the_names_of_the_service(kube_api: KubeApi, namespace: str, configuration: str) -> None:
    pair = using(kube_api, signed(namespace, configuration))
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{WEBHOOK}.{namespace}.svc" in names.get_values_for_type(x509.DNSName)


def test_a_server_that_may_not_read_its_secret_warns_and_starts_when_it_may(
    kube_api: KubeApi, namespace: str, tmp_path: Path
) -> None:
    """The right is given while the server waits for it."""
    webhook = Webhook(kube_api, tmp_path, "stranger", namespace=namespace, configuration=f"webhook-{namespace}")
    with contextlib.ExitStack() as stack:
        webhook.start()
        stack.push(webhook)
        wait_until(lambda: "WARNING The webhook has no certificate yet, and tries again" in webhook.log)
        assert "refused with 403" in webhook.log
        allow_signing(kube_api, namespace)
        wait_until(webhook.is_ready, running=webhook.process)
