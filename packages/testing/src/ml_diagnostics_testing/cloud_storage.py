"""Cloud Storage on loopback: its JSON API, for the real clients.

    with CloudStorageServer(buckets=["b"]) as server:
        os.environ.update(server.environment())
        google.cloud.storage.Client().bucket("b").blob("x").upload_from_string("hello")
        assert server.read("b", "x") == b"hello"

It serves uploads (media, multipart, resumable), metadata, downloads with ranges, lists with paging, delimiter, offsets
and globs, compose, rewrite, copy, patch, delete and batches. Every operation checks preconditions on generation and
metageneration and answers 412 if they fail. Objects have one live generation; there is no versioning, ACL or IAM.

API: https://cloud.google.com/storage/docs/json_api/v1
"""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ml_diagnostics_testing._batches import answer_batch
from ml_diagnostics_testing._storage_objects import (
    ObjectStore,
    StoredObject,
    check,
    list_page,
    media_response,
    parse_multipart,
    show_bucket,
)
from ml_diagnostics_testing.http_server import ApiError, LoopbackServer, Request, Response, json_response

__all__ = ["CloudStorageServer", "StoredObject"]

_PATH = re.compile(r"/(?:(?P<kind>upload|resumable/upload|download)/)?storage/v1/(?P<rest>.*)")
_OBJECT = re.compile(r"b/(?P<bucket>[^/]+)/o/(?P<name>[^/]+)(?:/(?P<verb>\w+)(?P<target>/b/.*)?)?")
_TARGET = re.compile(r"/b/(?P<bucket>[^/]+)/o/(?P<name>[^/]+)")
_CHUNK_BYTES = 256 * 1024


@dataclass
class _Session:
    """A resumable upload under way."""

    bucket: str
    name: str
    properties: dict[str, Any]
    query: dict[str, str]
    received: bytearray = field(default_factory=bytearray)
    finished: StoredObject | None = None


class CloudStorageServer(LoopbackServer):
    """Serve buckets and objects over Cloud Storage's JSON API.

    The operations of its `faults` and `requests` are "upload" (each request of one), "read" (downloads), "get"
    (metadata), "list", "delete", "patch", "compose", "rewrite", "copy", "batch" and "bucket".

    Args:
        buckets: The initial buckets; clients may create more.
        clock: Returns the time in seconds since the epoch. Generations are derived from it.
    """

    def __init__(self, buckets: Iterable[str] = ("test-bucket",), *, clock: Callable[[], float] = time.time) -> None:
        self._store = ObjectStore()
        self._sessions: dict[str, _Session] = {}
        self._session_numbers = itertools.count(1)
        for bucket in buckets:
            self.create_bucket(bucket)
        super().__init__(clock=clock)

    # --- For tests ---

    def create_bucket(self, name: str) -> None:
        """Create an empty bucket, unless one of that name exists."""
        with self._store.lock:
            self._store.buckets.setdefault(name, {})

    def write(self, bucket: str, name: str, data: bytes, **properties: Any) -> StoredObject:
        """Write an object directly, without a request.

        Args:
            bucket: The bucket's name.
            name: The object's name.
            data: Its content.
            **properties: Properties such as contentType or metadata.
        """
        with self._store.lock:
            return self._store.write(bucket, name, data, properties, {}, now=self.clock())

    def read(self, bucket: str, name: str) -> bytes:
        """Return the content of an object; KeyError if it does not exist."""
        with self._store.lock:
            return self._store.buckets[bucket][name].data

    def stored(self, bucket: str, name: str) -> StoredObject:
        """Return an object with its properties; KeyError if it does not exist."""
        with self._store.lock:
            return self._store.buckets[bucket][name]

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object directly, without a request; KeyError if it does not exist."""
        with self._store.lock:
            del self._store.buckets[bucket][name]

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the names of a bucket's objects, sorted."""
        with self._store.lock:
            return sorted(name for name in self._store.buckets[bucket] if name.startswith(prefix))

    def environment(self) -> dict[str, str]:
        """Return the variables that redirect storage clients, gcloud and the ML diagnostics libraries here."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        }

    # --- Serving ---

    def operation(self, method: str, path: str) -> str:
        """Return the operation of a request, from its path alone."""
        if path.startswith("/batch/"):
            return "batch"
        parsed = _PATH.fullmatch(path)
        if not parsed or parsed["kind"] == "download":
            return "read"
        if parsed["kind"]:
            return "upload"
        found = _OBJECT.fullmatch(parsed["rest"])
        if found is None:
            return "list" if parsed["rest"].endswith("/o") else "bucket"
        verb = {"rewriteTo": "rewrite", "copyTo": "copy", None: None}.get(found["verb"], found["verb"])
        return verb or {"GET": "get", "DELETE": "delete"}.get(method, "patch")

    def handle(self, request: Request) -> Response:
        """Route a request by its path."""
        with self._store.lock:
            if request.path.startswith("/batch/"):
                return answer_batch(request, self.handle)
            parsed = _PATH.fullmatch(request.path)
            if parsed is None:
                raise ApiError(404, f"There is no {request.path} in the JSON API")
            if parsed["kind"] in ("upload", "resumable/upload"):
                return self._upload(request, unquote(parsed["rest"].split("/")[1]))
            found = _OBJECT.fullmatch(parsed["rest"])
            if found is None:
                return self._bucket(request, [unquote(part) for part in parsed["rest"].split("/")])
            bucket, name = unquote(found["bucket"]), unquote(found["name"])
            if found["verb"] == "compose":
                return self._compose(request, bucket, name)
            if found["verb"] in ("rewriteTo", "copyTo") and found["target"]:
                return self._copy(request, bucket, name, found["verb"], found["target"])
            if found["verb"]:
                raise ApiError(501, f"{found['verb']} is not served")
            return self._object(request, bucket, name)

    def _show(self, found: StoredObject) -> Response:
        return json_response(found.resource(self.url), headers={"ETag": found.etag})

    def _bucket(self, request: Request, parts: list[str]) -> Response:
        """Handle requests on buckets: b, b/NAME, b/NAME/o."""
        buckets = self._store.buckets
        if parts == ["b"]:
            if request.method == "GET":
                return json_response({"kind": "storage#buckets", "items": [show_bucket(name) for name in buckets]})
            name = str(request.json().get("name", ""))
            if name in buckets:
                raise ApiError(409, f"Your previous request to create the named bucket {name} succeeded.")
            self.create_bucket(name)
            return json_response(show_bucket(name))
        if len(parts) == 3 and parts[2] == "o" and request.method == "GET":
            return self._list(request, parts[1])
        if len(parts) != 2 or request.method not in ("GET", "DELETE"):
            raise ApiError(501, f"{request.method} {request.path} is not served")
        objects = self._store.bucket(parts[1])
        if request.method == "GET":
            return json_response(show_bucket(parts[1]))
        if objects:
            raise ApiError(409, "The bucket you tried to delete is not empty.")
        del buckets[parts[1]]
        return Response(204)

    def _list(self, request: Request, bucket: str) -> Response:
        page = list_page(self._store.bucket(bucket), request.query)
        request.record.entries = len(page.items)
        answer: dict[str, Any] = {"kind": "storage#objects"}
        if page.items:
            answer["items"] = [found.resource(self.url) for found in page.items]
        if page.prefixes:
            answer["prefixes"] = page.prefixes
        if page.next_token:
            answer["nextPageToken"] = page.next_token
        return json_response(answer)

    def _object(self, request: Request, bucket: str, name: str) -> Response:
        """Handle requests on one object: metadata, download, patch, update, delete."""
        query = request.query
        if request.method == "GET":
            found = self._store.find(bucket, name, {"generation": query.get("generation", "")})
            check(found, query, reading=True)
            if query.get("alt") != "media":
                return self._show(found)
            return media_response(found, request.headers.get("Range"))
        found = self._store.find(bucket, name, query)
        if request.method == "DELETE":
            del self._store.buckets[bucket][name]
            return Response(204)
        given = request.json()
        if request.method == "PATCH":
            metadata = {**found.properties.get("metadata", {}), **(given.get("metadata") or {})}
            kept = {key: value for key, value in metadata.items() if value is not None}
            replaced = "metadata" in given and given["metadata"] is None
            given = {**found.properties, **given, "metadata": None if replaced else kept or None}
        elif request.method != "PUT":
            raise ApiError(501, f"{request.method} of an object is not served")
        return self._show(self._store.change(found, given, now=request.time))

    def _compose(self, request: Request, bucket: str, name: str) -> Response:
        asked = request.json()
        sources = asked.get("sourceObjects", [])
        if not 0 < len(sources) <= 32:
            raise ApiError(400, "The number of source components provided must be between 1 and 32.")
        found = []
        for source in sources:
            conditions = {key: str(value) for key, value in source.get("objectPreconditions", {}).items()}
            conditions["generation"] = str(source.get("generation", ""))
            found.append(self._store.find(bucket, str(source["name"]), conditions))
        composed = self._store.write(
            bucket,
            name,
            b"".join(part.data for part in found),
            {"contentType": found[0].properties.get("contentType"), **asked.get("destination", {})},
            request.query,
            now=request.time,
            component_count=sum(part.component_count or 1 for part in found),
        )
        return self._show(composed)

    def _copy(self, request: Request, bucket: str, name: str, verb: str, target: str) -> Response:
        to = _TARGET.fullmatch(target)
        if to is None:
            raise ApiError(400, f"There is no target in {target}")
        source = self._store.find(bucket, name, request.query, source=True)
        copied = self._store.write(
            unquote(to["bucket"]),
            unquote(to["name"]),
            source.data,
            request.json() or source.properties,
            request.query,
            now=request.time,
            component_count=source.component_count,
        )
        if verb == "copyTo":
            return self._show(copied)
        size = str(len(copied.data))
        return json_response(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": size,
                "objectSize": size,
                "done": True,
                "resource": copied.resource(self.url),
            }
        )

    # --- Uploads ---

    def _upload(self, request: Request, bucket: str) -> Response:
        query = request.query
        if "upload_id" in query:
            return self._continue_upload(request, query["upload_id"])
        kind = query.get("uploadType")
        if kind == "resumable":
            return self._start_upload(request, bucket)
        if kind == "multipart":
            properties, data = parse_multipart(request)
        elif kind == "media":
            properties, data = {"contentType": request.headers.get("Content-Type")}, request.body
        else:
            raise ApiError(400, f"expected an uploadType of media, multipart or resumable, got {kind!r}")
        name = query.get("name") or str(properties.get("name", ""))
        return self._finish_upload(request, bucket, name, data, properties, query)

    def _finish_upload(
        self,
        request: Request,
        bucket: str,
        name: str,
        data: bytes,
        properties: Mapping[str, Any],
        query: Mapping[str, str],
    ) -> Response:
        expected = {"crc32c": properties.get("crc32c"), "md5": properties.get("md5Hash")}
        for part in request.headers.get("X-Goog-Hash", "").split(","):
            kind, _, value = part.strip().partition("=")
            expected[kind] = expected.get(kind) or value
        draft = StoredObject(bucket, name, data, 0, 0, 0.0, 0.0, {})
        for kind, value in draft.hashes.items():
            if expected.get(kind) and expected[kind] != value:
                raise ApiError(400, f"Provided {kind} {expected[kind]!r} does not match the calculated {value!r}.")
        return self._show(self._store.write(bucket, name, data, properties, query, now=request.time))

    def _start_upload(self, request: Request, bucket: str) -> Response:
        properties = dict(request.json())
        properties.setdefault("contentType", request.headers.get("X-Upload-Content-Type"))
        name = request.query.get("name") or str(properties.get("name", ""))
        check(self._store.bucket(bucket).get(name), request.query)
        upload_id = f"upload-{next(self._session_numbers)}"
        self._sessions[upload_id] = _Session(bucket, name, properties, request.query)
        location = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        return Response(200, b"", {"Location": location, "X-GUploader-UploadID": upload_id})

    def _continue_upload(self, request: Request, upload_id: str) -> Response:
        """Add a chunk to a resumable upload, or answer with the range received so far."""
        session = self._sessions.get(upload_id)
        if session is None:
            raise ApiError(404, f"No such upload: {upload_id}")
        if request.method == "DELETE":
            del self._sessions[upload_id]
            return Response(499)
        if session.finished:
            return self._show(session.finished)
        size = len(request.body)
        given = request.headers.get("Content-Range", f"bytes 0-{size - 1}/{size}" if size else "bytes */0")
        parsed = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", given)
        if parsed is None:
            raise ApiError(400, f"Invalid Content-Range: {given}")
        first, last, total = parsed.groups()
        if first is not None:
            is_last = total != "*" and int(last) + 1 == int(total)
            self._take_chunk(session, int(first), request.body, is_last=is_last)
        if total == "*" or len(session.received) < int(total):
            arrived = len(session.received)
            return Response(308, b"", {"Range": f"bytes=0-{arrived - 1}"} if arrived else {})
        answer = self._finish_upload(
            request, session.bucket, session.name, bytes(session.received), session.properties, session.query
        )
        session.finished = self._store.buckets[session.bucket][session.name]
        return answer

    def _take_chunk(self, session: _Session, first: int, data: bytes, *, is_last: bool) -> None:
        missing = len(session.received) - first
        if missing < 0:
            raise ApiError(400, f"The chunk starts at {first}, but only {len(session.received)} bytes arrived before")
        session.received += data[missing:]
        if not is_last:  # Like the real server, keep multiples of 256 KiB only.
            del session.received[len(session.received) // _CHUNK_BYTES * _CHUNK_BYTES :]
