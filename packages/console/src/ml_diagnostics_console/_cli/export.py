"""`mldiagnostics export`: one run as one HTML file, to send to others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE, CommandError, UsageError

from ml_diagnostics_console._cli.ui import require_web, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from ml_diagnostics_common.command.console import Console

__all__ = ["ExportCommand", "write_file"]


class ExportCommand:
    """Writes a case file."""

    name = "export"
    summary = "write a run as one HTML file that opens anywhere: its page, its curves, stacks, logs and verdict"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("run", metavar="RUN", help="the run's id, the start of it, or 'last'")
        parser.add_argument("file", metavar="FILE", help="the file to write, such as case.html; '-' for stdout")
        parser.add_argument("--force", action="store_true", help="replace the file if it exists")
        parser.add_argument(
            "--read-from", metavar="PROJECT", help="read this Google Cloud project (default: this machine)"
        )
        parser.add_argument("--region", metavar="REGION", help="the region of its runs (default: us-central1)")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Write the file, and print what is inside and what was left out."""
        from pathlib import Path

        require_web("mldiagnostics export")
        if options.region and not options.read_from:
            raise UsageError("--region needs --read-from")
        from google_cloud_mldiagnostics.control_plane import resource_id

        path = Path(options.file)
        if options.file != "-":
            _check_target(path, is_forced=options.force)
        source = source_of(options.read_from, options.region, console)
        run_id = resource_id(source.find(options.run))
        from ml_diagnostics_console._facts.reading import Question
        from ml_diagnostics_console._web.assets import Assets
        from ml_diagnostics_console._web.case_file import judge_for_file, make_case
        from ml_diagnostics_console._web.modules import ModuleError
        from ml_diagnostics_console._web.store import Store

        store = Store(source)
        question = Question(run_id, None, options.read_from, options.region)
        try:
            store.refresh()
            case = make_case(store, run_id, Assets(), judge_for_file(question, console.warn))
        except ModuleError as error:
            raise CommandError(f"the case file could not be made: {error}") from error
        finally:
            store.close()
        if options.file == "-":
            console.data(case.text, end="")
        else:
            write_file(path, case.text, is_forced=options.force)
            console.data(f"{path}: {len(case.text.encode()):,} bytes, opens in any browser without a server")
        for title, sentences in (("inside", case.inside), ("left out", case.left_out)):
            for sentence in sentences:
                console.notify(f"  {title}: {sentence}")
        return DONE


def _check_target(path: Path, *, is_forced: bool) -> None:
    """Check, before a run is read for seconds, that a file may be written.

    Raises:
        CommandError: It may not.
    """
    import errno
    import os

    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is not a file, and is not replaced; '-' writes to stdout")
    if path.exists() and not is_forced:
        raise CommandError(f"{path} exists; --force replaces it")
    if not path.parent.exists():
        raise CommandError(f"{path} could not be written: {os.strerror(errno.ENOENT)}")


def write_file(path: Path, text: str, *, is_forced: bool) -> None:
    """Write a file as a whole, or not at all, also if Ctrl-C ends it.

    Args:
        path: The file.
        text: Its text.
        is_forced: True to replace a file that exists.

    Raises:
        CommandError: It cannot be written, or was made meanwhile.
    """
    import contextlib
    import os

    draft = path.with_name(f".mldiagnostics.{os.getpid()}")
    try:
        with contextlib.ExitStack() as undone:
            file = undone.enter_context(draft.open("x", encoding="utf-8"))  # Through no link of another user.
            undone.callback(draft.unlink, missing_ok=True)
            file.write(text)
            file.close()
            _check_target(path, is_forced=is_forced)
            draft.replace(path)
    except OSError as error:
        raise CommandError(f"{path} could not be written: {error.strerror}") from error
