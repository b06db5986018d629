"""Runs in the reference's environment: a question a line in (JSON), its answer a line out.

A question is {"ask": name of a function below, "with": its arguments}; an answer is {"answer": value}, or
{"error": "ValueError: text"} where the reference raised. Moments are POSIX seconds.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import freezegun  # type: ignore[import-not-found]  # It is in the reference's environment only.
from ml_goodput_measurement import (
    checkpoint_badput_calculator,
    goodput,
    goodput_cache,
    goodput_elastic,
    goodput_utils,
)
from ml_goodput_measurement.src import exclusion_utils
from surface import surface  # type: ignore[import-not-found]  # It lies beside this script.

Payload = dict[str, Any]
Pairs = Iterable[tuple[Any, Any]]

_ZONES = {"utc": datetime.timezone.utc, "zoneinfo": ZoneInfo("UTC"), "naive": None}


class Log:
    """The entries of a log by the moment of their writing, read as Cloud Logging is."""

    def __init__(self, payloads: list[Payload]) -> None:
        self._payloads = payloads

    def read_cloud_logging_entries(
        self,
        start_time: datetime.datetime | None = None,
        end_time: datetime.datetime | None = None,
        last_entry_info: tuple[datetime.datetime, str] | None = None,
    ) -> tuple[list[Payload], tuple[Any, Any]]:
        if last_entry_info and last_entry_info[0]:
            start_time = last_entry_info[0]
        if start_time is None:  # The whole life of the job.
            return self._payloads, (datetime.datetime.now(datetime.timezone.utc), "1")
        wanted = [
            (written, entry)
            for written, entry in ((_written(entry), entry) for entry in self._payloads)
            if start_time < written and (end_time is None or written <= end_time)
        ]
        return [entry for _, entry in wanted], (wanted[-1][0], "1") if wanted else (None, None)


def life(payloads: list[Payload], now: float) -> dict[str, Any]:
    """Return the account of a job's time."""
    with _calculator(payloads, now) as calculator:
        percent, breakdown, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
        details = calculator.get_job_goodput_details()
    return {
        "percent": percent,
        "shares": _numbers(breakdown),
        "productive": next(iter(details["goodput_time"].values())),
        "elapsed": details["total_elapsed_time"],
        "badput": _flat(details["badput_time"]),
        "last_step": last_step,
        "disruptions": details["disruption_count"],
        "ideal_step_seconds": details["ideal_step_time"],
        "deviations": list(details["step_time_deviation"].items()),
    }


def elastic(payloads: list[Payload], now: float) -> dict[str, Any]:
    """Return the account of an elastic job's time, and its slice efficiencies; None if they are left out."""
    with _calculator(payloads, now, goodput_elastic.ElasticGoodputCalculator) as calculator:
        calculator.get_job_goodput(include_badput_breakdown=True)
        details = calculator.get_job_goodput_details()
    return {
        "productive": next(iter(details["goodput_time"].values())),
        "badput": _flat(details["badput_time"]),
        "elapsed": details["total_elapsed_time"],
        "stepping": details.get("stepping_slice_efficiency"),
        "available": details.get("available_slice_efficiency"),
    }


def step_deviation(payloads: list[Payload], now: float, ideal: float | None = None) -> list[tuple[int, float]]:
    with _calculator(payloads, now) as calculator:
        return list(calculator.get_step_deviation(ideal).items())


def interval(payloads: list[Payload], now: float, first: float, last: float, zone: str = "utc") -> dict[str, Any]:
    with _calculator(payloads, now) as calculator:
        asked = _moment(first, zone), _moment(last, zone)
        percent, breakdown, last_step, seconds, disruptions = calculator.get_job_goodput_interval(*asked)
        details = calculator.get_interval_metric_details(*asked)
    return {
        "percent": percent,
        "shares": _flat(breakdown),
        "last_step": last_step,
        "seconds": seconds,
        "disruptions": disruptions,
        "details_percent": next(iter(details["interval_goodput"].values())),
        "details_shares": _flat(details["interval_badput"]),
        "details_size": details["interval_size"],
    }


def exclusions(payloads: list[Payload], now: float, intervals: Pairs, zone: str = "utc") -> dict[str, Any]:
    with _calculator(payloads, now) as calculator:
        excluded = [(_moment(first, zone), _moment(last, zone)) for first, last in intervals]
        percent, breakdown, last_step, seconds = calculator.get_job_goodput_with_exclusions(excluded, True)
        details = calculator.get_job_goodput_details()
    return {
        "percent": percent,
        "shares": _flat(breakdown),
        "last_step": last_step,
        "excluded": seconds,
        "excluded_in_details": details["total_excluded_time"],
    }


def normalized(intervals: Pairs, zone: str = "utc") -> Any:
    return exclusion_utils.normalize_intervals(
        [(_moment(first, zone), _moment(last, zone)) for first, last in intervals]
    )


def overlap(start: float, end: float, exclusions: Pairs) -> Any:
    return exclusion_utils.get_exclusion_overlap(start, end, [(first, last) for first, last in exclusions])


def call(function: str, arguments: list[Any]) -> Any:
    """A function of goodput_utils."""
    return getattr(goodput_utils, function)(*arguments)


def from_baseline(deviations: Pairs, mode: str) -> Any:
    return goodput_utils.compute_step_deviation_from_baseline(
        dict(deviations), goodput_utils.MonitoringWindowType(mode)
    )


def entry_moment(entry: Payload) -> float | None:
    moment = goodput_utils.get_timestamp_from_log_entry(entry)
    return None if moment is None else moment.timestamp()


def checkpoints(entries: list[Payload], operation_type: str) -> dict[str, Any]:
    """The statistics of saves and of restores."""
    options = checkpoint_badput_calculator.CheckpointLoggerOptions(use_goodput_logger=True)
    calculator = checkpoint_badput_calculator.CheckpointBadputCalculator(options)
    calculator.entries = entries
    saves = calculator.calculate_save_operation_checkpoint_manager_blocking_time(operation_type)
    restores = calculator.calculate_restore_operation_checkpoint_manager_blocking_time(operation_type)
    return {"save": dataclasses.asdict(saves), "restore": dataclasses.asdict(restores)}


def recorded(calls: list[tuple[str, list[Any]]]) -> list[Payload]:
    """Return the payloads that an elastic recorder writes; arguments above 1e9 are moments."""
    written: list[Payload] = []
    log = type("Log", (), {"write_cloud_logging_entry": lambda self, entry: written.append(entry)})()
    recorder = goodput_elastic.ElasticGoodputRecorder("job", "log", True, log)
    for method, arguments in calls:
        moments = [_moment(value) if isinstance(value, float) and value > 1e9 else value for value in arguments]
        getattr(recorder, method)(*moments)
    return written


def write_cache(folder: str, job: str, entries: list[Payload], moment: float, identity: str) -> None:
    cache = goodput_cache.GoodputCache(job, folder)
    cache.update_cached_entries(entries, (_moment(moment), identity))


def read_cache(folder: str, job: str) -> dict[str, Any]:
    cache = goodput_cache.GoodputCache(job, folder)
    return {
        "entries": cache.get_cached_entries(),
        "steps": cache.get_step_entries(),
        "is_empty": cache.is_cache_empty(),
    }


def accelerator_type(machine_type: str | None) -> str:
    """Return the accelerator type of a machine of that type."""
    with mock.patch.object(goodput_utils, "get_gcp_metadata", return_value=machine_type):
        return goodput_utils.get_accelerator_type()


QUESTIONS = {
    function.__name__: function
    for function in (
        life,
        elastic,
        step_deviation,
        interval,
        exclusions,
        normalized,
        overlap,
        call,
        from_baseline,
        entry_moment,
        checkpoints,
        recorded,
        accelerator_type,
        surface,
        write_cache,
        read_cache,
    )
}


@contextmanager
def _calculator(payloads: list[Payload], now: float, kind: Any = goodput.GoodputCalculator) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as cache_dir, freezegun.freeze_time(_moment(now)):
        yield kind("job", "goodput_job", Log(payloads), cache_dir=cache_dir)


def _moment(seconds: float, zone: str = "utc") -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, _ZONES[zone])


def _written(entry: Payload) -> datetime.datetime:
    """The time at which an entry was written: its latest moment; for an operation of Orbax, its end."""
    moments = [value for key, value in entry.items() if key.endswith(("_time", "_timestamp")) and value is not None]
    lasted = [value for key, value in entry.items() if key.endswith("_duration_secs") and value is not None]
    return _moment(min(moments) + max(lasted) if lasted else max(moments))


def _flat(breakdown: dict[Any, Any]) -> dict[str, float]:
    flat = _numbers(breakdown)
    for badput, value in breakdown.items():
        if isinstance(value, dict):
            flat |= {f"{badput.name}.{kind}": kind_value for kind, kind_value in value.items()}
    return flat


def _numbers(breakdown: dict[Any, Any]) -> dict[str, float]:
    return {badput.name: value for badput, value in breakdown.items() if not isinstance(value, dict)}


def main() -> None:
    # The reference prints; its output is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply = {"answer": QUESTIONS[question["ask"]](**question["with"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply, default=float) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
