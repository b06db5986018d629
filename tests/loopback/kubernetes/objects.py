"""The requests on objects: get, list, watch, create, update, patch, delete."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from ml_diagnostics_testing.http_server import ApiError, Request, Response, json_response

from .kinds import Kind, find_plural, kind_of
from .patches import is_apply, patched
from .pods import running
from .store import ObjectStore, Resource
from .tables import table, wants_table
from .watching import watch_response


@dataclass(frozen=True)
class Objects:
    """Handle the requests on objects.

    Attributes:
        store: The objects.
        on_created: Called with each created object.
        on_deleted: Called with the kind, namespace and name of each deleted object.
    """

    store: ObjectStore
    on_created: Callable[[Resource], None]
    on_deleted: Callable[[Kind, str, str], None]

    def do(self, verb: str, kind: Kind, namespace: str, name: str, request: Request) -> Response:
        """Handle a request.

        Raises:
            ApiError: The request is invalid.
        """
        _check_readable(request)
        is_dry = _is_dry(request)
        if verb == "list":
            if request.query.get("watch") in ("1", "true"):
                return watch_response(self.store, kind, namespace, request)
            return self._listing(kind, self._selected(kind, namespace, request), request)
        if verb == "get":
            found = self.store.get(kind, namespace, name)
            return self._listing(kind, [found], request) if wants_table(request) else json_response(found)
        if verb == "create":
            return self._create(kind, namespace, request.json(), is_dry=is_dry)
        if verb == "update":
            self.store.get(kind, namespace, name)
            return self._change(kind, namespace, name, request.json(), is_dry=is_dry)
        if verb == "patch":
            return self._patch(kind, namespace, name, request, is_dry=is_dry)
        if verb == "delete":
            return json_response(self._delete(kind, namespace, name, is_dry=is_dry))
        if verb == "deletecollection":
            for found in self._selected(kind, namespace, request):
                self._delete(kind, found["metadata"].get("namespace", ""), found["metadata"]["name"], is_dry=is_dry)
            return json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        raise ApiError(405, f"the loopback cluster cannot {verb} {kind.plural}", name="MethodNotAllowed")

    def _selected(self, kind: Kind, namespace: str, request: Request) -> list[Resource]:
        query = request.query
        found = self.store.select(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        request.record.entries = len(found)
        return found

    def _listing(self, kind: Kind, found: list[Resource], request: Request) -> Response:
        if wants_table(request):
            return json_response(table(kind.plural, found, self.store.version, request.time))
        listing = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "items": found}
        return json_response({**listing, "metadata": {"resourceVersion": self.store.version}})

    def _create(self, kind: Kind, namespace: str, resource: Resource, *, is_dry: bool) -> Response:
        if kind.is_namespaced:
            self.store.get(find_plural("namespaces"), "", namespace)
        created = self.store.create(kind, namespace, _with_status(kind, resource), is_dry=is_dry)
        if not is_dry:
            self.on_created(created)
        return json_response(created, 201)

    def _patch(self, kind: Kind, namespace: str, name: str, request: Request, *, is_dry: bool) -> Response:
        content_type, patch = request.headers.get("Content-Type") or "", request.json()
        try:
            found = self.store.get(kind, namespace, name)
        except ApiError:
            if not is_apply(content_type):
                raise
            return self._create(kind, namespace, patch, is_dry=is_dry)
        return self._change(kind, namespace, name, patched(found, patch, content_type), is_dry=is_dry)

    def _change(self, kind: Kind, namespace: str, name: str, resource: Resource, *, is_dry: bool) -> Response:
        metadata = resource.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("name") != name:
            raise ApiError(422, f'{kind.name} "{name}" is invalid: metadata.name: field is immutable', name="Invalid")
        return json_response(self.store.put(kind, namespace, resource, is_dry=is_dry))

    def _delete(self, kind: Kind, namespace: str, name: str, *, is_dry: bool) -> Resource:
        if is_dry:
            return self.store.get(kind, namespace, name)
        deleted = self.store.delete(kind, namespace, name)
        self.on_deleted(kind, namespace, name)
        if kind.plural == "namespaces":
            for found in self.store.everything_in(name):
                with contextlib.suppress(ApiError):  # another client has deleted it meanwhile
                    self._delete(kind_of(found), name, found["metadata"]["name"], is_dry=False)
        return deleted


def _check_readable(request: Request) -> None:
    """Reject protocol buffers, which `kubectl create configmap` and similar commands send; `apply -f` sends JSON."""
    content_type = request.headers.get("Content-Type") or ""
    if "protobuf" in content_type and request.body:
        message = f"the loopback cluster reads JSON, not {content_type}: create it with kubectl apply -f"
        raise ApiError(415, message, name="UnsupportedMediaType")


def _is_dry(request: Request) -> bool:
    """Return True for a dry run. A deletion has the flag in its body."""
    return "dryRun" in request.query or (request.method == "DELETE" and bool(request.json().get("dryRun")))


def _with_status(kind: Kind, resource: Resource) -> Resource:
    """Return the object with the status that controllers would set."""
    if kind.name == "Pod":
        return running(resource)
    if kind.name == "Deployment":
        wanted = resource.get("spec", {}).get("replicas", 1)
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        return {**resource, "status": dict.fromkeys(counts, wanted)}
    return resource
