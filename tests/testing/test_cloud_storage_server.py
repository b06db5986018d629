"""The loopback Cloud Storage works with the real google-cloud-storage client."""

import base64
import hashlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import google_crc32c
import pytest
import requests
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed, ServiceUnavailable
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_testing import _storage_objects as storage_objects
from ml_diagnostics_testing.cloud_storage import CloudStorageServer
from ml_diagnostics_testing.faults import Reset, Skew, Status, Truncate

KIB = 1024


@pytest.fixture
def server() -> Iterator[Any]:
    with CloudStorageServer(buckets=["b", "other"]) as server:
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": server.url}
    )
    client._bucket_metadata_cache = None  # Else a thread of the client asks for the bucket, sooner or later.
    yield client
    client.close()


@pytest.fixture
def bucket(client: Any) -> Any:
    return client.bucket("b")


def http(server: Any, method: Any, path: Any, body: Any = b"", **headers: Any) -> Any:
    """One request by hand, for what the client cannot be made to send."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.url + path, data=body or None, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read(), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


# --- Uploads and downloads ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"hello", b"\r\n--\r\n\r", bytes(range(256)) * 5000])
def test_what_is_uploaded_is_downloaded(server: Any, bucket: Any, data: Any) -> None:
    blob = bucket.blob("folder/a name with ünicode?#%")
    blob.upload_from_string(data, content_type="application/x-test")
    assert server.read("b", blob.name) == data
    again = bucket.get_blob(blob.name)
    assert again.download_as_bytes(checksum="crc32c") == data
    assert again.download_as_bytes(checksum="md5") == data
    assert (again.size, again.content_type) == (len(data), "application/x-test")


@pytest.mark.parametrize("size", [0, 1, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 700 * KIB])
def test_a_resumable_upload_arrives_whole(server: Any, bucket: Any, size: Any) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    blob = bucket.blob("big", chunk_size=256 * KIB)
    with blob.open("wb", chunk_size=256 * KIB) as file:
        file.write(data)
    assert server.read("b", "big") == data


@pytest.mark.parametrize("fault", [Status(503), Status(503, after_apply=True), Reset(), Reset(after_apply=True)])
def test_a_resumable_upload_goes_on_after_a_fault(server: Any, bucket: Any, fault: Any) -> None:
    server.faults.script([None, None, fault], on="upload")
    data = b"x" * (600 * KIB)
    blob = bucket.blob("big", chunk_size=256 * KIB)
    with blob.open("wb", chunk_size=256 * KIB, if_generation_match=0) as file:
        file.write(data)
    assert server.read("b", "big") == data
    assert len(server.faults.injected) == 1


def test_a_plain_media_upload_is_taken(server: Any) -> None:
    status, body, _ = http(
        server, "POST", "/upload/storage/v1/b/b/o?uploadType=media&name=a%2Fb", b"data", Content_Type="text/plain"
    )
    assert (status, json.loads(body)["contentType"]) == (200, "text/plain")
    assert server.read("b", "a/b") == b"data"


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_a_multipart_upload_may_end_its_lines_with_lf(server: Any, line_end: str) -> None:
    lines = ["--==x==", "Content-Type: application/json", "", '{"name": "n", "metadata": {"k": "v"}}']
    lines += ["--==x==", "Content-Type: text/plain", "", "data\r", "--==x==--"]
    body = line_end.join(lines).encode()
    path = "/upload/storage/v1/b/b/o?uploadType=multipart"
    status, answer, _ = http(server, "POST", path, body, Content_Type='multipart/related; boundary="==x=="')
    assert (status, json.loads(answer)["metadata"]) == (200, {"k": "v"})
    assert server.read("b", "n") == b"data\r"


@pytest.mark.parametrize(
    "body", [b"", b"junk", b"--x\r\n\r\n{}\r\n--x\r\n", b"--x\r\n\r\nnot json\r\n--x\r\na: b\r\n\r\n\r\n--x--"]
)
def test_a_broken_multipart_upload_is_refused(server: Any, body: Any) -> None:
    path = "/upload/storage/v1/b/b/o?uploadType=multipart"
    assert http(server, "POST", path, body or b" ", Content_Type="multipart/related; boundary=x")[0] == 400


def test_an_upload_with_a_wrong_checksum_is_refused(server: Any, bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.md5_hash = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with pytest.raises(BadRequest, match="does not match"):
        blob.upload_from_string(b"data")
    assert server.names("b") == []


def test_checksums_and_etag_are_right(server: Any, bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"hello")
    assert blob.crc32c == base64.b64encode(google_crc32c.value(b"hello").to_bytes(4, "big")).decode()
    assert blob.md5_hash == base64.b64encode(hashlib.md5(b"hello").digest()).decode()
    etag = blob.etag
    blob.metadata = {"k": "v"}
    blob.patch()
    assert etag
    assert blob.etag != etag
    assert http(server, "GET", "/storage/v1/b/b/o/x?alt=media")[2]["ETag"] == blob.etag


def test_crc32c_without_the_c_library_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    assert storage_objects.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(("start", "end"), [(0, 0), (2, 5), (5, None), (0, 100), (9, 9)])
def test_a_range_is_downloaded(bucket: Any, start: int, end: int | None) -> None:
    data = b"0123456789"
    blob = bucket.blob("x")
    blob.upload_from_string(data)
    assert blob.download_as_bytes(start=start, end=end) == data[start : None if end is None else end + 1]


def test_the_end_of_an_object_is_downloaded_and_what_lies_beyond_it_is_refused(server: Any) -> None:
    server.write("b", "x", b"0123456789")
    path = "/storage/v1/b/b/o/x?alt=media"
    assert http(server, "GET", path, Range="bytes=-3")[:2] == (206, b"789")
    assert http(server, "GET", path, Range="bytes=2-3")[2]["Content-Range"] == "bytes 2-3/10"
    assert http(server, "GET", path, Range="bytes=10-")[0] == 416


def test_a_download_that_was_cut_is_noticed(server: Any, bucket: Any) -> None:
    server.write("b", "x", b"0123456789" * 100)
    server.faults.script([Truncate(5)], on="read")
    assert bucket.blob("x").download_as_bytes() == b"0123456789" * 100
    server.faults.always(Truncate(5), on="read")
    with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
        bucket.blob("x").download_as_bytes(retry=None)


# --- Preconditions ------------------------------------------------------------------------------------


def test_an_object_is_created_only_once(server: Any, bucket: Any) -> None:
    bucket.blob("x").upload_from_string(b"1", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").upload_from_string(b"2", if_generation_match=0)
    assert server.read("b", "x") == b"1"


def test_of_many_clients_that_create_an_object_one_wins(server: Any, client: Any) -> None:
    won = []

    def create(name: Any) -> None:
        try:
            client.bucket("b").blob("x").upload_from_string(name, if_generation_match=0)
            won.append(name)
        except PreconditionFailed:
            pass

    threads = [threading.Thread(target=create, args=(f"{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.read("b", "x").decode() == won[0]
    assert len(won) == 1


CHANGES = {
    "upload": lambda blob, **when: blob.upload_from_string(b"2", **when),
    "resumable": lambda blob, **when: blob.create_resumable_upload_session(size=3, **when),
    "delete": lambda blob, **when: blob.delete(**when),
    "compose": lambda blob, **when: blob.compose([blob], **when),
    "rewrite": lambda blob, **when: blob.rewrite(blob, **when),
    "patch": lambda blob, **when: blob.patch(**when),
    "get": lambda blob, **when: blob.reload(**when),
    "read": lambda blob, **when: blob.download_as_bytes(**when),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("what", ["generation", "metageneration"])
def test_every_request_minds_its_preconditions(bucket: Any, change: Any, what: str) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"1")
    right = getattr(blob, what)
    with pytest.raises(PreconditionFailed):
        change(blob, **{f"if_{what}_match": right + 1})
    change(blob, **{f"if_{what}_match": right})


def test_a_negative_precondition_is_412_for_a_change_and_304_for_a_read(server: Any, bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"1")
    for change in ("upload", "delete"):
        with pytest.raises(PreconditionFailed):
            CHANGES[change](blob, if_generation_not_match=blob.generation)
    path = f"/storage/v1/b/b/o/x?ifGenerationNotMatch={blob.generation}"
    assert http(server, "GET", path)[0] == 304
    blob.reload(if_generation_not_match=blob.generation + 1)


def test_the_source_of_a_copy_and_of_a_compose_has_preconditions_too(bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.upload_from_string(b"1")
    with pytest.raises(PreconditionFailed):
        bucket.blob("y").rewrite(blob, if_source_generation_match=blob.generation + 1)
    with pytest.raises(PreconditionFailed):
        bucket.blob("y").compose([blob], if_source_generation_match=[blob.generation + 1])
    bucket.blob("y").compose([blob], if_source_generation_match=[blob.generation])


def test_an_old_generation_is_gone(bucket: Any) -> None:
    old = bucket.blob("x")
    old.upload_from_string(b"1")
    bucket.blob("x").upload_from_string(b"2")
    assert bucket.get_blob("x").generation > old.generation
    with pytest.raises(NotFound):
        bucket.blob("x", generation=old.generation).download_as_bytes()


# --- Other requests -----------------------------------------------------------------------------------


def test_compose_joins_objects_without_an_md5(server: Any, bucket: Any) -> None:
    parts = [bucket.blob(f"part{number}") for number in range(3)]
    for number, part in enumerate(parts):
        part.upload_from_string(f"{number}", content_type="text/x")
    whole = bucket.blob("whole")
    whole.compose(parts)
    assert whole.download_as_bytes() == b"012"
    assert (whole.component_count, whole.md5_hash, whole.content_type) == (3, None, "text/x")
    with pytest.raises(NotFound):
        whole.compose([bucket.blob("missing")])
    with pytest.raises(BadRequest):
        whole.compose([parts[0]] * 33)


def test_an_object_is_copied_into_another_bucket(server: Any, client: Any, bucket: Any) -> None:
    blob = bucket.blob("a/x")
    blob.metadata = {"k": "v"}
    blob.upload_from_string(b"1", content_type="text/x")
    copied = bucket.copy_blob(blob, client.bucket("other"), "b/y")
    assert (copied.content_type, copied.metadata) == ("text/x", {"k": "v"})
    target = client.bucket("other").blob("z")
    assert target.rewrite(blob) == (None, 1, 1)
    assert server.names("other") == ["b/y", "z"]


def test_metadata_is_patched_key_by_key(bucket: Any) -> None:
    blob = bucket.blob("x")
    blob.metadata = {"keep": "1", "drop": "2"}
    blob.upload_from_string(b"1")
    blob.metadata = {"drop": None, "new": "3"}
    blob.cache_control = "no-cache"
    blob.patch()
    again = bucket.get_blob("x")
    assert again.metadata == {"keep": "1", "new": "3"}
    assert (again.cache_control, again.metageneration) == ("no-cache", 2)


def test_what_is_not_there_is_a_404(client: Any, bucket: Any) -> None:
    assert not bucket.blob("x").exists()
    for request in (bucket.blob("x").delete, bucket.blob("x").download_as_bytes, client.bucket("none").reload):
        with pytest.raises(NotFound):
            request()
    with pytest.raises(NotFound):
        client.bucket("none").blob("x").upload_from_string("1")


def test_buckets_are_created_and_deleted(server: Any, client: Any) -> None:
    client.create_bucket("new")
    assert "new" in [bucket.name for bucket in client.list_buckets()]
    server.write("new", "x", b"")
    with pytest.raises(Conflict):
        client.bucket("new").delete()
    client.bucket("new").delete_blob("x")
    client.bucket("new").delete()
    with pytest.raises(NotFound):
        client.get_bucket("new")


def test_a_batch_deletes_existing_objects_and_reports_missing_ones(server: Any, client: Any, bucket: Any) -> None:
    for name in "abc":
        server.write("b", name, b"")
    with client.batch():
        for name in "ab":
            bucket.blob(name).delete()
    assert server.names("b") == ["c"]

    with client.batch():
        bucket.blob("c").delete()
    with pytest.raises(NotFound), client.batch():
        bucket.blob("missing").delete()
    assert server.names("b") == []


# --- Lists --------------------------------------------------------------------------------------------

NAMES = ["a", "a/", "a/1", "a/2", "a/b/1", "b", "b.txt", "c/x.txt", "c/y.log", "é", "z"]


@pytest.fixture
def listed(server: Any, bucket: Any) -> Any:
    for name in NAMES:
        server.write("b", name, b"")
    return bucket


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
def test_a_list_has_pages(server: Any, client: Any, listed: Any, page_size: int) -> None:
    assert [blob.name for blob in client.list_blobs(listed, page_size=page_size)] == sorted(NAMES, key=str.encode)
    assert len(server.requests_for("list")) == -(-len(NAMES) // page_size)


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_a_delimiter_folds_folders(client: Any, listed: Any, page_size: int) -> None:
    found = client.list_blobs(listed, delimiter="/", page_size=page_size)
    assert [blob.name for blob in found] == ["a", "b", "b.txt", "z", "é"]
    assert found.prefixes == {"a/", "c/"}
    found = listed.list_blobs(prefix="a/", delimiter="/", include_trailing_delimiter=True)
    assert [blob.name for blob in found] == ["a/", "a/1", "a/2"]
    assert found.prefixes == {"a/b/"}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"prefix": "a/"}, ["a/", "a/1", "a/2", "a/b/1"]),
        ({"start_offset": "b", "end_offset": "c/y.log"}, ["b", "b.txt", "c/x.txt"]),
        ({"match_glob": "**.txt"}, ["b.txt", "c/x.txt"]),
        ({"match_glob": "*.txt"}, ["b.txt"]),
        ({"match_glob": "**/[xy].{txt,log}"}, ["c/x.txt", "c/y.log"]),
        ({"match_glob": "?"}, ["a", "b", "z", "é"]),
        ({"prefix": "none"}, []),
    ],
)
def test_a_list_is_narrowed(listed: Any, query: Any, names: Any) -> None:
    assert [blob.name for blob in listed.list_blobs(**query)] == names


@given(
    st.sets(st.text("a/b", min_size=1, max_size=5), max_size=12), st.integers(1, 5), st.sampled_from(["", "a", "a/"])
)
@settings(deadline=None)
def test_paging_neither_loses_nor_repeats(names: Any, page_size: Any, prefix: Any) -> None:
    objects: dict[str, Any] = dict.fromkeys(names)
    query = {"delimiter": "/", "prefix": prefix}
    whole = storage_objects.list_page(objects, query)
    paged: list[str] = []
    token: str | None = ""
    while token is not None:
        page = storage_objects.list_page(objects, {**query, "maxResults": str(page_size), "pageToken": token})
        paged += page.prefixes
        token = page.next_token
    assert paged == whole.prefixes
    folders = {
        name[: name.index("/", len(prefix)) + 1]
        for name in names
        if name.startswith(prefix) and "/" in name[len(prefix) :]
    }
    assert whole.prefixes == sorted(folders)


# --- Faults, and the variables ------------------------------------------------------------------------


def test_a_fault_hits_the_operation_that_it_was_meant_for(server: Any, bucket: Any) -> None:
    server.faults.always(Status(503), on="delete")
    bucket.blob("x").upload_from_string(b"1")
    assert bucket.blob("x").download_as_bytes() == b"1"
    with pytest.raises(ServiceUnavailable):
        bucket.blob("x").delete(retry=None)
    assert server.names("b") == ["x"]


def test_a_skewed_clock_shows_in_the_times_that_the_server_assigns(bucket: Any, server: Any) -> None:
    server.faults.always(Skew(-86400), on="upload")
    bucket.blob("x").upload_from_string(b"1")
    assert -86500 < server.stored("b", "x").created - server.clock() < -86300


def test_the_variables_bring_an_unchanged_client_here(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = storage.Client()
    client._bucket_metadata_cache = None
    client.bucket("b").blob("x").upload_from_string(b"1")
    client.close()
    assert server.read("b", "x") == b"1"
    assert server.stored("b", "x").metageneration == 1


def test_an_unsupported_request_is_refused_with_its_name(server: Any) -> None:
    assert http(server, "GET", "/storage/v1/b/b/acl")[0] == 501
    assert http(server, "GET", "/elsewhere")[0] == 404
    assert http(server, "PUT", "/upload/storage/v1/b/b/o?upload_id=none", b"x")[0] == 404
    assert http(server, "POST", "/upload/storage/v1/b/b/o?uploadType=odd", b"x")[0] == 400


def test_the_state_of_the_server_never_contains_an_unfinished_request(server: Any) -> None:
    server.write("b", "x", b"data")
    reads = [
        lambda: server.names("b"),
        lambda: server.read("b", "x"),
        lambda: server.stored("b", "x"),
        lambda: server.write("b", "y", b""),
        lambda: server.create_bucket("c"),
        lambda: server.delete("b", "x"),
    ]
    for read in reads:
        thread = threading.Thread(target=read)
        with server._store.lock:  # As a request that is being served.
            thread.start()
            thread.join(0.05)
            assert thread.is_alive()
        thread.join(10)
        assert not thread.is_alive()
