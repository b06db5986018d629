"""Runs in the reference's environment: lives of jobs in (JSON on stdin), its answers out (JSON on stdout).

Each life is {"payloads": [...], "now": POSIX seconds}; each answer has seconds by bucket, or {"error": text}.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from typing import Any

import freezegun  # type: ignore[import-not-found]  # It is in the reference's environment only.
from ml_goodput_measurement import goodput

Payload = dict[str, Any]


class Log:
    """All entries at the first read, none after."""

    def __init__(self, payloads: list[Payload]) -> None:
        self._payloads = payloads

    def read_cloud_logging_entries(
        self, start_time: Any = None, end_time: Any = None, last_entry_info: Any = None
    ) -> tuple[list[Payload], tuple[Any, Any]]:
        if last_entry_info and last_entry_info[0]:
            return [], (None, None)
        return self._payloads, (datetime.datetime.now(datetime.timezone.utc), "1")


def answer(life: dict[str, Any]) -> dict[str, Any]:
    now = datetime.datetime.fromtimestamp(life["now"], datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as cache_dir, freezegun.freeze_time(now):
        calculator = goodput.GoodputCalculator("job", "goodput_job", Log(life["payloads"]), cache_dir=cache_dir)
        try:
            percent, breakdown, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
        except ValueError as error:
            return {"error": str(error)}
        details = calculator.get_job_goodput_details()
    seconds: dict[str, float] = {}
    for badput, value in details["badput_time"].items():
        if isinstance(value, dict):
            seconds |= {f"{badput.name}.{kind}": kind_seconds for kind, kind_seconds in value.items()}
        else:
            seconds[badput.name] = value
    return {
        "percent": percent,
        "shares": {badput.name: share for badput, share in breakdown.items() if not isinstance(share, dict)},
        "productive": next(iter(details["goodput_time"].values())),
        "elapsed": details["total_elapsed_time"],
        "badput": seconds,
        "last_step": last_step,
        "disruptions": details["disruption_count"],
        "ideal_step_seconds": details["ideal_step_time"],
        "deviations": {str(step): float(value) for step, value in details["step_time_deviation"].items()},
    }


if __name__ == "__main__":
    # The reference prints; what is printed is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    json.dump([answer(life) for life in json.load(sys.stdin)], answers, default=float)
