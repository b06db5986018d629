"""The buckets and objects of a Cloud Storage: storing, listing and their JSON.

Format: https://cloud.google.com/storage/docs/json_api/v1/objects
"""

import base64
import email
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from ml_diagnostics_testing.http_server import ApiError, Request, Response

_WRITABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "storageClass",
    "temporaryHold",
)


@dataclass(frozen=True)
class StoredObject:
    """One object of a bucket, in one generation.

    Attributes:
        bucket: The bucket's name.
        name: The object's name.
        data: Its content.
        generation: Increases with every write to the name.
        metageneration: Increases with every change of the metadata; 1 after a write.
        created: When this generation was written, in seconds since the epoch.
        updated: When its metadata was last changed, in seconds since the epoch.
        properties: The properties that a writer may set: contentType, metadata, ...
        component_count: The number of objects it was composed of; 0 if it was uploaded.
    """

    bucket: str
    name: str
    data: bytes = field(repr=False)
    generation: int
    metageneration: int
    created: float
    updated: float
    properties: Mapping[str, Any]
    component_count: int = 0

    @property
    def etag(self) -> str:
        """The ETag, which changes with the generation and the metageneration."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    @property
    def hashes(self) -> dict[str, str]:
        """The content's crc32c and md5 in base64; no md5 for a composed object."""
        found = {"crc32c": base64.b64encode(crc32c(self.data).to_bytes(4, "big")).decode()}
        if not self.component_count:
            found["md5"] = base64.b64encode(hashlib.md5(self.data).digest()).decode()
        return found

    def resource(self, url: str) -> dict[str, Any]:
        """Return the object's resource in the JSON API.

        Args:
            url: The base URL of the server.
        """
        path = f"b/{quote(self.bucket, safe='')}/o/{quote(self.name, safe='')}"
        hashes = self.hashes
        shown: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{url}/storage/v1/{path}",
            "mediaLink": f"{url}/download/storage/v1/{path}?generation={self.generation}&alt=media",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "size": str(len(self.data)),
            "crc32c": hashes["crc32c"],
            "etag": self.etag,
            "storageClass": "STANDARD",
            "timeCreated": _rfc3339(self.created),
            "timeFinalized": _rfc3339(self.created),
            "timeStorageClassUpdated": _rfc3339(self.created),
            "updated": _rfc3339(self.updated),
        }
        if "md5" in hashes:
            shown["md5Hash"] = hashes["md5"]
        if self.component_count:
            shown["componentCount"] = self.component_count
        return shown | dict(self.properties)

    def headers(self) -> dict[str, str]:
        """Return the headers of a download."""
        headers = {
            "Content-Type": str(self.properties.get("contentType", "application/octet-stream")),
            "ETag": self.etag,
            "X-Goog-Generation": str(self.generation),
            "X-Goog-Metageneration": str(self.metageneration),
            "X-Goog-Hash": ",".join(f"{name}={value}" for name, value in self.hashes.items()),
            "X-Goog-Stored-Content-Length": str(len(self.data)),
            "X-Goog-Stored-Content-Encoding": str(self.properties.get("contentEncoding", "identity")),
            "X-Goog-Storage-Class": "STANDARD",
        }
        if "contentEncoding" in self.properties:
            headers["Content-Encoding"] = str(self.properties["contentEncoding"])
        return headers


class ObjectStore:
    """All buckets of one server. Hold `lock` around steps that must be atomic."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, StoredObject]] = {}
        self.lock = threading.RLock()
        self._last_generation = 0

    def bucket(self, name: str) -> dict[str, StoredObject]:
        """Return the objects of a bucket by name."""
        if name not in self.buckets:
            raise ApiError(404, f"The specified bucket does not exist: {name}")
        return self.buckets[name]

    def find(self, bucket: str, name: str, conditions: Mapping[str, str], *, source: bool = False) -> StoredObject:
        """Return the live object, if it exists and the request's preconditions hold.

        Args:
            bucket: The bucket's name.
            name: The object's name.
            conditions: The query parameters: generation, ifGenerationMatch, ...
            source: Check the conditions on the source of a copy instead: sourceGeneration, ifSourceGenerationMatch, ...
        """
        found = self.bucket(bucket).get(name)
        wanted = conditions.get("sourceGeneration" if source else "generation")
        if found is None or (wanted and int(wanted) != found.generation):
            raise ApiError(404, f"No such object: {bucket}/{name}")
        check(found, conditions, "Source" if source else "")
        return found

    def write(
        self,
        bucket: str,
        name: str,
        data: bytes,
        properties: Mapping[str, Any],
        conditions: Mapping[str, str],
        *,
        now: float,
        component_count: int = 0,
    ) -> StoredObject:
        """Write a new generation, if the request's preconditions hold.

        Args:
            bucket: The bucket's name.
            name: The object's name.
            data: Its content.
            properties: A resource; properties that a writer may not set are ignored.
            conditions: The query parameters: ifGenerationMatch, ...
            now: The server's time, in seconds since the epoch.
            component_count: The number of objects it is composed of.
        """
        if not name or len(name.encode()) > 1024 or re.search(r"[\r\n]", name) or name in (".", ".."):
            raise ApiError(400, f"Invalid object name: {name!r}")
        with self.lock:
            objects = self.bucket(bucket)
            check(objects.get(name), conditions)
            self._last_generation = max(self._last_generation + 1, int(now * 1e6))
            stored = StoredObject(
                bucket, name, data, self._last_generation, 1, now, now, writable(properties), component_count
            )
            objects[name] = stored
            return stored

    def change(self, found: StoredObject, properties: Mapping[str, Any], *, now: float) -> StoredObject:
        """Replace an object's metadata."""
        with self.lock:
            changed = replace(
                found,
                metageneration=found.metageneration + 1,
                updated=now,
                properties=writable(properties),
            )
            self.bucket(found.bucket)[found.name] = changed
            return changed


def check(found: StoredObject | None, conditions: Mapping[str, str], of: str = "", *, reading: bool = False) -> None:
    """Reject a request if its preconditions fail: with 412, or with 304 if a reader already has this generation."""
    state = {
        "Generation": found.generation if found else 0,
        "Metageneration": found.metageneration if found else -1,
    }
    for what, value in state.items():
        match, no_match = conditions.get(f"if{of}{what}Match"), conditions.get(f"if{of}{what}NotMatch")
        if match is not None and _number(match) != value:
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.")
        if no_match is not None and _number(no_match) == value:
            raise ApiError(304 if reading else 412, "At least one of the pre-conditions you specified did not hold.")


def writable(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a resource that a writer may set, without null values."""
    return {key: properties[key] for key in _WRITABLE if properties.get(key) is not None}


@dataclass(frozen=True)
class Page:
    """One page of a listing."""

    items: list[StoredObject]
    prefixes: list[str]
    next_token: str | None


def list_page(objects: Mapping[str, StoredObject], query: Mapping[str, str]) -> Page:
    """Return a page of objects in the byte order of their names, like `objects.list`."""
    limit = min(_number(query.get("maxResults") or "1000"), 1000) or 1000
    after = base64.urlsafe_b64decode(query["pageToken"]).decode() if query.get("pageToken") else None
    page = Page([], [], None)
    last = ""
    for name, is_prefix in _entries(sorted(objects, key=str.encode), query):
        if after is not None and name.encode() <= after.encode():
            continue
        if len(page.items) + len(page.prefixes) == limit:
            return replace(page, next_token=base64.urlsafe_b64encode(last.encode()).decode())
        if is_prefix:
            page.prefixes.append(name)
        else:
            page.items.append(objects[name])
        last = name
    return page


def _entries(names: list[str], query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield each name, or for all names in one folder the folder's prefix once, and True for a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    start, end = query.get("startOffset", "").encode(), query.get("endOffset", "").encode()
    glob = re.compile(_glob_pattern(query["matchGlob"])) if query.get("matchGlob") else None
    last_prefix = None
    for name in names:
        if not name.startswith(prefix) or name.encode() < start or (end and name.encode() >= end):
            continue
        if glob and not glob.fullmatch(name):
            continue
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            yield name, False
            continue
        folder = name[: cut + len(delimiter)]
        if folder != last_prefix:
            yield folder, True
            last_prefix = folder
        if folder == name and query.get("includeTrailingDelimiter") == "true":
            yield name, False


def _glob_pattern(glob: str) -> str:
    """Convert a `matchGlob` to a regular expression: `**/` any folders, `*` and `?` within one, `[..]`, `{a,b}`."""
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    found = re.findall(r"\*\*/|\*\*|\*|\?|\{|\}|,|\[[^\]]+\]|.", glob, re.DOTALL)
    return "".join(tokens.get(part) or (part if part[0] == "[" else re.escape(part)) for part in found)


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum of RFC 3720, computed by google-crc32c if it is installed."""
    try:
        import google_crc32c
    except ImportError:
        value = 0xFFFFFFFF
        for byte in data:
            value = (value >> 8) ^ _CRC_TABLE[(value ^ byte) & 0xFF]
        return value ^ 0xFFFFFFFF
    return int(google_crc32c.value(data))


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC_TABLE = tuple(_crc_of_byte(value) for value in range(256))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, f"Invalid value: {text!r} is not a number") from None


def _rfc3339(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def media_response(found: StoredObject, range_header: str | None) -> Response:
    """Return the download of an object, or of the requested range."""
    size = len(found.data)
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", (range_header or "").strip())
    if not asked or not any(asked.groups()):
        return Response(200, found.data, {**found.headers(), "Accept-Ranges": "bytes"})
    first, last = asked.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start >= size or end < start:
        raise ApiError(416, f"The requested range cannot be satisfied: {range_header} of {size} bytes")
    headers = {**found.headers(), "Content-Range": f"bytes {start}-{end}/{size}"}
    return Response(206, found.data[start : end + 1], headers)


def parse_multipart(request: Request) -> tuple[dict[str, Any], bytes]:
    """Return the metadata and the content of a multipart/related upload with CRLF or bare LF line ends."""
    boundary = request.headers.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise ApiError(400, "expected a multipart upload, got a Content-Type without a boundary")
    mark = b"--" + boundary.strip("'\"").encode()
    body = request.body[max(request.body.find(mark), 0) :].removeprefix(mark)
    line_end = b"\r\n" if body.startswith(b"\r\n") else b"\n"
    metadata, _, content = body.partition(line_end + mark + line_end)
    content, end, _ = content.rpartition(line_end + mark + b"--")
    head, blank, data = content.partition(line_end * 2)
    if not end or not blank:
        raise ApiError(400, "expected a multipart upload of two parts, each with headers and a blank line")
    try:
        properties = dict(json.loads(metadata.partition(line_end * 2)[2] or b"{}"))
    except ValueError as error:
        raise ApiError(400, f"the metadata is not JSON: {error}") from None
    properties.setdefault("contentType", email.message_from_bytes(head).get("Content-Type"))
    return properties, data


def show_bucket(name: str) -> dict[str, Any]:
    """Return a bucket's resource in the JSON API."""
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "US",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "etag": "CAE=",
    }
