"""`xprofiler capture`: capture a profile of many hosts at the same moment."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, CommandError, NotFoundError, UsageError
from ml_diagnostics_common.command.formats import add_format_option
from ml_diagnostics_common.command.options import port, whole_number

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console
    from ml_diagnostics_common.storage import Storage

    from xprofiler.capture.session import Session
    from xprofiler.capture.targets import Found
    from xprofiler.gcloud.api import GoogleApi
    from xprofiler.gcloud.processes import Programs
    from xprofiler.log_directory import LogDirectory

__all__ = ["CaptureCommand"]

_PORT: Final = 9012
_DURATION_MS: Final = 2000
_LONGEST_MS: Final = 3_600_000


class CaptureCommand:
    """Captures profiles of processes over the same time, into one session."""

    name = "capture"
    summary = "capture a profile of many hosts at the same moment"
    passes_on = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "-l",
            "--log-directory",
            metavar="PATH",
            required=True,
            help="gs://bucket/run, or a folder of this machine; profiles go to PATH/tensorboard/plugins/profile",
        )
        parser.add_argument(
            "-n",
            "--hosts",
            metavar="HOST_NAME",
            nargs="+",
            required=True,
            help="VMs and TPU VMs (gce), pods (gke), or addresses such as localhost:9012 (local)",
        )
        parser.add_argument("-z", "--zone", metavar="ZONE_NAME", help="the zone of the VMs (needed with -o gce)")
        parser.add_argument(
            "-f",
            "--framework",
            choices=("pytorch", "jax", "tensorflow"),
            default="jax",
            help="the framework of the job; all are captured in the same manner (default: %(default)s)",
        )
        parser.add_argument(
            "-o",
            "--orchestrator",
            choices=("gce", "gke", "local"),
            default="gce",
            help="where the hosts are (default: %(default)s)",
        )
        parser.add_argument(
            "-p",
            "--port",
            metavar="PORT",
            type=port,
            default=_PORT,
            help="the port of the profiler server in the job (default: %(default)s)",
        )
        parser.add_argument(
            "-d",
            "--duration",
            metavar="MS",
            type=whole_number(1, _LONGEST_MS),
            default=_DURATION_MS,
            help="the duration in milliseconds (default: %(default)s)",
        )
        parser.add_argument("-u", "--use-ssh-proxy", action="store_true", help="ssh through corp-ssh-helper")
        parser.add_argument("--non-tpu-vm", action="store_true", help="the hosts are VMs without TPUs (gce)")
        parser.add_argument(
            "--namespace", metavar="NAME", help="the namespace of the pods (gke; default: the context's)"
        )
        parser.add_argument(
            "--container", metavar="NAME", help="the container in the pods (gke; default: the pod's default)"
        )
        parser.add_argument(
            "--context", metavar="NAME", help="the context in the kubeconfig (gke; default: the current one)"
        )
        add_format_option(parser)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Find the hosts, capture, and print the outcome of each."""
        import shlex
        import time

        from ml_diagnostics_common.profiler_service import ProfilerService

        from xprofiler.capture.bucket_access import BucketAccess
        from xprofiler.capture.capturing import Capture
        from xprofiler.capture.outcomes import Outcome, report
        from xprofiler.capture.session import reserved
        from xprofiler.gcloud.api import GoogleApi
        from xprofiler.gcloud.settings import GcloudSettings

        log_directory = _log_directory(options.log_directory, console)
        api = GoogleApi(GcloudSettings.load(), console)
        found = _find(options, api, console)
        if not found.targets:
            raise NotFoundError("\n".join(found.missing.values()))
        storage = _storage(log_directory, api)
        with reserved(log_directory.capture_root, storage, time.localtime()) as session:
            names = ", ".join(target.name for target in found.targets)
            console.notify(f"Capturing {options.duration} ms of {names}, all at the same moment.\n")
            service = ProfilerService(log=console.detail)
            access = BucketAccess(f"gs://{log_directory.bucket}") if log_directory.is_in_cloud else None
            capture = Capture(session, options.duration, storage, console, service, bucket_access=access)
            try:
                outcomes = capture.run(found.targets)
            except KeyboardInterrupt:
                _report_files(session, storage, console)
                raise
            outcomes += [Outcome(name, name, problem=problem) for name, problem in found.missing.items()]
            report(outcomes, session, log_directory.tensorboard, options.format, console)
        all_captured = all(outcome.is_captured for outcome in outcomes)
        if all_captured:
            console.notify(f"\nView it with: xprofiler serve -l {shlex.quote(log_directory.path)}")
        return DONE if all_captured else CommandError.exit_code


def _log_directory(text: str, console: Console) -> LogDirectory:
    """Return the log directory with an absolute path, since jobs have other working directories."""
    import os
    from pathlib import Path

    from xprofiler.log_directory import LogDirectory

    log_directory = LogDirectory.parse(text, may_be_local=True)
    if log_directory.note:
        console.notify(log_directory.note)
    if log_directory.is_in_cloud:
        return log_directory
    # Path.expanduser raises for the ~ of an unknown user.
    return LogDirectory.parse(str(Path(os.path.expanduser(log_directory.path)).absolute()), may_be_local=True)  # noqa: PTH111


def _find(options: argparse.Namespace, api: GoogleApi, console: Console) -> Found:
    """Find the hosts with the chosen orchestrator."""
    from xprofiler.gcloud.processes import Programs

    if options.extra and options.orchestrator != "gce":
        unknown = " ".join(options.extra)
        raise UsageError(f"unknown: {unknown}; gcloud is not used with -o {options.orchestrator}")
    if options.orchestrator == "local":
        from xprofiler.capture.targets import addresses

        return addresses(options.hosts, options.port)
    with Programs(console) as programs:
        if options.orchestrator == "gke":
            from xprofiler.capture.pods import find_pods
            from xprofiler.gcloud.kubectl import Cluster

            cluster = Cluster(options.namespace, options.context)
            return find_pods(options.hosts, cluster, options.container, options.port, programs)
        return _find_machines(options, api, programs)


def _find_machines(options: argparse.Namespace, api: GoogleApi, programs: Programs) -> Found:
    from xprofiler.capture.machines import find_machines, make_ssh_key

    found = find_machines(
        options.hosts,
        api.settings.zone_or_default(options.zone),
        options.port,
        api,
        may_be_tpus=not options.non_tpu_vm,
        uses_ssh_helper=options.use_ssh_proxy,
        extra=options.extra,
    )
    if found.targets:
        make_ssh_key(found.targets, programs)
    return found


def _storage(log_directory: LogDirectory, api: GoogleApi) -> Storage:
    from ml_diagnostics_common.storage import LocalStorage

    return api.storage if log_directory.is_in_cloud else LocalStorage()


def _report_files(session: Session, storage: Storage, console: Console) -> None:
    """Print after an interrupt which files the session has, and that hosts may still write."""
    from ml_diagnostics_common.exceptions import DiagnosticsError
    from ml_diagnostics_common.texts import format_count

    from xprofiler.log_directory import XPLANE_SUFFIX

    try:
        written = [path for path in storage.list_prefix(f"{session.folder}/") if path.endswith(XPLANE_SUFFIX)]
    except DiagnosticsError:
        written = []
    files = format_count(len(written), "file")
    console.notify(
        f"Interrupted: the session {session.name} has {files} so far, in {session.folder}; hosts that are capturing "
        "finish that, and may still write theirs",
        is_progress=False,
    )
