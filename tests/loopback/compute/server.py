"""The loopback Compute Engine: its REST API, and its interface for tests."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from ml_diagnostics_testing._batches import answer_batch
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

from .catalog import DEFAULT_MACHINE_TYPES, DEFAULT_ZONES, Catalog
from .checks import check_shape
from .fields import parse_fields, select
from .instances import Instances, metadata_of, with_fingerprint
from .operations import Operations
from .os_login import OsLogin
from .project import Project
from .routes import find
from .tpu import Tpus
from .vms import Callback, Vms

Resource = dict[str, Any]

_PERMISSIONS: Final[Mapping[str, str]] = {
    "list": "compute.instances.list",
    "get": "compute.instances.get",
    "insert": "compute.instances.create",
    "delete": "compute.instances.delete",
    "set_labels": "compute.instances.setLabels",
    "set_metadata": "compute.instances.setMetadata",
    "guest_attributes": "compute.instances.getGuestAttributes",
    "serial_output": "compute.instances.getSerialPortOutput",
    "operation": "compute.zoneOperations.get",
    "wait": "compute.zoneOperations.get",
    "zone": "compute.zones.get",
    "region": "compute.regions.get",
    "machine_type": "compute.machineTypes.get",
    "project": "compute.projects.get",
    "set_project_metadata": "compute.projects.setCommonInstanceMetadata",
    "tpu": "tpu.nodes.get",
    "update_tpu": "tpu.nodes.update",
    "os_login": "compute.instances.osLogin",
    "import_key": "compute.instances.osLogin",
}


class ComputeServer(LoopbackServer):
    """Serve Compute Engine on 127.0.0.1, with a Cloud Storage for the buckets of the VMs.

    It serves the part of the v1 API that creates, finds, labels and deletes VMs: instances, operations, zones, regions,
    machine types, project metadata and batches; and also Cloud TPU's nodes and OS Login. It rejects the requests that
    the real service rejects, and answers changes with operations.

    It runs from construction until `close`, and is a context manager. The operations of its `faults` and `requests`
    are "list" (of VMs, of one zone or of all), "get", "insert", "delete", "set_labels", "set_metadata",
    "guest_attributes", "serial_output", "operation" and "wait", "zone", "region", "machine_type", "project",
    "set_project_metadata", "tpu", "update_tpu", "os_login", "import_key" and "batch". `body` in `requests`
    holds the JSON of a request.

    Args:
        project: The only project; others are not found.
        zones: The zones.
        machine_types: The zones of each machine type.
        buckets: The initial buckets.
        clock: Returns the time in seconds since the epoch.

    Attributes:
        storage: The Cloud Storage, with its own faults and requests.
        operations: The operations; their `seconds` and `wait_seconds` are settable.
        is_enabled: True if the API is enabled in the project; otherwise requests get 403.
        is_permitted: True if the caller has the permission; otherwise requests get 403.
        accepted_tokens: The valid access tokens; other requests get 401. None accepts requests without a token.
    """

    def __init__(
        self,
        project: str = "test-project",
        *,
        zones: Iterable[str] = DEFAULT_ZONES,
        machine_types: Mapping[str, Iterable[str]] = DEFAULT_MACHINE_TYPES,
        buckets: Iterable[str] = ("test-bucket",),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.project = project
        self.is_enabled = True
        self.is_permitted = True
        self.accepted_tokens: set[str] | None = None
        super().__init__(clock=clock)
        self.storage = CloudStorageServer(buckets, clock=clock)
        self._settings = tempfile.TemporaryDirectory(prefix="gcloud-", ignore_cleanup_errors=True)
        self._callbacks: list[threading.Thread] = []
        self._on_created: list[Callback] = []
        self._on_deleted: list[Callback] = []
        url = f"{self.url}/compute/v1/projects/{project}"
        catalog = Catalog(url, zones, machine_types)
        self._instances = Instances(url, catalog)
        self.operations = Operations(url, clock)
        self._project = Project(url, catalog, self.operations)
        self._vms = Vms(
            url,
            catalog,
            self._instances,
            self.operations,
            created=lambda instance: self._call(self._on_created, instance),
            deleted=lambda instance: self._call(self._on_deleted, instance),
        )
        self._tpus = Tpus(project)
        self._os_login = OsLogin(project)
        self._routes = [
            made for part in (self._vms, self._project, self._tpus, self._os_login) for made in part.routes()
        ]

    # --- For tests ---

    def fail_operations(
        self, code: str, message: str = "a scripted fault", *, on: str | None = None, times: int = 1, status: int = 503
    ) -> None:
        """Accept the next changes, but end their operations with an error and change nothing.

        Args:
            code: The error's code, such as ZONE_RESOURCE_POOL_EXHAUSTED or QUOTA_EXCEEDED.
            message: The error message for the client.
            on: The type of operation: insert, delete, setLabels, ...; None means any.
            times: The number of operations.
            status: The operation's HTTP status.
        """
        error = {
            "error": {"errors": [{"code": code, "message": message}]},
            "httpErrorStatusCode": status,
            "httpErrorMessage": {403: "FORBIDDEN", 503: "SERVICE UNAVAILABLE"}.get(status, "ERROR"),
        }
        self.operations.fail_next(error, on, times)

    def on_instance_created(self, callback: Callback) -> None:
        """Call a function in a new thread for each VM that clients create from now on, to simulate the VM.

        Args:
            callback: Called with the VM in the form of the API when its operation is done; it may block.
        """
        self._on_created.append(callback)

    def on_instance_deleted(self, callback: Callback) -> None:
        """Call a function in a new thread for each VM that clients delete from now on."""
        self._on_deleted.append(callback)

    def add_instance(self, name: str, zone: str = "us-central1-a", **fields: Any) -> Resource:
        """Add a running VM directly, without a request; return it.

        Args:
            name: The name. It is not checked, so that it may have an underscore, unlike in Compute Engine.
            zone: The zone.
            **fields: Fields of the API: labels, machineType, networkInterfaces, ...; `metadata` may be a plain mapping.
                The VM has an external address by default; `networkInterfaces=[{}]` creates it without one.
        """
        metadata = fields.get("metadata", {})
        if "items" not in metadata:
            metadata = {"items": [{"key": key, "value": value} for key, value in metadata.items()]}
        interfaces: list[Resource] = [{"accessConfigs": [{}]}]
        body = {
            "machineType": "n2-standard-8",
            "networkInterfaces": interfaces,
            **fields,
            "name": name,
            "metadata": metadata,
        }
        return self._instances.add(zone, body, self.clock(), status=fields.get("status", "RUNNING"))

    def change_instance(self, name: str, zone: str | None = None, **fields: Any) -> Resource:
        """Change fields of a VM directly, like another program would; return it."""
        return self._instances.change(self._zone_of(name, zone), name, **fields)

    def remove_instance(self, name: str, zone: str | None = None) -> None:
        """Delete a VM directly, without a request."""
        self._instances.remove(self._zone_of(name, zone), name)

    def instance(self, name: str, zone: str | None = None) -> Resource:
        """Return a VM in the form of the API.

        Raises:
            KeyError: The VM does not exist.
        """
        return self._instances.get(self._zone_of(name, zone), name)

    def instances(self) -> list[Resource]:
        """Return every VM, sorted by zone and name."""
        return self._instances.all()

    def add_tpu(self, name: str, zone: str = "us-central1-a", *, workers: int = 1, **fields: Any) -> Resource:
        """Add a TPU node that is ready; return it.

        Args:
            name: The name.
            zone: The zone.
            workers: The number of its VMs.
            **fields: Fields of the API: state, health, networkEndpoints, ...
        """
        return self._tpus.add(name, zone, workers, self.clock(), fields)

    def tpu(self, name: str, zone: str = "us-central1-a") -> Resource:
        """Return a TPU node in the form of the API; its metadata holds the ssh keys that clients added."""
        return self._tpus.find(name, zone)

    def set_serial_output(self, name: str, text: str, zone: str | None = None) -> None:
        """Set the output of a VM's first serial port."""
        self._vms.serial_output[self._zone_of(name, zone), name] = text

    def set_guest_attributes(self, name: str, attributes: Mapping[str, str], zone: str | None = None) -> None:
        """Set the guest attributes of a VM.

        Args:
            name: The VM.
            attributes: The values by "namespace/key", such as "hostkeys/ssh-ed25519".
            zone: The zone of the VM.
        """
        self._vms.guest_attributes[self._zone_of(name, zone), name] = dict(attributes)

    @property
    def project_metadata(self) -> dict[str, str]:
        """The metadata that all VMs share, such as the "ssh-keys" that gcloud adds. Settable."""
        return metadata_of({"metadata": self._project.metadata})

    @project_metadata.setter
    def project_metadata(self, values: Mapping[str, str]) -> None:
        items = [{"key": key, "value": value} for key, value in values.items()]
        self._project.metadata = with_fingerprint({"items": items})

    @property
    def login_keys(self) -> dict[str, list[str]]:
        """The ssh keys imported to OS Login, by the email of their user."""
        return self._os_login.keys

    def environment(self) -> dict[str, str]:
        """Return the variables that redirect gcloud and the ML diagnostics libraries here, without credentials.

        gcloud's settings are in a temporary folder, which `close` deletes. gcloud keeps ssh keys in HOME: set HOME to
        a temporary folder in tests that use `gcloud compute ssh`.
        """
        return {
            **self.storage.environment(),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{self.url}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "CLOUDSDK_CONFIG": self._settings.name,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "true",
            "GOOGLE_CLOUD_PROJECT": self.project,
        }

    def close(self) -> None:
        """Stop serving. Safe to call twice."""
        self.operations.close()
        super().close()
        self.storage.close()
        for thread in self._callbacks:
            thread.join(5)
        self._settings.cleanup()

    # --- Serving ---

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request."""
        if path.startswith("/batch/"):
            return "batch"
        found = find(self._routes, method, path)
        return found[0].operation if found else "other"

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        if request.path.startswith("/batch/"):
            return answer_batch(request, self.handle)
        found = find(self._routes, request.method, request.path)
        if found is None:
            raise ApiError(404, f"the loopback Compute has no {request.method} {request.path}", reason="notFound")
        asked, parts = found
        self._admit(request, asked.operation, parts.get("project", self.project))
        if request.method != "GET":
            request.record.body = request.json()
            check_shape("resource", request.record.body, dict)
        return json_response(select(asked.answer(request, parts), parse_fields(request.query.get("fields", ""))))

    def _admit(self, request: Request, operation: str, project: str) -> None:
        """Reject requests without a valid token, the right project, an enabled API or permission."""
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.accepted_tokens is not None and token not in self.accepted_tokens:
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token."
            raise ApiError(401, message, reason="authError")
        if project != self.project:
            raise ApiError(404, f"The resource 'projects/{project}' was not found", reason="notFound")
        if not self.is_enabled:
            message = (
                f"Compute Engine API has not been used in project {project} before or it is disabled. Enable it by "
                "visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview then retry."
            )
            raise ApiError(403, message, reason="accessNotConfigured")
        if not self.is_permitted:
            resource = unquote(request.path).removeprefix("/compute/v1/")
            message = f"Required '{_PERMISSIONS[operation]}' permission for '{resource}'"
            raise ApiError(403, message, reason="forbidden")

    def _zone_of(self, name: str, zone: str | None) -> str:
        for found in self._instances.all(zone):
            if found["name"] == name:
                return str(found["zone"]).rpartition("/")[2]
        raise KeyError(f"there is no VM {name!r}" + (f" in {zone}" if zone else ""))

    def _call(self, callbacks: list[Callback], instance: Resource) -> None:
        for callback in callbacks:
            thread = threading.Thread(target=callback, args=[instance], name=f"vm-{instance['name']}", daemon=True)
            self._callbacks.append(thread)
            thread.start()
