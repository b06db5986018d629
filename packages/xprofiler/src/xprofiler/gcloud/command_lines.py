"""Command lines of gcloud for what the APIs cannot do, such as ssh keys and tunnels. Pure functions.

A name is a positional argument, so it must be valid in Google Cloud; every other value is passed as `--flag=value`, so
that it cannot be parsed as a flag. A program on a VM goes through the shell that ssh always starts there, so each of
its arguments is quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ml_diagnostics_common.command.errors import UsageError

__all__ = ["SshTarget", "checked_host", "checked_name", "create_instance", "ssh"]

# https://cloud.google.com/compute/docs/naming-resources; TPU nodes, zones and projects follow it, too. A project of a
# domain is `domain.com:name`.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_HOST = re.compile(r"[a-z](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # The README's hosts are called vm_name1.
_PROJECT = re.compile(r"(?:[a-z0-9][-a-z0-9.]*:)?[a-z0-9][-a-z0-9]{0,61}[a-z0-9]", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_.][-A-Za-z0-9_.]*", re.ASCII)

_USE_ACCOUNT = "log in as the account that is to own it: 'gcloud config set account ACCOUNT'"
# These flags change the VM's zone, project or account, or do not wait for it: setup and cleanup would not find the VM.
# gcloud does not accept abbreviated flags, so full names suffice.
_NOT_FOR_CREATE = {
    "--account": _USE_ACCOUNT,
    "--access-token-file": "set CLOUDSDK_AUTH_ACCESS_TOKEN_FILE",
    "--async": "create waits until XProf answers",
    "--configuration": "set CLOUDSDK_ACTIVE_CONFIG_NAME",
    "--flags-file": "give the flags themselves",
    "--impersonate-service-account": _USE_ACCOUNT,
    "--project": "set the project as for gcloud: 'gcloud config set project PROJECT'",
    "--zone": "give -z ZONE_NAME",
}
# These flags would select another machine than the one that was found.
_NOT_FOR_SSH = {
    "--command": "xprofiler chooses the program to run",
    "--project": _NOT_FOR_CREATE["--project"],
    "--worker": "name the workers as NAME-w0",
    "--zone": "give -z ZONE_NAME",
}


@dataclass(frozen=True)
class SshTarget:
    """A machine that gcloud can connect to.

    Attributes:
        name: The name of the VM or TPU; `user@name` logs in as that user.
        zone: Its zone.
        project: Its project; None selects gcloud's own.
        tpu_worker: The number of the VM in a TPU slice; None if it is not a TPU.
        through_iap: True to connect through the Identity-Aware Proxy, as for a VM without an external address.
        proxy_through_ssh_helper: True to connect through `corp-ssh-helper`, inside Google.
    """

    name: str
    zone: str
    project: str | None = None
    tpu_worker: int | None = None
    through_iap: bool = False
    proxy_through_ssh_helper: bool = False


def ssh(
    target: SshTarget,
    *,
    options: Sequence[str] = (),
    program: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the argv that runs ssh to a machine.

    gcloud creates a key if necessary, installs it on the machine, and knows the machine's address and host key.

    Args:
        target: The machine.
        options: Options for ssh itself, such as `-N -L 6006:localhost:6006`, one argument each.
        program: The program to run and its arguments; empty starts a login shell.
        extra: The user's own flags for gcloud.

    Raises:
        UsageError: A name is not valid, or a flag of the user's would select another machine.
    """
    target = _checked_target(target)
    for flag in (argument.partition("=")[0] for argument in extra):
        if flag in _NOT_FOR_SSH:
            raise UsageError(f"{flag} cannot be passed to gcloud: {_NOT_FOR_SSH[flag]}")
    # gcloud uses the last value of a flag, so ours follow the user's, which may include a --flags-file.
    argv = ["gcloud", *_service(target), "ssh", target.name, *extra, f"--zone={target.zone}"]
    if target.project is not None:
        argv.append(f"--project={target.project}")
    if target.tpu_worker is not None:
        argv.append(f"--worker={target.tpu_worker}")
    if target.through_iap:
        argv.append("--tunnel-through-iap")
    if program:
        argv.append(f"--command={shlex.join(program)}")
    if target.proxy_through_ssh_helper:
        options = ["-o", "ProxyCommand=corp-ssh-helper %h %p", *options]
    return [*argv, "--", *options] if options else argv


def create_instance(
    name: str,
    zone: str,
    project: str,
    flags: Sequence[str],
    pairs: Mapping[str, Mapping[str, str]],
    extra: Sequence[str] = (),
) -> list[str]:
    """Return the argv that creates a VM.

    Args:
        name: Its name.
        zone: Its zone.
        project: Its project, which may differ from gcloud's own.
        flags: Other flags, each `--flag=value`.
        pairs: Flags that take keys and values: gcloud accepts each only once.
        extra: The user's own flags, each with its value. Their pairs are merged with ours, and ours take precedence.

    Raises:
        UsageError: A user's flag of this kind has no pairs, or a flag would change the zone, project or account.
    """
    for argument in extra:
        flag = argument.partition("=")[0]
        if flag in _NOT_FOR_CREATE:
            raise UsageError(
                f"{flag} cannot be passed to gcloud: xprofiler monitors the VM, and deletes it after a failure, with "
                f"its own project, zone and account; {_NOT_FOR_CREATE[flag]}"
            )
    rest, given = _take_pairs(extra, pairs)
    joined = {flag: {**given.get(flag, {}), **ours} for flag, ours in pairs.items()}
    return [
        *("gcloud", "compute", "instances", "create", checked_name(name, "VM")),
        f"--zone={checked_name(zone, 'zone')}",
        f"--project={_checked_project(project)}",
        *flags,
        *(f"{flag}={_render_pairs(values)}" for flag, values in joined.items()),
        *rest,
    ]


def _take_pairs(extra: Sequence[str], flags: Mapping[str, object]) -> tuple[list[str], dict[str, dict[str, str]]]:
    rest: list[str] = []
    given: dict[str, dict[str, str]] = {}
    for argument in extra:
        flag, _, value = argument.partition("=")
        if flag in flags:
            given.setdefault(flag, {}).update(_parse_pairs(flag, value))
        else:
            rest.append(argument)
    return rest, given


def _parse_pairs(flag: str, text: str) -> dict[str, str]:
    """Parse `a=b,c=d`, or `^:^a=b:c=d` with a custom separator: see `gcloud topic escaping`."""
    found = re.fullmatch(r"\^([^^]+)\^(.*)", text, re.DOTALL)
    separator, text = (found[1], found[2]) if found else (",", text)
    pairs = [pair.partition("=") for pair in text.split(separator)]
    if any(not key or not equals for key, equals, _ in pairs):
        raise UsageError(f"{flag} takes KEY=VALUE,...: {text!r} is not of that form")
    return {key: value for key, _, value in pairs}


def _render_pairs(pairs: Mapping[str, str]) -> str:
    text = "".join((*pairs, *pairs.values()))
    candidates = (",", *"|;:~#", *(f"--{number}--" for number in range(len(text) + 1)))
    separator = next(candidate for candidate in candidates if candidate not in text)
    joined = separator.join(f"{key}={value}" for key, value in pairs.items())
    return joined if separator == "," else f"^{separator}^{joined}"


def _checked_target(target: SshTarget) -> SshTarget:
    """Return the target if its names are valid.

    Raises:
        UsageError: A name is not valid.
    """
    user, at, name = target.name.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{user!r} is not a valid name of a user: use letters, digits, '.', '_' and '-'")
    if target.project is not None:
        _checked_project(target.project)
    return replace(target, name=f"{user}{at}{checked_host(name)}", zone=checked_name(target.zone, "zone"))


def checked_name(name: str, what: str) -> str:
    """Return a name if it is valid in Google Cloud.

    Args:
        name: Any text.
        what: The kind of resource, for the message: "VM", "zone", "machine type".

    Raises:
        UsageError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid name of a {what}: use 1 to 63 lower-case letters, digits and dashes; start with "
            "a letter, and do not end with a dash"
        )
    return name


def checked_host(name: str) -> str:
    """Return the name of a VM or TPU to search for, if it is valid. The README's hosts have underscores.

    Raises:
        UsageError: The name is not valid.
    """
    return name if _HOST.fullmatch(name) else checked_name(name, "VM")


def _checked_project(project: str) -> str:
    if not _PROJECT.fullmatch(project):
        raise UsageError(f"{project!r} is not a valid project id")
    return project


def _service(target: SshTarget) -> list[str]:
    if target.tpu_worker is None:
        return ["compute"]
    # Only the alpha track tunnels to TPU VMs through the Identity-Aware Proxy.
    return [*(["alpha"] if target.through_iap else []), "compute", "tpus", "tpu-vm"]
