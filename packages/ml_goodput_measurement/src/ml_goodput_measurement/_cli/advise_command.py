"""`goodput advise` and `goodput what-if`: how often to save, and what the goodput would have been."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import seconds

from ml_goodput_measurement._cli.options import add_cost_options, add_job_arguments, chips_of
from ml_goodput_measurement._cli.source_options import add_source_options, strict_code, with_sources

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_goodput_measurement._query.job_state import JobState
    from ml_goodput_measurement.advice import JobHistory

__all__ = ["AdviseCommand", "WhatIfCommand"]


class AdviseCommand:
    """Advises how often a job should save."""

    name = "advise"
    summary = "advise how often to save, and how much shorter restarts are worth"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_job_arguments(parser)
        _add_save_options(parser)
        parser.add_argument(
            "--detection",
            metavar="TIME",
            type=seconds,
            default=0.0,
            help="how long a failure may stay undetected: no interval below this is advised",
        )
        add_cost_options(parser)
        parser.add_argument("--verbose", action="store_true", help="also print the inputs and other methods")
        add_source_options(parser)
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the advice."""
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.advice_text import (
            ADVICE_FIELDS,
            Worth,
            advice_as_dict,
            advice_as_row,
            format_advice,
        )
        from ml_goodput_measurement.advice import advise

        state, history = _history(options)
        worth = None
        if options.cost is not None:
            chips = chips_of(options.chips, state.chips, state.job_name, state.log_id, console)
            worth = Worth(options.cost, chips)
        advice = advise(
            history,
            save_seconds=options.save,
            background_seconds=options.background,
            detection_seconds=options.detection,
        )
        if options.format == "table":
            lines = format_advice(history, advice, worth, is_verbose=options.verbose)
            console.data("\n".join([*lines, *_notes(state)]))
        else:
            document = {**advice_as_dict(state.job_name, history, advice, worth), "notes": list(state.notes)}
            console.data(format_data(document, options.format, [advice_as_row(document)], ADVICE_FIELDS))
        return strict_code(options, console, state.notes)


class WhatIfCommand:
    """Predicts the goodput that a job would have had."""

    name = "what-if"
    summary = "predict the goodput that a job would have had with other saves or restarts"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_job_arguments(parser)
        parser.add_argument(
            "--interval",
            metavar="TIME",
            type=seconds,
            help="training time between saves, such as 455s (default: the job's)",
        )
        parser.add_argument(
            "--restart", metavar="TIME", type=seconds, help="mean time of a restart (default: the job's)"
        )
        _add_save_options(parser)
        add_source_options(parser)
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the prediction."""
        from ml_diagnostics_common.command.formats import format_data

        from ml_goodput_measurement._cli.advice_text import (
            PREDICTION_FIELDS,
            format_prediction,
            prediction_as_dict,
            prediction_as_row,
        )
        from ml_goodput_measurement.advice import what_if

        state, history = _history(options)
        prediction = what_if(
            history,
            interval_seconds=options.interval,
            restart_seconds=options.restart,
            save_seconds=options.save,
            background_seconds=options.background,
        )
        if options.format == "table":
            console.data("\n".join([*format_prediction(history, prediction), *_notes(state)]))
        else:
            document = {**prediction_as_dict(state.job_name, history, prediction), "notes": list(state.notes)}
            console.data(format_data(document, options.format, [prediction_as_row(document)], PREDICTION_FIELDS))
        return strict_code(options, console, state.notes)


def _notes(state: JobState) -> list[str]:
    return [f"Note: {note}" for note in state.notes]


def _add_save_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--save", metavar="TIME", type=seconds, help="how long a save blocks (default: the mean of those recorded)"
    )
    parser.add_argument(
        "--background",
        metavar="TIME",
        type=seconds,
        help="how long the background part of an asynchronous save takes (default: as recorded, if it was)",
    )


def _history(options: argparse.Namespace) -> tuple[JobState, JobHistory]:
    """Return the state of the job, and its history.

    Raises:
        NotFoundError: Nothing was recorded for the job.
        CommandError: It kept no step.
    """
    import dataclasses

    from ml_goodput_measurement._cli.search import follow_job, hints_if_missing
    from ml_goodput_measurement._query.background_saves import background_seconds
    from ml_goodput_measurement.advice import history_of

    sources = with_sources(options)
    follower = follow_job(options.job, options.logger, sources)
    with hints_if_missing(follower.job_name, follower.log_id, sources):
        state = follower.read()
    history = history_of(*follower.ledger())
    if history is None:
        raise CommandError(f"job {state.job_name[:200]!r} has not kept a step yet: there is nothing to advise from")
    if options.background is None:
        background = background_seconds(state.job_name, state.log_id, sources)
        history = dataclasses.replace(history, background_seconds=background)
    return state, history
