"""`mldiagnostics kubernetes`: the servers of a cluster, what to apply there, and a check of it."""

from __future__ import annotations

import argparse
import json
import logging
import re
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.command.errors import DONE, FAILED
from ml_diagnostics_common.command.formats import add_format_option, format_data
from ml_diagnostics_common.command.options import whole_number
from ml_diagnostics_common.exceptions import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ml_diagnostics_common.command.console import Console

    from google_cloud_mldiagnostics._kubernetes.api import Connection

__all__ = ["KubernetesCommand"]

_EXAMPLES: Final = ("jobset", "rayjob", "lws", "connection")
_FIELDS: Final = ("question", "state", "detail", "remedy")
_STATE_WIDTH: Final = len("cannot tell")
_WIDTH: Final = 120
"""The width of lines in a file or a pipe."""
_MOST_SECONDS: Final = 10 * 365 * 86400


class KubernetesCommand:
    """The commands for a cluster."""

    name = "kubernetes"
    summary = "the webhook and the operator of a cluster, and a check of it"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the parts of the command."""
        parts = parser.add_subparsers(metavar="PART", required=True)
        for name, prepare, run, summary in (
            ("check", _add_check, _check, "report what is missing in a cluster, and how to fix it"),
            ("example", _add_example, _example, "print an object to apply"),
            ("policy", _add_policy, _policy, "print the policy that replaces the webhook from Kubernetes 1.36 on"),
            ("webhook", _add_webhook, _webhook, "run the injection webhook, in a pod"),
            ("operator", _add_operator, _operator, "run the connection operator, in a pod"),
        ):
            part = parts.add_parser(
                name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
            )
            prepare(part)
            part.add_argument("--quiet", action="store_true", help="print no progress, only data and errors")
            part.add_argument("--no-color", action="store_true", help="print no colors (as with NO_COLOR)")
            part.set_defaults(part=run, parser=part)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Run one part."""
        part: Callable[[argparse.Namespace, Console], int] = options.part
        try:
            return part(options, console)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("google_cloud_mldiagnostics", "ml_diagnostics_common"):
                raise
            raise MissingExtraError(
                f"`mldiagnostics kubernetes` (it needs {error.name})", "google-cloud-mldiagnostics", "kubernetes"
            ) from error


# --- For people ---------------------------------------------------------------------------------------


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_context(parser)
    parser.add_argument("--namespace", metavar="NAME", default="default", help="where workloads are (default: default)")
    parser.add_argument(
        "--workload", metavar="KIND/NAME", default="", help="try a pod of this one, such as jobset/train"
    )
    add_format_option(parser)


def _check(options: argparse.Namespace, console: Console) -> int:
    import asyncio

    from google_cloud_mldiagnostics._kubernetes.check.cluster import check_cluster
    from google_cloud_mldiagnostics._kubernetes.check.findings import State

    findings = asyncio.run(check_cluster(_connection(options), options.namespace, options.workload))
    shown = [{**finding._asdict(), "state": finding.state.value} for finding in findings]
    if options.format == "table":
        for each in shown:
            line = f"{each['state']:<{_STATE_WIDTH}}  {each['question']}: {each['detail']}"
            console.data("\n".join(wrap(line, console.width or _WIDTH, subsequent_indent=" " * (_STATE_WIDTH + 2))))
            if each["state"] != State.OK.value and each["remedy"]:
                console.data(f"{' ' * (_STATE_WIDTH + 2)}$ {each['remedy']}")
    else:
        console.data(format_data({"findings": shown}, options.format, shown, _FIELDS))
    return FAILED if any(finding.state is State.MISSING for finding in findings) else DONE


def _add_example(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("example", choices=_EXAMPLES, metavar="|".join(_EXAMPLES), help="the kind of object")


def _example(options: argparse.Namespace, console: Console) -> int:
    from importlib.resources import files

    folder = files("google_cloud_mldiagnostics._kubernetes").joinpath("examples")
    console.data(folder.joinpath(f"{options.example}.yaml").read_text(encoding="utf-8").rstrip("\n"))
    return DONE


def _add_policy(parser: argparse.ArgumentParser) -> None:
    _add_cluster(parser)


def _policy(options: argparse.Namespace, console: Console) -> int:
    import yaml

    from google_cloud_mldiagnostics._kubernetes.policy import policy_documents

    console.data(yaml.safe_dump_all(policy_documents(options.cluster), sort_keys=False, width=100_000).rstrip("\n"))
    return DONE


# --- Servers ------------------------------------------------------------------------------------------


def _add_webhook(parser: argparse.ArgumentParser) -> None:
    _add_context(parser)
    parser.add_argument("--certificate", metavar="FILE", type=Path, help="its certificate, which may be replaced")
    parser.add_argument("--key", metavar="FILE", type=Path, help="the key of the certificate")
    parser.add_argument("--self-signed", action="store_true", help="sign a certificate, and keep it in a Secret")
    _add_cluster(parser)
    parser.add_argument(
        "--stand-down",
        choices=("auto", "never"),
        default="auto",
        help="patch no pod while there is another injector (default: %(default)s)",
    )
    parser.add_argument("--port", metavar="N", type=whole_number(1, 65535), default=8443, help="(default: %(default)s)")
    _add_server(parser)


def _webhook(options: argparse.Namespace, console: Console) -> int:
    if options.self_signed == bool(options.certificate and options.key):
        options.parser.error("give --certificate and --key, or --self-signed")
    from google_cloud_mldiagnostics._kubernetes.webhook.server import WebhookSettings, serve

    settings = WebhookSettings(
        certificate=options.certificate,
        key=options.key,
        cluster=options.cluster,
        stand_down=options.stand_down,
        host=options.host,
        port=options.port,
        metrics_port=options.metrics_port,
    )
    return _serve(lambda: serve(settings, _connection(options, is_in_pod=True)))


def _add_operator(parser: argparse.ArgumentParser) -> None:
    _add_context(parser)
    parser.add_argument(
        "--namespace", metavar="NAME", action="append", default=[], help="only objects there; may be repeated"
    )
    parser.add_argument("--lease-namespace", metavar="NAME", default="", help="where its lease is (default: the pod's)")
    parser.add_argument("--local-storage", action="store_true", help="allow folders of the pods beside gs://")
    parser.add_argument("--host-network", action="store_true", help="profile pods that use the network of their node")
    parser.add_argument(
        "--record-facts", action="store_true", help="record phases, reasons and events of pods, for `doctor`"
    )
    parser.add_argument(
        "--allow-port",
        metavar="N",
        action="append",
        default=[],
        type=whole_number(1, 65535),
        help="a port of profiler servers; may be repeated (default: 9999, and all from 1024 on)",
    )
    parser.add_argument(
        "--concurrency", metavar="N", type=whole_number(1, 1000), default=8, help="captures at once (default: 8)"
    )
    parser.add_argument(
        "--ttl-seconds",
        metavar="N",
        type=whole_number(0, _MOST_SECONDS),
        default=604800,
        help="how long finished objects are kept, 0 for ever (default: %(default)s)",
    )
    parser.add_argument(
        "--probe-port", metavar="N", type=whole_number(1, 65535), default=8081, help="(default: %(default)s)"
    )
    _add_server(parser)


def _operator(options: argparse.Namespace, console: Console) -> int:
    from google_cloud_mldiagnostics._kubernetes.connections.operator import OperatorSettings, serve
    from google_cloud_mldiagnostics._kubernetes.connections.step import Policy

    policy = Policy(
        allows_local_storage=options.local_storage,
        ports=tuple(options.allow_port),
        most_captures=options.concurrency,
        ttl_seconds=options.ttl_seconds,
    )
    settings = OperatorSettings(
        namespaces=tuple(options.namespace),
        lease_namespace=options.lease_namespace,
        policy=policy,
        allows_host_network=options.host_network,
        records_facts=options.record_facts,
        host=options.host,
        probe_port=options.probe_port,
        metrics_port=options.metrics_port,
    )
    return _serve(lambda: serve(settings, _connection(options, is_in_pod=True)))


def _serve(serve: Callable[[], None]) -> int:
    """Run a server: its log is one JSON object a line, and garbage is collected, which commands do not need."""
    import gc

    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    gc.enable()
    serve()
    return DONE


class _JsonLines(logging.Formatter):
    """One JSON object for each record, as Cloud Logging reads it."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += f"\n{self.formatException(record.exc_info)}"
        return json.dumps({"severity": record.levelname, "message": message, "time": self.formatTime(record)})


# --- Options of several -------------------------------------------------------------------------------


def _add_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", type=Path, help="(default: KUBECONFIG, else ~/.kube/config)")
    parser.add_argument("--context", metavar="NAME", help="the context (default: the current one)")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        type=_cluster,
        default="",
        help="its name, as projects/P/locations/L/clusters/C (default: that of the metadata server)",
    )


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="ADDRESS", default="0.0.0.0", help="listen there (default: %(default)s)")
    parser.add_argument(
        "--metrics-port", metavar="N", type=whole_number(1, 65535), default=8080, help="(default: %(default)s)"
    )


def _cluster(text: str) -> str:
    if text and not re.fullmatch(r"projects/[^/\s]+/locations/[^/\s]+/clusters/[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"expected projects/P/locations/L/clusters/C, got {text!r}")
    return text


def _connection(options: argparse.Namespace, *, is_in_pod: bool = False) -> Connection:
    from google_cloud_mldiagnostics._kubernetes.api import Connection
    from google_cloud_mldiagnostics._kubernetes.kubeconfig import read_kubeconfig

    if is_in_pod and options.kubeconfig is None and options.context is None:
        return Connection.of_pod()
    return read_kubeconfig(options.kubeconfig, options.context)
