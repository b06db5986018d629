"""What gcloud is asked, as argv: pure functions, for what nothing else can do, such as keys and tunnels of ssh.

A name comes as a positional argument, so it must be one that Google Cloud could have given; every other value comes as
`--flag=value`, and cannot be taken for a flag. What runs on a VM goes through the shell that ssh always starts there,
and is quoted for it, word by word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xprofiler.exceptions import UsageError

__all__ = ["SshTarget", "checked_host", "checked_name", "create_instance", "ssh", "ssh_argv_in"]

# https://cloud.google.com/compute/docs/naming-resources; TPU nodes, zones and projects keep to it, too. A project of a
# domain is `domain.com:name`.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_HOST = re.compile(r"[a-z](?:[-_a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # The README's hosts are called vm_name1.
_PROJECT = re.compile(r"(?:[a-z0-9][-a-z0-9.]*:)?[a-z0-9][-a-z0-9]{0,61}[a-z0-9]", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_.][-A-Za-z0-9_.]*", re.ASCII)

_WHO = "log in as whoever is to have it: 'gcloud config set account ACCOUNT'"
# They would make a VM where, when or as whom it is neither looked for nor deleted again. gcloud takes no short forms.
_NOT_FOR_CREATE = {
    "--account": _WHO,
    "--access-token-file": "set CLOUDSDK_AUTH_ACCESS_TOKEN_FILE",
    "--async": "create waits until XProf answers",
    "--configuration": "set CLOUDSDK_ACTIVE_CONFIG_NAME",
    "--flags-file": "give the flags themselves",
    "--impersonate-service-account": _WHO,
    "--project": "set the project as for gcloud: 'gcloud config set project PROJECT'",
    "--zone": "give -z ZONE_NAME",
}
# They would lead to another machine than was found.
_NOT_FOR_SSH = {
    "--command": "what runs there is not up to you",
    "--project": _NOT_FOR_CREATE["--project"],
    "--worker": "name the workers as NAME-w0",
    "--zone": "give -z ZONE_NAME",
}


@dataclass(frozen=True)
class SshTarget:
    """A machine that gcloud knows the way to.

    Attributes:
        name: Of the VM or TPU; `user@name` logs in as that user.
        zone: Its zone.
        project: Its project; None is gcloud's own.
        tpu_worker: Which VM of a TPU slice; None for what is no TPU.
        through_iap: Whether to go through the Identity-Aware Proxy, as to a VM that has no external address.
        proxy_through_ssh_helper: Whether ssh goes through `corp-ssh-helper`, inside of Google.
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
    is_dry_run: bool = False,
) -> list[str]:
    """Returns the argv that runs ssh to a machine.

    gcloud makes the key if there is none, gives it to the machine, and knows the machine's address and host key.

    Args:
        target: The machine.
        options: For ssh itself, such as `-N -L 6006:localhost:6006`, each a word.
        program: What to run there and its arguments; none is a login shell.
        extra: The user's own flags for gcloud.
        is_dry_run: Only print the command of ssh: see `ssh_argv_in`.

    Raises:
        UsageError: A name cannot be one, or a flag of the user's leads elsewhere.
    """
    target = checked(target)
    for flag in (word.partition("=")[0] for word in extra):
        if flag in _NOT_FOR_SSH:
            raise UsageError(f"{flag} cannot go on to gcloud: {_NOT_FOR_SSH[flag]}")
    # The last of a kind counts, whatever a file of flags among the user's says.
    argv = ["gcloud", *_service(target), "ssh", target.name, *extra, f"--zone={target.zone}"]
    if target.project is not None:
        argv.append(f"--project={target.project}")
    if target.tpu_worker is not None:
        argv.append(f"--worker={target.tpu_worker}")
    if target.through_iap:
        argv.append("--tunnel-through-iap")
    if program:
        argv.append(f"--command={shlex.join(program)}")
    if is_dry_run:
        argv.append("--dry-run")
    if target.proxy_through_ssh_helper:
        options = ["-o", "ProxyCommand=corp-ssh-helper %h %p", *options]
    return [*argv, "--", *options] if options else argv


def ssh_argv_in(dry_run: str) -> list[str]:
    r"""Reads the command of ssh that `--dry-run` prints: words, with `"` around those that have a space, unescaped.

    Args:
        dry_run: One line of the output.

    Returns:
        The argv. A word that has `" ` within cannot be told from two; none of ours has.
    """
    return [quoted or plain for quoted, plain in re.findall(r'(?:^|(?<= ))(?:"(.*?)"|(\S+))(?= |$)', dry_run.strip())]


def create_instance(
    name: str,
    zone: str,
    project: str,
    flags: Sequence[str],
    pairs: Mapping[str, Mapping[str, str]],
    extra: Sequence[str] = (),
) -> list[str]:
    """Returns the argv that creates a VM.

    Args:
        name: Its name.
        zone: Its zone.
        project: Its project; gcloud's own may be another.
        flags: Others, each `--flag=value`.
        pairs: Flags that take keys and values: gcloud takes each but once.
        extra: The user's own flags, as typed. Pairs among them join ours, and ours win.

    Raises:
        UsageError: Such a flag of the user's has no pairs, or one says where or as whom: those are ours.
    """
    for word in extra:
        flag = word.partition("=")[0]
        if flag in _NOT_FOR_CREATE:
            raise UsageError(
                f"{flag} cannot go on to gcloud: the VM is watched from here, and deleted after a failure, which "
                f"needs to know the same; {_NOT_FOR_CREATE[flag]}"
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
    words = list(extra)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in flags:
            rest.append(word)
            continue
        if not equals:
            value = words.pop(0) if words else ""
        given.setdefault(flag, {}).update(_parse_pairs(flag, value))
    return rest, given


def _parse_pairs(flag: str, text: str) -> dict[str, str]:
    """Reads `a=b,c=d`, or `^:^a=b:c=d` with a separator of one's own: see `gcloud topic escaping`."""
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


def checked(target: SshTarget) -> SshTarget:
    """Returns the target, its names proven.

    Raises:
        UsageError: A name cannot be one.
    """
    user, at, name = target.name.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{user!r} is not the name of a user: use letters, digits, '.', '_' and '-'")
    if target.project is not None:
        _checked_project(target.project)
    return replace(target, name=f"{user}{at}{checked_host(name)}", zone=checked_name(target.zone, "zone"))


def checked_name(name: str, what: str) -> str:
    """Returns a name that Google Cloud could have given.

    Args:
        name: Any text.
        what: What has that name, for the message: "VM", "zone", "machine type".

    Raises:
        UsageError: It could not.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a {what}: one has 1 to 63 lower-case letters, digits and dashes, begins with "
            "a letter and does not end with a dash"
        )
    return name


def checked_host(name: str) -> str:
    """Returns the name of a VM or TPU that is looked for: one with an underscore may be, though Compute makes none.

    Raises:
        UsageError: It could not be one.
    """
    return name if _HOST.fullmatch(name) else checked_name(name, "VM")


def _checked_project(project: str) -> str:
    if not _PROJECT.fullmatch(project):
        raise UsageError(f"{project!r} is not the id of a project")
    return project


def _service(target: SshTarget) -> list[str]:
    if target.tpu_worker is None:
        return ["compute"]
    # Only the alpha track tunnels to TPU VMs through the Identity-Aware Proxy.
    return [*(["alpha"] if target.through_iap else []), "compute", "tpus", "tpu-vm"]
