"""`goodput fleet causes`: the doctor's verdicts on the attempts that disruptions cut short. Imports are lazy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.command.errors import DONE, FAILED, CommandError
from ml_diagnostics_common.command.formats import add_format_option

from ml_diagnostics_fleet._cli.options import add_mirror_option, mirror_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_fleet.verdicts import Doctor

__all__ = ["causes", "format_causes", "prepare_causes"]

_GROUP: Final = "ml_diagnostics_fleet.doctors"
"""The entry point of the doctor, which another distribution has: a class as `verdicts.Doctor` is."""
_SINCE: Final = "14d"
_JOBS_A_NOTE: Final = 100


def prepare_causes(parser: argparse.ArgumentParser) -> None:
    """Add the options of the part."""
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="only these jobs (default: all)")
    add_mirror_option(parser)
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=_moment,
        default=_SINCE,
        help="attempts that ended since then, such as 30d or 2026-11-22 (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="judge again what this version has judged")
    parser.add_argument("--project", metavar="PROJECT", help="read the runs of this project (default: this machine)")
    parser.add_argument("--region", metavar="REGION", help="the region of the runs (default: us-central1)")
    parser.add_argument(
        "--kubernetes", metavar="CONTEXT", default="off", help="also ask the cluster of this context of kubectl"
    )
    add_format_option(parser)


def causes(options: argparse.Namespace, console: Console) -> int:
    """Ask the doctor, and print how many disruptions have which cause."""
    import time

    from ml_diagnostics_common.command.formats import format_data
    from ml_diagnostics_common.texts import format_count

    from ml_diagnostics_fleet.diagnosis import diagnose

    mirror = mirror_of(options)
    new_doctor = _doctor()
    doctor = new_doctor(console.warn, project=options.project, region=options.region, kubernetes=options.kubernetes)
    done = diagnose(
        mirror,
        doctor,
        now_ns=time.time_ns(),
        since_ns=options.since,
        jobs=options.jobs,
        again=options.again,
        report=lambda number, all_jobs: _notify(console, number, all_jobs),
    )
    found = {
        "jobs": done.jobs,
        "judged": done.causes.total(),
        "blamed": done.blamed,
        "unknown": done.unknown,
        "causes": dict(done.causes.most_common()),
    }
    if options.format != "table":
        console.data(format_data(found, options.format, [found], ("jobs", "judged", "blamed", "unknown")))
    else:
        judged = format_count(done.causes.total(), "disruption")
        names = f": {format_causes(done.causes)}; {done.blamed:,} of them by a host" if done.causes else ""
        console.data(f"{judged} judged{names}")
        if done.unknown:
            console.notify(f"{format_count(done.unknown, 'disruption')} of attempts that the doctor does not know")
    for key, text in done.errors:
        console.warn(f"job {key.job[:200]}: {text[:500]}")
    return FAILED if done.errors else DONE


def format_causes(counts: Counter[str]) -> str:
    """Format causes with their numbers, the most frequent first: `C7 12, C1 3`."""
    return ", ".join(f"{rule} {count:,}" for rule, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _notify(console: Console, number: int, all_jobs: int) -> None:
    if number % _JOBS_A_NOTE == 0:
        console.notify(f"{number:,} of {all_jobs:,} jobs")


def _doctor() -> Callable[..., Doctor]:
    """Return the class of the doctor.

    Raises:
        CommandError: It is not installed, or cannot be loaded.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP):
        try:
            found: Callable[..., Doctor] = point.load()
        except Exception as error:  # Of another distribution, perhaps of another version.
            reason = f"{point.value}: {type(error).__name__}: {error}"
            raise CommandError(f"the doctor cannot be loaded: {reason}") from error
        return found
    raise CommandError(
        "`goodput fleet causes` asks the doctor, which is not installed: pip install ml-diagnostics-console"
    )


def _moment(text: str) -> Any:
    from ml_goodput_measurement.reading import moment

    return moment(text)
