"""Profile running jobs from outside: `python -m google_cloud_mldiagnostics.commands.collect_profile --help`.

It calls the ProfilerService of all hosts at once, without JAX or XProf. If a host has no such service, it tries
`/profiling` over HTTP.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ml_diagnostics_common.command.errors import DONE, FAILED, USAGE
from ml_diagnostics_common.command.options import whole_number
from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError, StorageError
from ml_diagnostics_common.files import check_scheme, in_bucket
from ml_diagnostics_common.profiler_service import (
    CaptureResult,
    ProfilerService,
    TracerLevels,
    file_name_of,
)
from ml_diagnostics_common.storage import storage_for
from ml_diagnostics_common.worker import results_in_parallel
from ml_diagnostics_common.xplane import summary_of

from google_cloud_mldiagnostics._profiling.locations import file_of, session_folder, sessions_folder

__all__ = ["main"]

_MOST_THREADS = 10
_EXTRA_SECONDS = 10.0
_level = whole_number(0, 127)  # Some devices define more levels than the help names.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments of the command line; None for those of this process.

    Returns:
        0 when every host was profiled, 1 when one was not, 2 when an argument cannot be used.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    hosts = [host.strip() for host in options.hosts.split(",") if host.strip()]
    names = options.override_hostnames.split(",") if options.override_hostnames else []
    if not hosts:
        parser.error("--hosts names no host")
    if names and (len(names) != len(hosts) or any(not name or re.search(r"[\s:/]", name) for name in names)):
        parser.error("--override_hostnames: give as many names as --hosts, without spaces, colons and slashes")
    if options.duration_in_ms <= 0:
        parser.error("--duration_in_ms must be more than 0")
    session = options.session_name or datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S")
    if not re.fullmatch(r"[\w.-]+", session) or session.startswith("."):
        parser.error("--session_name: give letters, digits, '_', '-' and '.'")
    try:
        _log_dir(options)
    except ConfigurationError as error:
        parser.error(f"--log_dir: {error}")
    try:
        results = _collect(options, hosts, names, session)
    except DiagnosticsError as error:
        print(f"collect_profile: {error}", file=sys.stderr)
        return USAGE
    for result in results:
        if result.problem:
            print(f"collect_profile: {result.address} was not profiled: {result.problem}", file=sys.stderr)
    captured = sum(result.is_captured for result in results)
    if captured:
        folder = session_folder(_log_dir(options), session)
        print(f"Dumped profiling information of {captured} of {len(results)} hosts in: {folder}")
    return DONE if captured == len(results) else FAILED


def _collect(
    options: argparse.Namespace, hosts: Sequence[str], names: Sequence[str], session: str
) -> list[CaptureResult]:
    addresses = [f"{host}:{options.port}" for host in hosts]
    log_dir, use_own_name = _log_dir(options), options.use_system_hostname
    results = ProfilerService().capture(
        addresses,
        sessions_folder(log_dir),
        session,
        options.duration_in_ms,
        host_names=list(names) or None,
        levels=TracerLevels(options.host_tracer_level, options.device_tracer_level, options.python_tracer_level),
    )

    def second_try(result: CaptureResult) -> CaptureResult:
        if result.is_captured:
            problem = _rename(session_folder(log_dir, session), result.address) if use_own_name else ""
            return CaptureResult(result.address, problem, result.seconds)
        problem = _post(result.address, options.duration_in_ms, log_dir)
        return CaptureResult(result.address, f"{result.problem}; over HTTP: {problem}" if problem else "")

    return results_in_parallel(second_try, results, _MOST_THREADS)


def _rename(folder: str, address: str) -> str:
    """Rename a host's file to the host's own name, which is in it; return the problem, or an empty text."""
    path = f"{folder}/{file_of(file_name_of(address))}"
    try:
        store = storage_for(path)
        data = store.read(path)
        name = summary_of(data).host
        if not name:
            return f"{path} does not contain its host's name; the file keeps its name"
        store.write(f"{folder}/{file_of(file_name_of(name))}", data, if_generation=0)
        store.delete(path)
    except StorageError as error:
        return f"it was profiled, but its file could not be renamed: {error}"
    return ""


def _post(address: str, duration_ms: int, log_dir: str) -> str:
    """Request a profile of a host over HTTP; return the problem, or an empty text."""
    import urllib.error
    import urllib.request

    body = json.dumps({"duration_ms": duration_ms, "repository_path": log_dir}).encode()
    request = urllib.request.Request(
        f"http://{address}/profiling", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=duration_ms / 1000 + _EXTRA_SECONDS) as response:
            response.read(1 << 20)  # The answer is not used; the file that the host writes is.
        return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    except Exception as error:  # http.client's: a server of another kind.
        return f"{type(error).__name__}: {error}"


def _log_dir(options: argparse.Namespace) -> str:
    given = str(options.log_dir).rstrip("/") or "/"
    check_scheme(given)
    return given if in_bucket(given) else str(Path(given).expanduser().absolute())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m google_cloud_mldiagnostics.commands.collect_profile",
        description="Profiles running jobs, all hosts at the same time. The jobs need a profiler's "
        "server: machinelearning_run(on_demand_xprof=True), or jax.profiler.start_server().",
    )
    add = parser.add_argument
    add("--hosts", required=True, help="the hosts, with commas between them")
    add("--port", required=True, type=int, help="the port of the profiler's server on each of them")
    add("--duration_in_ms", required=True, type=int, help="how long to profile")
    add("--log_dir", required=True, help="gs://bucket/folder, or a folder that every host can write")
    add("--session_name", default="", help="the folder of this profile in plugins/profile; the time if not given")
    add("--host_tracer_level", type=_level, default=2, help="0 nothing to 3 everything (default: 2)")
    add("--device_tracer_level", type=_level, default=1, help="0 nothing, 1 everything (default: 1)")
    add("--python_tracer_level", type=_level, default=1, help="0 nothing, 1 every call (default: 1)")
    naming = parser.add_mutually_exclusive_group()
    naming.add_argument(
        "--override_hostnames", default="", help="the names of the hosts' files, in the order of --hosts"
    )
    naming.add_argument(
        "--use_system_hostname",
        action="store_true",
        help="name the files by the own names of the hosts",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
