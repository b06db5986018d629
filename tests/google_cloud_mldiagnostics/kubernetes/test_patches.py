"""The patch of a pod: each container has both variables afterwards, and nothing else has changed."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import pytest
from google_cloud_mldiagnostics._kubernetes.patches import patch_of, patch_of_ephemeral
from hypothesis import given

from .pods import patched, pods

VARIABLES = {"GKE_DIAGON_IDENTIFIER": '{"a":"b"}', "GKE_DIAGON_METADATA": '{"c":"d"}'}
BOTH = [{"name": name, "value": value} for name, value in VARIABLES.items()]


@given(pods(list(VARIABLES)))
def test_each_container_of_any_pod_has_both_variables_and_nothing_else_changes(pod: dict[str, Any]) -> None:
    before = copy.deepcopy(pod)
    result = patched(pod, patch_of(pod, VARIABLES))
    assert pod == before
    for kind in ("initContainers", "containers"):
        for old, new in zip(pod["spec"].get(kind) or [], result["spec"].get(kind) or [], strict=True):
            env, added = old.get("env") or [], new["env"]
            assert added[: len(env)] == env
            names = {each["name"] for each in env}
            assert added[len(env) :] == [each for each in BOTH if each["name"] not in names]
            old["env"] = new["env"] = None
    assert result == pod


@given(pods(list(VARIABLES)))
def test_other_programs_apply_the_patch_as_we_do(pod: dict[str, Any]) -> None:
    operations = patch_of(pod, VARIABLES)
    assert jsonpatch.apply_patch(pod, operations) == patched(pod, operations)


@given(pods(list(VARIABLES)))
def test_a_patched_pod_is_not_patched_again(pod: dict[str, Any]) -> None:
    assert patch_of(patched(pod, patch_of(pod, VARIABLES)), VARIABLES) == []


@pytest.mark.parametrize("env", [None, []])
def test_an_empty_env_is_replaced_and_an_existing_one_is_appended_to(env: list[Any] | None) -> None:
    user = {"name": "GKE_DIAGON_METADATA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    pod = {"spec": {"containers": [{"name": "a", "env": env}, {"name": "b"}, {"name": "c", "env": [user]}]}}
    assert patch_of(pod, VARIABLES) == [
        {"op": "add", "path": "/spec/containers/0/env", "value": BOTH},
        {"op": "add", "path": "/spec/containers/1/env", "value": BOTH},
        {"op": "add", "path": "/spec/containers/2/env/-", "value": BOTH[0]},
    ]


def test_only_new_ephemeral_containers_are_patched() -> None:
    old = {"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "first"}]}}
    new = {"spec": {"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "first"}, {"name": "second"}]}}
    assert patch_of_ephemeral(new, old, VARIABLES) == [
        {"op": "add", "path": "/spec/ephemeralContainers/1/env", "value": BOTH}
    ]
    assert patch_of_ephemeral(old, {"spec": {}}, VARIABLES)[0]["path"] == "/spec/ephemeralContainers/0/env"


@pytest.mark.parametrize(
    "pod", [{}, {"spec": None}, {"spec": {"containers": "x"}}, {"spec": {"containers": [1, None]}}]
)
def test_a_pod_that_is_not_valid_is_left_as_it_is(pod: dict[str, Any]) -> None:
    assert patch_of(pod, VARIABLES) == []


def test_an_env_that_is_not_a_list_is_left_as_it_is() -> None:
    assert patch_of({"spec": {"containers": [{"name": "a", "env": {"A": "b"}}]}}, VARIABLES) == []
