"""The result of `terraform plan` for a folder: every resource with its arguments, and the outputs.

python-hcl2 reads the files; variables, locals, modules, `count` and `dynamic` are worked out here. What a provider
fills in at apply, only as far as our files use it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2

from .hcl_expressions import compile_expression, compile_template


class InvalidVariableError(Exception):
    """A validation of a variable failed, or a variable without a default was not given."""


@dataclass(frozen=True)
class Plan:
    """Resources by type and name, a list each where they have a `count`; outputs by name."""

    resources: dict[str, dict[str, Any]]
    outputs: dict[str, Any]


def plan(folder: Path, **variables: Any) -> Plan:
    """Evaluate a root module with the modules that it calls: their resources are among its own."""
    blocks = list(_blocks(folder))
    scope: dict[str, Any] = {"functions": _FUNCTIONS, "path": {"module": str(folder)}}
    scope["var"] = _variables(blocks, variables, scope)
    scope["local"] = _Lazy({}, scope)
    for kind, body in blocks:
        if kind == "locals":
            scope["local"].sources.update(body)
    resources: dict[str, dict[str, Any]] = {}
    for (kind, body), (resource_type, name) in _labelled(blocks, "resource"):
        assert kind == "resource"
        scope.setdefault(resource_type, _Lazy({}, scope, _Resource(resource_type))).sources[name] = body
        resources.setdefault(resource_type, {})
    scope["module"] = {}
    for (_, body), (name,) in _labelled(blocks, "module"):
        given = {key: _work_out(value, scope) for key, value in body.items()}
        called = plan((folder / given.pop("source")).resolve(), **given)
        scope["module"][name] = called.outputs
        for resource_type, found in called.resources.items():
            resources.setdefault(resource_type, {}).update(found)
    for (_, _body), (resource_type, name) in _labelled(blocks, "resource"):
        resources[resource_type][name] = scope[resource_type][name]
    outputs = {name: _work_out(body["value"], scope) for (_, body), (name,) in _labelled(blocks, "output")}
    return Plan(resources, outputs)


def settings(folder: Path) -> dict[str, Any]:
    """Return the `terraform` block."""
    (body,) = (body for kind, body in _blocks(folder) if kind == "terraform")
    return dict(_work_out(body, {}))


def _blocks(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.tf")):
        for kind, bodies in _read(path).items():
            if kind != "__comments__":
                yield from ((kind, _plain(body)) for body in bodies)


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    return hcl2.loads(path.read_text(encoding="utf-8"))


def _plain(read: Any) -> Any:
    """Remove the notes of python-hcl2, and quotation marks around names."""
    if isinstance(read, dict):
        return {name.strip('"'): _plain(item) for name, item in read.items() if not re.fullmatch("__.*__", name)}
    return [_plain(item) for item in read] if isinstance(read, list) else read


def _labelled(blocks: list[Any], kind: str) -> Iterator[tuple[tuple[str, dict[str, Any]], tuple[str, ...]]]:
    for block_kind, block in blocks:
        if block_kind == kind:
            ((first, body),) = block.items()
            if kind == "resource":
                ((second, body),) = body.items()
                yield (kind, body), (first, second)
            else:
                yield (kind, body), (first,)


def _variables(blocks: list[Any], given: Mapping[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    declared = {name: body for (_, body), (name,) in _labelled(blocks, "variable")}
    assert set(given) <= set(declared), "an argument that the module does not have"
    values = {}
    for name, body in declared.items():
        if name not in given and "default" not in body:
            raise InvalidVariableError(f"no value for {name}")
        value = given[name] if name in given else _work_out(body["default"], scope)
        convert = compile_expression(body["type"].removeprefix("${").removesuffix("}"))(
            {"functions": _TYPES, **_SIMPLE}
        )
        values[name] = convert(value)
    for body in declared.values():
        for rule in body.get("validation", []):
            if not _work_out(rule["condition"], {**scope, "var": values}):
                raise InvalidVariableError(_work_out(rule["error_message"], scope))
    return values


def _work_out(read: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(read, dict):
        found = {name: _work_out(item, scope) for name, item in read.items() if name != "dynamic"}
        for block in read.get("dynamic", []):
            ((name, body),) = block.items()
            each = _work_out(body["for_each"], scope)
            (content,) = body["content"]
            found[name] = [_work_out(content, {**scope, name: {"key": k, "value": v}}) for k, v in sorted(each.items())]
        return found
    if isinstance(read, list):
        return [_work_out(item, scope) for item in read]
    if isinstance(read, str):
        return compile_expression(read[2:-1] if read.startswith("${") else read)(scope)
    return read


class _Lazy(Mapping[str, Any]):
    """Values that are evaluated when they are read, since Terraform's files have no order."""

    def __init__(self, sources: dict[str, Any], scope: Mapping[str, Any], wrap: Any = None) -> None:
        self.sources = sources
        self._scope = scope
        self._work_out: Callable[[Any, Mapping[str, Any]], Any] = wrap or _work_out

    def __getitem__(self, name: str) -> Any:
        return self._work_out(self.sources[name], self._scope)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class _Resource:
    """Evaluate a resource: once, or `count` times, with the id from the provider."""

    resource_type: str

    def __call__(self, body: dict[str, Any], scope: Mapping[str, Any]) -> Any:
        if "count" in body:
            once = {name: item for name, item in body.items() if name != "count"}
            return [self(once, scope) for _ in range(_work_out(body["count"], scope))]
        found = _work_out(body, scope)
        if self.resource_type == "google_logging_project_bucket_config":
            found["id"] = "projects/{project}/locations/{location}/buckets/{bucket_id}".format(**found)
        elif self.resource_type == "google_monitoring_dashboard":
            found["id"] = f"projects/{found['project']}/dashboards/{json.loads(found['dashboard_json'])['displayName']}"
        return found


# --- Functions: they take their arguments unevaluated, for the sake of `try` and `can` ------------------


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*(argument() for argument in arguments))


def _try(*alternatives: Callable[[], Any]) -> Any:
    for alternative in alternatives:
        try:
            return alternative()
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    raise ValueError("try: no alternative worked")


def _regex(pattern: str, text: str) -> str:
    if not (found := re.search(pattern, text)):
        raise ValueError(f"{pattern!r} does not match {text!r}")
    return found[0]


def _one(values: list[Any]) -> Any:
    (value,) = values or [None]
    return value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "can": lambda argument: _try(lambda: argument() is not _FUNCTIONS, lambda: False),
    "coalesce": _eager(lambda *values: next(value for value in values if value not in (None, ""))),
    "flatten": _eager(lambda lists: [item for items in lists for item in items]),
    "join": _eager(lambda separator, items: separator.join(items)),
    "jsondecode": _eager(json.loads),
    "jsonencode": _eager(json.dumps),
    "keys": _eager(sorted),
    "length": _eager(len),
    "one": _eager(_one),
    "regex": _eager(_regex),
    "templatefile": _eager(
        lambda path, names: compile_template(Path(path).read_text(encoding="utf-8"))({"functions": _FUNCTIONS, **names})
    ),
    "try": _try,
    "upper": _eager(str.upper),
}


# --- Types: functions that convert a value, as https://developer.hashicorp.com/terraform/language/expressions/types ---


def _object(attributes: Mapping[str, Any]) -> Callable[[Any], Any]:
    def convert(value: Mapping[str, Any] | None) -> Any:
        if value is None:
            return None
        found = {}
        for name, kind in attributes.items():
            wanted, default = kind if isinstance(kind, tuple) else (kind, InvalidVariableError)
            if value.get(name) is None and default is InvalidVariableError:
                raise InvalidVariableError(f"no value for {name}")
            found[name] = default if value.get(name) is None else wanted(value[name])
        return found

    return convert


def _number(value: Any) -> float | None:
    assert value is None or isinstance(value, int | float)
    return value


def _string(value: Any) -> str | None:
    assert value is None or isinstance(value, str)
    return value


_SIMPLE = {"string": _string, "number": _number}
_TYPES: dict[str, Callable[..., Any]] = {
    "list": _eager(lambda kind: lambda values: [kind(value) for value in values]),
    "map": _eager(lambda kind: lambda values: {name: kind(value) for name, value in values.items()}),
    "object": _eager(_object),
    "optional": _eager(lambda kind, default=None: (kind, default)),
}
