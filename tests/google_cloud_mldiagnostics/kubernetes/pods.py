"""Pods as the API server sends them, some of them odd, and what a JSON Patch makes of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)


def variables(names: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """An element of `env`, with a value, with a source, or with fields of a later version."""
    name = st.sampled_from([*names, "PATH", "NAME"])
    return st.fixed_dictionaries(
        {"name": name}, optional={"value": st.text(max_size=4), "valueFrom": JSON, "unknown": JSON}
    )


def containers(names: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """A container with or without variables; `env` may be null, or have a name twice."""
    env = st.none() | st.lists(variables(names), max_size=4)
    return st.fixed_dictionaries(
        {"name": NAMES}, optional={"image": st.just("i"), "env": env, "envFrom": JSON, "unknown": JSON}
    )


def pods(names: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Pods of which each list of containers may be missing, null or empty."""
    some = st.none() | st.lists(containers(names), max_size=4)
    spec = st.fixed_dictionaries(
        {"containers": some}, optional={"initContainers": some, "ephemeralContainers": some, "unknown": JSON}
    )
    return st.fixed_dictionaries({"spec": spec}, optional={"metadata": JSON, "unknown": JSON})


def patched(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document after the `add` operations of a JSON Patch, by RFC 6902, section 4.1."""
    result: Any = copy.deepcopy(dict(document))
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = operation["path"].split("/")[1:]
        target = result
        for key in parents:
            target = target[int(key)] if isinstance(target, list) else target[key]
        value = copy.deepcopy(operation["value"])
        if isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), value)
        else:
            target[last] = value
    return dict(result)
