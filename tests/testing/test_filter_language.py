"""The Logging query language, as its documentation says and as the libraries use it."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_testing.cloud_logging._entries import Entry, make_entry, parse_timestamp
from ml_diagnostics_testing.cloud_logging._filters import MAX_FILTER_CHARACTERS, compile_filter, fold
from ml_diagnostics_testing.http_server import ApiError

NOW_NS = parse_timestamp("2026-11-21T12:00:00Z")
FIELDS: dict[str, Any] = {
    "logName": "projects/p/logs/goodput_run%2Fone",
    "timestamp": "2026-11-21T10:00:00.000000500Z",
    "severity": "WARNING",
    "insertId": "host-1-00000000042",
    "resource": {"type": "gce_instance", "labels": {"zone": "us-central2-b"}},
    "labels": {"writer": "host-1", "a/b": "slashed"},
    "jsonPayload": {
        "job_name": 'It\'s "J"',
        "step": 7,
        "ratio": -3.5e-2,
        "ok": True,
        "nothing": None,
        "deep": {"er": {"still": "Here"}},
        "sizes": [8.5, 9, 6],
        "people": [{"name": "ann"}, {"name": "bob"}],
        "dotted.key": "dots",
        "straße": "GROẞ",
    },
}


def entry(**changes: Any) -> Entry:
    return make_entry({**FIELDS, **changes}, {}, NOW_NS, "new")


def matches(filter_: str) -> bool:
    return compile_filter(filter_).matches(entry())


@pytest.mark.parametrize(
    "filter_",
    [
        # Each field that the libraries ask for.
        'logName="projects/p/logs/goodput_run%2Fone"',
        'timestamp>="2026-11-21T10:00:00+0000"',  # as the google client writes it
        'timestamp="2026-11-21T10:00:00.0000005Z"',
        'timestamp="2026-11-21T11:00:00.000000500+01:00"',
        'timestamp>"2026-11-21" timestamp<"2026-11-22T00:00:00.5+00:00"',
        "severity=WARNING",
        "severity>=info AND severity<ERROR AND severity!=DEBUG AND severity>300",
        'insertId="host-1-00000000042"',
        'insertId>"host-1-00000000041" AND insertId<="host-1-00000000042"',
        'labels.writer="host-1"',
        'labels."a/b"=slashed',
        "resource.type = gce_instance",
        'resource.labels.zone="us-central2-b"',
        r'jsonPayload.job_name="It\'s \"J\""',
        "jsonPayload.step=7 jsonPayload.step>6.5 jsonPayload.step<=7.0 jsonPayload.step!=8",
        'jsonPayload.step="7"',
        "jsonPayload.ratio=-0.035 AND jsonPayload.ratio<0",
        "jsonPayload.ok=true AND jsonPayload.ok!=FALSE",
        "jsonPayload.nothing=NULL_VALUE",
        "jsonPayload.deep.er.still=Here",
        'jsonPayload."dotted.key"=dots',
        # Strings are compared without regard to case, also beyond ASCII; parts with ':'.
        'jsonPayload.deep.er.still="hERE" AND jsonPayload.deep.er.still:"ER"',
        'jsonPayload.straße="gross"',
        # Regular expressions regard it.
        'jsonPayload.deep.er.still=~"^He.e$" AND jsonPayload.deep.er.still!~"^he"',
        # Lists match by any of their items.
        "jsonPayload.sizes<7 AND jsonPayload.sizes>8.9 AND jsonPayload.people.name=bob",
        # Presence.
        "jsonPayload.step:* AND labels.writer:* AND NOT jsonPayload.absent:* AND NOT textPayload:*",
        # What is missing fails every comparison, even !=; what has a default is compared with it.
        "NOT jsonPayload.absent=1 AND NOT jsonPayload.absent!=1 AND NOT labels.absent!=x",
        'textPayload!="x" AND textPayload=""',
        # Operators: NOT before OR before AND; AND may be left out; minus is NOT.
        "severity=INFO OR severity=WARNING AND jsonPayload.step=7",
        "severity=WARNING OR severity=INFO AND jsonPayload.step=7",
        "severity=WARNING jsonPayload.step=7 NOT severity=INFO -jsonPayload.step=8 -(jsonPayload.step=9)",
        "(severity=WARNING) AND (jsonPayload.step=(6 OR 7)) AND jsonPayload.step=(NOT 6 AND NOT 5)",
        'jsonPayload.job_name:("it" AND "j")',
        'severity=WARNING -- AND severity="INFO"\n AND jsonPayload.step=7',
        # A value alone is searched for everywhere; log_id() takes a log's name decoded.
        '"us-central2" AND slashed AND "42" AND NOT "nowhere"',
        'log_id("goodput_run/one")',
    ],
)
def test_a_filter_passes_what_it_describes(filter_: str) -> None:
    assert matches(filter_)
    assert not matches(f"NOT ({filter_})")


@pytest.mark.parametrize("filter_", ["", "   -- only a comment"])
def test_an_empty_filter_passes_everything(filter_: str) -> None:
    assert matches(filter_)


@pytest.mark.parametrize(
    "filter_",
    [
        'logName="projects/p/logs/another"',
        'timestamp>"2026-11-21T10:00:00.000000500Z"',
        'timestamp<"2026-11-21T10:00:00.000000500Z"',
        "severity=INFO",
        "severity=INFO OR severity=ERROR AND jsonPayload.step=7",
        "jsonPayload.step=7 AND (severity=INFO OR severity=ERROR)",
        "jsonPayload.step=seven",
        "jsonPayload.deep=Here",
        'jsonPayload.deep.er.still=~"^here$"',
        "jsonPayload.nothing=0",
        "jsonPayload.step.deeper=7",
        'log_id("goodput_run%2Fone")',
    ],
)
def test_a_filter_stops_what_it_does_not_describe(filter_: str) -> None:
    assert not matches(filter_)


@pytest.mark.parametrize(
    ("filter_", "why"),
    [
        ("severity=", "missing"),
        ("severity=INFO AND", "missing"),
        ("severity=INFO )", "unexpected"),
        ("(severity=INFO", r"'\)' is missing"),
        ('jsonPayload.a="unclosed', "quotation mark"),
        ("timestamp>yesterday", "RFC 3339"),
        ('timestamp>"2026-13-01T00:00:00Z"', "month"),
        ("severity=LOUD", "not a severity"),
        ('severity="INFO"x', "text beside quotation marks"),
        ("thud=1", "Field not found: 'thud'"),
        ("insertId=abc:def", "position 12"),
        ('jsonPayload.a=~"("', "regular expression"),
        ("sample(insertId, 0.25)", "does not support the function sample"),
        ("(" * 1000, "nested too deeply"),
        ("NOT " * 1000 + "severity=INFO", "nested too deeply"),
        ("x" * (MAX_FILTER_CHARACTERS + 1), "characters"),
    ],
)
def test_a_wrong_filter_is_refused_with_a_reason(filter_: str, why: str) -> None:
    with pytest.raises(ApiError, match=why) as caught:
        compile_filter(filter_)
    assert caught.value.code == 400


def test_the_incremental_filter_of_a_reader_starts_after_its_cursor() -> None:
    filter_ = compile_filter(
        'logName="projects/p/logs/L" AND severity=INFO AND jsonPayload.job_name="J" AND timestamp<="2026-12-01T00:00:00'
        '+00:00" AND (timestamp > "2026-11-21T10:00:00Z" OR (timestamp = "2026-11-21T10:00:00Z" AND insertId > "b"))'
    )

    def passes(timestamp: str, insert_id: str) -> bool:
        changed = {"logName": "projects/p/logs/L", "severity": "INFO", "jsonPayload": {"job_name": "J"}}
        return filter_.matches(entry(**changed, timestamp=timestamp, insertId=insert_id))

    assert passes("2026-11-21T10:00:00Z", "c")
    assert passes("2026-11-21T10:00:01Z", "a")
    assert not passes("2026-11-21T10:00:00Z", "b")
    assert not passes("2026-11-21T09:59:59Z", "c")
    assert not passes("2026-12-01T00:00:01Z", "c")
    assert filter_.earliest_ns == parse_timestamp("2026-11-21T10:00:00Z")
    assert filter_.latest_ns == parse_timestamp("2026-12-01T00:00:00Z")
    assert filter_.log_names == frozenset([fold("projects/p/logs/L")])


def test_thousands_of_comparisons_are_one_filter() -> None:
    text = " OR ".join(f"insertId=x{index}" for index in range(1000))
    assert not compile_filter(text).matches(entry())
    assert compile_filter(text).matches(entry(insertId="x999"))


moments = st.integers(0, 9).map(lambda second: f"2026-11-21T10:00:0{second}Z")
comparisons = st.one_of(
    st.builds("timestamp{}{!r}".format, st.sampled_from(["=", "<", "<=", ">", ">=", "!="]), moments).map(
        lambda text: text.replace("'", '"')
    ),
    st.sampled_from([f'logName="projects/p/logs/{log}"' for log in "aB"]),
    st.sampled_from(["jsonPayload.n=1", "severity=INFO"]),
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=8,
)


@given(expressions, moments, st.sampled_from("ab"), st.sampled_from([{}, {"n": 1}]))
def test_a_filters_span_and_what_is_left_to_test_are_the_filter(
    filter_: str, moment: str, log: str, payload: dict[str, Any]
) -> None:
    """The store reads only the span, and tests only the remaining entries."""
    compiled = compile_filter(filter_)
    candidate = entry(timestamp=moment, logName=f"projects/p/logs/{log}", jsonPayload=payload)
    within = compiled.earliest_ns <= candidate.timestamp_ns <= compiled.latest_ns and (
        compiled.log_names is None or fold(candidate.log_name) in compiled.log_names
    )
    left = all(test(candidate) for test in compiled.tests_within)
    assert compiled.matches(candidate) == (within and left)


@given(st.text(max_size=50).filter(lambda name: not any("\ud800" <= char <= "\udfff" for char in name)))
def test_any_string_can_be_asked_for_in_quotation_marks(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    assert compile_filter(f'jsonPayload.x="{quoted}"').matches(entry(jsonPayload={"x": name}))
    assert compile_filter(f'labels."{quoted}"="v"').matches(entry(labels={name: "v"}))


@given(st.text(alphabet='abAND OR NOT()"\\=<>:~!-*.,19\njsonPayload', max_size=40) | st.text(max_size=40))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    with contextlib.suppress(ApiError):
        assert compile_filter(text).matches(entry()) in (True, False)
