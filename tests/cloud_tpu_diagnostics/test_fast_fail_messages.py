"""Messages between companions: each is whole, of this job, of this connection, in its turn; all others are refused."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from cloud_tpu_diagnostics._fast_fail.messages import (
    HUB,
    MEMBER,
    MOST_LINE_BYTES,
    Channel,
    Lines,
    RefusedError,
    nonce_in,
    nonce_line,
    short,
)
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause
from hypothesis import example, given
from hypothesis import strategies as st
from ml_diagnostics_common.story import ProcessEnd

TOKEN = bytes(range(32))
NONCE = "ab" * 32
TEXTS = st.text(max_size=2000)


def pair(token: bytes = TOKEN, nonce: str = NONCE) -> tuple[Channel, Channel]:
    return Channel(token, nonce, HUB), Channel(token, nonce, MEMBER)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as refused:
        call()
    return refused.value.reason


@given(st.lists(st.tuples(st.booleans(), st.dictionaries(st.text("abc", min_size=1), TEXTS.map(short), max_size=2))))
def test_all_messages_of_both_sides_arrive_unchanged(messages: list[tuple[bool, dict[str, str]]]) -> None:
    hub, member = pair()
    for is_of_hub, fields in messages:
        sender, receiver = (hub, member) if is_of_hub else (member, hub)
        line = sender.seal("ping", **fields)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert receiver.open(line[:-1]) == {"kind": "ping", **fields}


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_message_with_any_byte_changed_is_refused_or_the_same(position: int, byte: int) -> None:
    hub, member = pair()
    line = bytearray(member.seal("event", event="ended", exit_code=1)[:-1])
    line[position % len(line)] = byte
    try:
        assert hub.open(bytes(line)) == {"kind": "event", "event": "ended", "exit_code": 1}
    except RefusedError:
        pass


def test_a_message_of_another_token_is_refused() -> None:
    hub, _ = pair()
    assert refusal(lambda: hub.open(Channel(b"x" * 32, NONCE, MEMBER).seal("hello")[:-1])) == "token"


def test_a_message_is_refused_on_another_connection_and_a_second_time_and_out_of_its_turn() -> None:
    hub, member = pair()
    lines = [member.seal("ping", number=number)[:-1] for number in range(3)]
    assert hub.open(lines[0])["number"] == 0
    assert refusal(lambda: hub.open(lines[0])) == "sequence"
    assert refusal(lambda: hub.open(lines[2])) == "sequence"
    other, _ = pair(nonce="cd" * 32)
    assert refusal(lambda: other.open(lines[0])) == "token"


def test_a_message_of_the_hub_cannot_be_returned_to_it() -> None:
    hub, _ = pair()
    assert refusal(lambda: hub.open(hub.seal("ping")[:-1])) == "token"


def test_a_recorded_end_of_the_hub_is_refused_by_a_member_that_is_given_the_same_nonce_again() -> None:
    """A program that imitates the hub knows its old nonce and lines, but not the new nonce of the member."""
    hub, _ = pair()
    hub.add_nonce("11" * 32)
    recorded = hub.seal("end", first_cause={}, is_first=False)[:-1]
    _, again = pair()
    again.add_nonce("22" * 32)
    assert refusal(lambda: again.open(recorded)) == "token"


@given(st.binary(max_size=300))
@example(b"[" * 4000)
@example(b'{"code":1,"sequence":0,"content":"{}"}')
@example(b'{"code":"\xc3\xa9","sequence":0,"content":"{}"}')
@example(b'{"code":"a","sequence":true,"content":"{}"}')
@example(b'{"code":"a","sequence":NaN,"content":"{}"}')
@example(b'{"code":"a","sequence":' + b"9" * 4000 + b',"content":"{}"}')
@example(b'{"code":"a","sequence":0,"content":"\\ud800"}')
def test_garbage_is_refused(line: bytes) -> None:
    hub, _ = pair()
    assert refusal(lambda: hub.open(line)) in ("garbage", "token")


@pytest.mark.parametrize("kind", ["run", "exec", "HELLO", ""])
def test_there_are_no_other_kinds_of_messages(kind: str) -> None:
    hub, member = pair()
    assert refusal(lambda: hub.open(member.seal(kind)[:-1])) == "garbage"


@given(st.lists(st.text(string.ascii_letters, max_size=50), min_size=1), st.integers(1, 20))
def test_lines_arrive_whole_however_they_are_cut(texts: list[str], size: int) -> None:
    data = "\n".join(texts).encode() + b"\n"
    lines = Lines()
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert [line.decode() for line in found] == texts


def test_a_line_that_is_too_long_is_refused_before_its_end() -> None:
    lines = Lines()
    assert lines.feed(b"x" * (MOST_LINE_BYTES - 1)) == []
    assert refusal(lambda: lines.feed(b"x")) == "oversize"
    assert refusal(lambda: Lines().feed(b"x" * MOST_LINE_BYTES + b"\n")) == "oversize"


@given(exception=TEXTS, host=TEXTS, message=TEXTS)
@example(exception="\x00" * 2000, host="\U0001f600" * 2000, message='"\\' * 1000)
@example(exception="\ud800" * 2000, host="\n" * 2000, message="é" * 2000)
def test_the_longest_reports_and_decisions_fit_into_a_message(exception: str, host: str, message: str) -> None:
    hub, member = pair()
    end = ProcessEnd("exception", 2**62, exception, "SIGRTMIN+3", 255, was_asked=True)
    hub.open(member.seal("event", number=1, **Event("ended", end, 2**62).to_message())[:-1])
    hub.open(member.seal("ping", **JobState("step", 2**62, 1e9, 1e9, True, message, True, True).to_message())[:-1])
    hub.open(member.seal("hello", nonce=NONCE, **Hello(1, short(host), 2**31, 2**31)._asdict())[:-1])
    cause = FirstCause(
        tuple(range(8)),
        (short(host, 60),) * 8,
        "killed_or_os_exit",
        "SIGRTMIN+3",
        255,
        short(exception),
        2**62,
        "possible",
        2**62,
        short(message),
    )
    opened = member.open(hub.seal("end", first_cause=cause.to_json(), is_first=False)[:-1])
    assert FirstCause.from_json(opened["first_cause"]) == cause


@given(TEXTS, st.integers(20, 500))
def test_a_shortened_text_is_short_also_in_json(text: str, most: int) -> None:
    assert len(json.dumps(short(text, most), ensure_ascii=False).encode()) <= most + 2


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXTS, st.lists, max_leaves=3))
def test_values_of_another_type_are_refused(value: Any) -> None:
    for fields in (Hello._fields, JobState._fields, ("event", *ProcessEnd._fields, "step")):
        for name in fields:
            for kind in (Hello, JobState, Event):
                valid = {"process_index": 1, "event": "ended", name: value}
                try:
                    taken = kind.from_message(valid)
                except RefusedError:
                    continue
                assert_of_declared_types(taken)


def assert_of_declared_types(taken: Any) -> None:
    """Fail for a field with a value that its annotation does not allow; bool is not a number here."""
    for name, declared in get_type_hints(type(taken)).items():
        value = getattr(taken, name)
        if isinstance(value, tuple):
            assert_of_declared_types(value)
        elif isinstance(value, bool):
            assert bool in (declared, *get_args(declared)), (name, value)
        else:
            assert isinstance(value, declared), (name, value)


@given(st.recursive(st.none() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_only_64_hexadecimal_digits_are_a_nonce(value: Any) -> None:
    assert refusal(lambda: nonce_in({"nonce": value})) == "garbage"
    assert nonce_in(nonce_line(NONCE)[:-1]) == NONCE
