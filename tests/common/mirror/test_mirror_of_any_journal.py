"""Mirrors of arbitrary journals: they have the entries that a reader of the journal finds, each once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.guard import Counters
from ml_diagnostics_common.journal import Header, list_segments, log_directory, log_folder_name
from ml_diagnostics_common.journal._layout import encode_header, segment_name
from ml_diagnostics_common.mirror import _journal_lines
from ml_diagnostics_common.mirror._bucket import Bucket
from ml_diagnostics_common.mirror._notes import notes_folder
from ml_diagnostics_common.mirror._upload import Upload

from ..journals import LOG, read_all
from .mirrors import identities, objects, raw_identities, read_mirror

DAY_NS = 86_400 * 10**9
TIMES = st.one_of(
    st.integers(1_763_700_000 * 10**9, 1_763_700_000 * 10**9 + 2 * DAY_NS),
    st.sampled_from([0, -1, 2**63 - 1, DAY_NS - 1, DAY_NS, 4 * 10**20, -7 * 10**19, -(10**30)]),
)
JUNK = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from(
        [b"\0\0\0", b"{}", b"[1]", b'{"t":1,"s":2}', b'{"t":"1","s":2,"p":{}}', b'{"t":1,"s":2,"p":{"a":1}', b"["]
    ),
)


def journal_of(root: Path, parts: list[list[tuple[bool, int, bytes]]], late: set[int]) -> None:
    """Write segments of one writer: entries at some times, and junk; each list is a segment.

    Args:
        root: The diagnostics folder.
        parts: For each line whether it is an entry, its time, and its junk.
        late: The lines that a slow thread wrote one line late.
    """
    folder = log_directory(root, LOG)
    folder.mkdir(parents=True, exist_ok=True)
    sequence = 10**11
    for number, lines in enumerate(parts):
        written = []
        for is_entry, time_ns, junk in lines:
            if is_entry:
                written.append(b'\n{"t":%d,"s":%d,"p":{"n":"%s"}}' % (time_ns, sequence, b"x" * (len(junk) % 7)))
                sequence += 1
            else:
                written.append(b"\n" + junk)
        for index in sorted(late):
            written[index : index + 2] = reversed(written[index : index + 2])
        data = encode_header(Header(LOG, "w-1-1-0")) + b"".join(written)
        (folder / segment_name("w-1-1-0", number)).write_bytes(data)


@given(
    parts=st.lists(st.lists(st.tuples(st.booleans(), TIMES, JUNK), max_size=30), min_size=1, max_size=3),
    piece_bytes=st.sampled_from([64, 300, 2**18]),
    object_bytes=st.sampled_from([1, 200, 10**6]),
    calls_each=st.integers(1, 4),
    late=st.sets(st.integers(0, 30), max_size=5),
    keeps_notes=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_the_mirror_of_any_journal_has_its_entries_once(
    parts: list[list[tuple[bool, int, bytes]]],
    piece_bytes: int,
    object_bytes: int,
    calls_each: int,
    late: set[int],
    keeps_notes: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, mirror = Path(folder, "root"), str(Path(folder, "mirror"))
        journal_of(root, parts, late)
        usual = _journal_lines._PIECE_BYTES
        _journal_lines._PIECE_BYTES = piece_bytes
        try:
            mirror_all(root, mirror, object_bytes, calls_each, keeps_notes=keeps_notes)
        finally:
            _journal_lines._PIECE_BYTES = usual
        expected = read_all(root)
        assert identities(read_mirror(mirror)) == sorted(identities(expected))
        found = raw_identities(mirror)
        assert {*found} == {entry.insert_id for entry in expected}
        # A late line may be twice in the mirror if there is no note, and once for readers.
        assert len(found) == len(expected) or (late and not keeps_notes)
        for name in objects(mirror):
            assert name.first <= name.last


def mirror_all(root: Path, mirror: str, object_bytes: int, calls_each: int, *, keeps_notes: bool) -> None:
    """Write the mirror by several processes, each of which writes some objects and dies, perhaps before its note."""
    folder_name = log_folder_name(LOG)
    for _ in range(1_000):
        upload = Upload.claim(Bucket(mirror), root, folder_name, "w-1-1-0", Counters())
        assert upload is not None
        upload.object_bytes = object_bytes
        upload.recover([name for name in objects(mirror) if name.writer == "w-1-1-0"])
        segments = list_segments(log_directory(root, LOG))
        written = [upload.write_next(segments, ended=True) for _ in range(calls_each)]
        upload.release()
        if not keeps_notes:
            (notes_folder(root, folder_name) / "w-1-1-0.json").unlink(missing_ok=True)
        if written[-1] is None:
            return
    raise AssertionError("the mirror makes no progress")
