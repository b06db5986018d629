"""The search for the log of a job by the job's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

if TYPE_CHECKING:
    from ml_goodput_measurement._query.job_state import JobFollower
    from ml_goodput_measurement._query.sources import Sources
    from ml_goodput_measurement.exclusion_utils import ExclusionInterval
    from ml_goodput_measurement.partition import JobReport

__all__ = ["find_job", "find_report", "follow_job", "hints_if_missing"]

_NAMES_SHOWN = 20
_LAST = "last"
_OPTION = "--logger"


def find_report(
    job: str,
    logger: str | None,
    exclusions: Sequence[ExclusionInterval],
    *,
    with_timeline: bool,
    sources: Sources | None = None,
) -> JobReport:
    """Return the report of a job.

    Args:
        job: The job's name; `last` is the job that started last on this machine, unless a job has that name.
        logger: The log; None is `goodput_<job>`, or else the only log of the job in the journal.
        exclusions: Intervals to leave out.
        with_timeline: True to fill the timeline.
        sources: The sources beside the journal; None for the configured mirror and Cloud Logging.

    Raises:
        NotFoundError: Nothing was recorded for the job.
        ConfigurationError: The job is in several logs.
    """
    from ml_goodput_measurement._query.calculator import GoodputCalculator

    job, log = find_job(job, logger, sources)
    with hints_if_missing(job, log, sources):
        calculator = GoodputCalculator(job, log, _logs_failures=False, _sources=sources)  # The report has a note.
        return calculator.report(include_timeline=with_timeline, exclusions=exclusions)


def find_job(job: str, logger: str | None, sources: Sources | None = None, *, option: str = _OPTION) -> tuple[str, str]:
    """Return the name of a job, and its log.

    Args:
        job: The job's name; `last` is the job that started last on this machine, unless a job has that name.
        logger: The log; None is `goodput_<job>`, or else the only log of the job in the journal, or in the mirror.
        sources: The sources beside the journal; None for the configured mirror and Cloud Logging.
        option: The option for the log, for errors.

    Raises:
        NotFoundError: The job is `last`, and there is none.
        ConfigurationError: The job is in several logs, or the mirror is neither in a bucket nor a folder.
        StorageError: The mirror had to be searched, and cannot be read.
    """
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.journal import newest_job

    from ml_goodput_measurement._query.sources import LOGS_OF_OTHERS, Sources, logs_of_jobs

    mirror = (sources or Sources()).mirror
    logs = logs_of_jobs()
    if job == _LAST and not any(job in jobs for jobs in logs.values()):
        newest = newest_job(diagnostics_directory(), except_logs=LOGS_OF_OTHERS)
        if newest is None:
            raise NotFoundError(f"there is no last job. {_empty_journal()}")
        logger, job = logger or newest[0], newest[1]
    return job, logger or _log_of(job, logs, mirror, option)


@contextmanager
def hints_if_missing(job: str, log: str, sources: Sources | None = None, *, option: str = _OPTION) -> Iterator[None]:
    """Translate the error for a job without records to one with hints, such as similar names.

    Args:
        job: The job.
        log: Its log.
        sources: The sources beside the journal; None for the configured mirror and Cloud Logging.
        option: The option for the log.

    Raises:
        NotFoundError: Nothing was recorded for the job.
    """
    from ml_goodput_measurement._query.sources import Sources
    from ml_goodput_measurement.exceptions import NoGoodputError

    try:
        yield
    except NoGoodputError as error:
        what, *details = str(error).splitlines()
        hints = _hints(job, log, (sources or Sources()).mirror, option)
        raise NotFoundError("\n  ".join([what, *hints, *details])) from None


def follow_job(job: str, logger: str | None, sources: Sources | None = None, *, option: str = _OPTION) -> JobFollower:
    """Return a follower of a job, which has read nothing; the arguments are those of `find_job`.

    Raises:
        NotFoundError: See `find_job`.
        ConfigurationError: See `find_job`.
        StorageError: See `find_job`.
    """
    from ml_goodput_measurement._query.job_state import JobFollower

    return JobFollower(*find_job(job, logger, sources, option=option), sources=sources)


def _log_of(job: str, logs: Mapping[str, set[str]], mirror: str, option: str) -> str:
    """Return the log to read: the conventional one, unless the journal has the job in one other log only.

    The mirror is searched for a job that the journal does not have, and that has no log of the conventional name.

    Raises:
        ConfigurationError: The job is in several logs.
    """
    usual = f"goodput_{job}"
    found = sorted(log for log, jobs in logs.items() if job in jobs)
    if not found and mirror:
        found = _logs_in_mirror(job, usual, mirror)
    if usual in found or not found:
        return usual
    if len(found) > 1:
        raise ConfigurationError(f"the job {job!r} is in several logs; choose one with {option}: {_listed(found)}")
    return found[0]


def _logs_in_mirror(job: str, usual: str, mirror: str) -> list[str]:
    """Return the logs of a job in a mirror; the conventional one if it has that, without a search."""
    from ml_diagnostics_common.mirror.contents import has_log

    from ml_goodput_measurement._query.sources import mirrored_jobs

    if has_log(mirror, usual):
        return [usual]
    return sorted(log for log, jobs in mirrored_jobs(mirror).items() if job in jobs)


def _hints(job: str, log: str, mirror: str, option: str) -> list[str]:
    """Return hints for a user who gave an unknown job."""
    from ml_diagnostics_common.environment import diagnostics_directory

    from ml_goodput_measurement._query.sources import logs_of_jobs, mirrored_jobs

    logs, place = logs_of_jobs(), f"journal {diagnostics_directory() / 'journal'}"
    if not logs and mirror:
        with suppress(DiagnosticsError):  # The error for the job has why the mirror cannot be read.
            logs, place = mirrored_jobs(mirror), f"mirror {mirror}"
    if job in logs.get(log, ()):
        return []  # It exists: the error contains what is missing.
    other_logs = sorted(other for other, jobs in logs.items() if job in jobs)
    if other_logs:
        where = place.partition(" ")[0]
        return [f"The {where} has this job in other logs: {_listed(other_logs)}. Give one of these as {option}."]
    names = sorted(set().union(*logs.values()))
    if not names:
        return [_empty_journal()]
    from difflib import get_close_matches  # Only here: most users spell the name right.

    lower = {name.lower(): name for name in names}
    similar = [lower[name] for name in get_close_matches(job.lower(), lower, n=3)]
    return [
        *([f"Did you mean {_listed(similar)}?"] if similar else []),
        f"The {place} has these jobs: {_listed(names)}.",
    ]


def _empty_journal() -> str:
    from ml_diagnostics_common.environment import diagnostics_directory

    return (
        f"The journal {diagnostics_directory() / 'journal'} is empty: no job was recorded on this machine with this "
        "ML_DIAGNOSTICS_DIR."
    )


def _listed(names: Iterable[str]) -> str:
    from ml_diagnostics_common.texts import one_line

    shown = sorted(names)
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(one_line(name, 80) for name in shown[:_NAMES_SHOWN]) + more
