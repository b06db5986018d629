"""An exception as plain values: bounded whatever it holds, without values of variables and without secrets."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.raised_exception import (
    describe_exception,
    exception_fields,
    failed_paths,
    message_of,
    raised_from_json,
)


def _raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _raise(error: BaseException) -> None:
    raise error


class _Waiting:
    """An array that is not computed yet: to print it would wait for ever."""

    shape, dtype = (2, 3), "float32"

    def __str__(self) -> str:
        raise AssertionError("it was asked for its values")

    __repr__ = __str__


def test_an_array_in_an_exception_is_not_asked_for_its_values() -> None:
    assert message_of(ValueError("bad batch", _Waiting())) == "bad batch, <_Waiting shape=(2, 3) dtype=float32>"
    assert message_of(ValueError(_Waiting())) == "<_Waiting shape=(2, 3) dtype=float32>"


def test_a_message_that_cannot_be_made_is_none() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert message_of(BrokenError("x")) == ""
    assert describe_exception(BrokenError("x"))[0].title == "BrokenError"


def test_messages_are_one_line_without_secrets_and_control_characters() -> None:
    assert message_of(OSError("a\n  password=hunter2\x1b[2J")) == "a password=[REDACTED]"
    assert len(message_of(ValueError("word " * 10_000))) < 600


def test_the_number_and_the_file_of_a_failed_call_are_kept() -> None:
    raised = describe_exception(_raised(lambda: Path("/nonexistent/checkpoints").touch()))
    fields = exception_fields(raised)
    assert (fields["errno"], fields["filename"]) == (errno.ENOENT, "/nonexistent/checkpoints")
    assert "test_raised_exception.py" in " ".join(fields["exception_frames"])
    assert failed_paths(raised) == ["/nonexistent/checkpoints"]
    assert raised_from_json(json.loads(json.dumps(raised[0].to_json()))) == raised[0]


def test_an_error_of_a_disk_without_a_file_is_about_the_folders_where_it_is_likely(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", "/scratch")
    monkeypatch.chdir(tmp_path)
    full = OSError(errno.ENOSPC, "No space left on device")
    for error in (full, OSError("600000 requested and 262112 written"), RuntimeError("No space left on device")):
        assert failed_paths(describe_exception(error)) == [str(tmp_path), "/scratch"]
    wrapped = RuntimeError("the save failed")
    wrapped.__cause__ = full
    fields = exception_fields(describe_exception(wrapped))
    assert (fields["exception_text"], fields["exception_causes"]) == ("the save failed", ["OSError"])
    assert fields["errno"] == errno.ENOSPC


def test_other_errors_are_about_no_file() -> None:
    for error in (ValueError("bad"), ConnectionResetError(errno.ECONNRESET, "reset"), OSError(2, "x", 5)):
        assert failed_paths(describe_exception(error)) == []
    assert "filename" not in exception_fields(describe_exception(OSError(2, "x", "gs://bucket/state")))


def test_a_circle_of_causes_ends_and_a_long_chain_is_cut() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert [raised.relation for raised in describe_exception(first)] == ["", "caused by"]
    error: BaseException = ValueError(0)
    for number in range(1, 100):
        following = ValueError(number)
        following.__context__ = error
        error = following
    assert [raised.message for raised in describe_exception(error)] == [str(number) for number in range(99, 91, -1)]


def test_a_context_that_was_suppressed_is_left_out() -> None:
    def handle() -> None:
        try:
            _raise(KeyError("hidden"))
        except KeyError:
            raise ValueError("shown") from None

    assert [raised.kind for raised in describe_exception(_raised(handle))] == ["ValueError"]


@given(st.text(), st.text())
def test_what_is_written_is_read_again_and_small(message: str, file: str) -> None:
    class NamedError(Exception):
        pass

    code = compile("raise error", file.replace("\0", ""), "exec")
    error = _raised(lambda: exec(code, {"error": NamedError(message)}))
    (raised,) = describe_exception(error)
    encoded = json.loads(json.dumps(raised.to_json()))
    assert len(json.dumps(encoded)) < 60_000
    again = raised_from_json(encoded)
    assert again is not None
    assert (again.title, again.relation) == (raised.title, raised.relation)
    assert len(again.frames) == len(raised.frames)
    assert again.to_json()["frames"] == encoded["frames"]
    assert "\n" not in again.title


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_anything_else_is_not_read_as_an_exception(encoded: object) -> None:
    assert raised_from_json(encoded) is None
    raised_from_json({"exception": encoded, "relation": encoded, "frames": [encoded]})  # Junk inside raises nothing.
