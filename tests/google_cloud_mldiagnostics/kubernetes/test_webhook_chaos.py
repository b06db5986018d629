"""Chaos: whatever is wrong with the webhook, the API server admits each pod; minutes in all."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("starlette")  # It needs Python 3.11, as the images have.

from ...kube_api import KubeApi
from ...waiting import wait_until
from .clusters import Webhook, create, variables
from .dead_webhooks import DEAD, dead_webhook

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", DEAD)
def test_a_webhook_that_does_not_work_keeps_no_pod_from_starting(
    kube_api: KubeApi, labelled: str, tmp_path: Path, name: str
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    with dead_webhook(name, kube_api, labelled, tmp_path) as port:
        for number in range(5):
            assert variables(create(kube_api, labelled, "Pod", f"pod-{number}", job)) == {}
        asked = f'Post "https://localhost:{port}/mutate?timeout=2s"'
        assert asked in (kube_api.folder / "apiserver.log").read_text()


def wait_until_reloaded(webhook: Webhook, result: str, count: int) -> None:
    wait_until(lambda: f'reloads_total{{result="{result}"}} {float(count)}' in webhook.metrics())


def test_pods_get_their_variables_while_pairs_rotate_and_some_are_damaged(
    kube_api: KubeApi, labelled: str, tmp_path: Path
) -> None:
    job = create(kube_api, labelled, "Job", "job")
    with Webhook(kube_api, tmp_path) as webhook:
        webhook.register(labelled)
        stopped = threading.Event()
        patched: list[bool] = []

        def create_pods() -> None:
            while not stopped.is_set():
                pod = create(kube_api, labelled, "Pod", f"pod-{len(patched)}", job)
                patched.append("GKE_DIAGON_IDENTIFIER" in variables(pod))
                stopped.wait(0.02)

        creating = threading.Thread(target=create_pods)
        creating.start()
        for number in range(1, 7):
            certificate, key = webhook.authority.issue(f"next-{number}")
            webhook.certificate.write_bytes(certificate.read_bytes())
            if number % 2:  # Its key follows late: the pair does not match meanwhile.
                wait_until_reloaded(webhook, "refused", number // 2 + 1)
            webhook.key.write_bytes(key.read_bytes())
            wait_until_reloaded(webhook, "loaded", number)
        stopped.set()
        creating.join()
    assert patched
    assert all(patched)


def test_a_review_of_8_mib_and_one_that_is_not_valid_are_answered_and_the_next_is_patched(
    kube_api: KubeApi, labelled: str, own_webhook: Webhook
) -> None:
    def post(body: bytes) -> int:
        url = f"https://127.0.0.1:{own_webhook.port}/mutate"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:  # The server answers and closes while the rest of the body is sent.
            return 413

    assert post(b" " * (9 << 20)) == 413
    assert post(b"{") == 400
    assert post(json.dumps({"request": {"uid": "u", "object": {"spec": "x" * (7 << 20)}}}).encode()) == 200
    job = create(kube_api, labelled, "Job", "job")
    assert variables(create(kube_api, labelled, "Pod", "pod", job))


def test_kubectl_creates_pods_while_the_webhook_is_gone(kube_api: KubeApi, labelled: str, tmp_path: Path) -> None:
    with dead_webhook("refused", kube_api, labelled, tmp_path):
        command = ["kubectl", f"--kubeconfig={kube_api.kubeconfig}", "-n", labelled, "run", "a", "--image=busybox"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "pod/a created\n"), done.stderr
