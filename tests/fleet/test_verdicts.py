"""Attempts of runs are joined to those of the ledger by time, and never guessed."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_fleet.verdicts import CLOCKS_NS, cause_rows, host_rows

MINUTE_NS = 60 * 10**9
KEY = {"log": "goodput_job", "job": "job"}


class Judged(NamedTuple):
    """An attempt of a run; times in minutes."""

    start: float
    end: float | None
    rule: str = "C7"
    host: str | None = "tpu-1"
    confidence: str = "proven"
    hosts: tuple[str, ...] = ("tpu-0", "tpu-1")

    @property
    def started_ns(self) -> int:
        return round(self.start * MINUTE_NS)

    @property
    def ended_ns(self) -> int | None:
        return None if self.end is None else round(self.end * MINUTE_NS)


def attempt(number: int, start: float, end: float, hosts: tuple[str, ...] = ("tpu-0",)) -> dict[str, Any]:
    times = {"start_ns": round(start * MINUTE_NS), "end_ns": round(end * MINUTE_NS)}
    return {**KEY, "attempt": number, **times, "hosts": list(hosts)}


def disruption(number: int, of: dict[str, Any], resumed: float) -> dict[str, Any]:
    times = {"last_event_ns": of["end_ns"], "resumed_ns": round(resumed * MINUTE_NS)}
    return {**KEY, "number": number, "attempt": of["attempt"], **times}


FIRST, SECOND = attempt(1, 1, 100), attempt(2, 110, 200, ("tpu-0", "tpu-8"))
CUT = disruption(1, FIRST, 110)


def causes(*known: Judged, cut: tuple[dict[str, Any], ...] = (CUT,), more: tuple[dict[str, Any], ...] = ()) -> Any:
    rows = cause_rows(cut, (FIRST, SECOND, *more), known, "doctor 1")
    return [(row["number"], row["cause"], row["cause_host"], row["confidence"]) for row in rows]


def test_the_attempt_that_was_running_until_the_restart_has_the_cause() -> None:
    assert causes(Judged(0, 101), Judged(109, 210, "C1")) == [(1, "C7", "tpu-1", "proven")]
    (row,) = cause_rows([CUT], [FIRST], [Judged(0, 101)], "doctor 1")
    assert (row["last_event_ns"], row["judged_by"]) == (FIRST["end_ns"], "doctor 1")


def test_an_attempt_that_failed_before_its_job_start_is_not_the_cause() -> None:
    assert causes(Judged(0, 101), Judged(102, 105, "B2", "tpu-0")) == [(1, "C7", "tpu-1", "proven")]
    assert causes(Judged(102, 105, "B2", "tpu-0")) == []


def test_a_process_that_went_on_after_the_restart_is_not_the_cause() -> None:
    assert causes(Judged(0, 200)) == []
    assert causes(Judged(0, None)) == []


def test_an_attempt_that_had_ended_before_is_not_the_cause() -> None:
    assert causes(Judged(0, 90)) == []


def test_an_attempt_that_was_not_judged_has_no_cause() -> None:
    assert causes(Judged(0, 101, rule="")) == []


def test_two_runs_of_one_name_at_the_same_time_are_not_known() -> None:
    assert causes(Judged(0, 101), Judged(3, 100.5, "C1", "other")) == []


def test_a_run_of_the_same_name_on_other_hosts_is_not_the_cause() -> None:
    other = Judged(0, 101, "C1", "gpu-7", hosts=("gpu-7", "gpu-8"))
    assert causes(other) == []
    assert list(host_rows([FIRST], [other])) == []
    assert causes(other, Judged(0, 101)) == [(1, "C7", "tpu-1", "proven")]


def test_an_attempt_of_which_no_host_is_known_is_found_by_its_time() -> None:
    assert cause_rows([CUT], [attempt(1, 1, 100, hosts=("",))], [Judged(0, 101)], "doctor 1")
    assert cause_rows([CUT], [FIRST], [Judged(0, 101, hosts=())], "doctor 1")


def test_a_job_that_was_started_again_as_another_run_is_the_same_job() -> None:
    assert causes(Judged(-500, -400, "C1"), Judged(0, 101), Judged(105, 201)) == [(1, "C7", "tpu-1", "proven")]


def test_an_attempt_ends_once_and_is_the_cause_of_the_last_restart() -> None:
    inner = attempt(3, 100.2, 100.7)
    cut = (disruption(1, FIRST, 100.2), disruption(2, inner, 110))
    assert causes(Judged(0, 100.8), cut=cut, more=(inner,)) == [(2, "C7", "tpu-1", "proven")]


@given(st.integers(-CLOCKS_NS, CLOCKS_NS))
def test_clocks_of_hosts_may_differ_by_a_minute(skew_ns: int) -> None:
    minutes = skew_ns / MINUTE_NS
    known = (Judged(0 + minutes, 100 + minutes), Judged(108 + minutes, 220 + minutes, "C1"))
    assert causes(*known) == [(1, "C7", "tpu-1", "proven")]


def test_hosts_are_those_of_the_attempt_also_while_it_runs() -> None:
    known = [Judged(0, 101), Judged(109, None, hosts=("tpu-9", "tpu-8"))]
    assert [(row["attempt"], row["hosts"]) for row in host_rows([FIRST, SECOND], known)] == [
        (1, ["tpu-0", "tpu-1"]),
        (2, ["tpu-8", "tpu-9"]),
    ]
    assert list(host_rows([FIRST], [Judged(0, 101, hosts=())])) == []


def test_nothing_known_is_nothing_written() -> None:
    assert causes() == []
    assert cause_rows([CUT], [], [Judged(0, 101)], "doctor 1") == []
