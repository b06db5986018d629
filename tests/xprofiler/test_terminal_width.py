"""Terminals of 80 and of 200 columns: help fits both, and all other output is equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xprofiler.cli import COMMAND_NAMES

from ..loopback.compute import ComputeServer
from .typed_commands import Ended, typed
from .viewer_vms import add_viewer

WIDTHS = (80, 200)
WHERE = ("-z", "us-central1-a", "-l", "gs://test-bucket/run/tensorboard")

DELETED = """\
Found 2 VM(s) to delete.
Log_Directory                     URL                                                          Name       Zone
--------------------------------  -----------------------------------------------------------  ---------  -------------
gs://test-bucket/run/tensorboard  https://one-dot-us-central1.notebooks.googleusercontent.com  xprof-one  us-central1-a
gs://test-bucket/run/tensorboard  no link                                                      xprof-two  us-central1-a
"""
WILL_DELETE = "Will delete VM `xprof-one`\nWill delete VM `xprof-two`\n"
PLANNED = """\
gcloud compute instances create xprof-x --zone=us-central1-a --project=test-project --machine-type=c4-highmem-8 \
--tags=default-allow-ssh --image-family=debian-12 --image-project=debian-cloud --scopes=cloud-platform \
--labels=xprofiler_version=V,tensorboard_plugin_profile=V,xprofiler_creation=ID --metadata=xprofiler_version=V,\
xprofiler_log_directory=gs://test-bucket/run/tensorboard,tensorboard-plugin-profile=V \
--metadata-from-file=startup-script=SCRIPT
"""
NOT_CAPTURED = """\
Host         Status    Size    Start
-----------  --------  ------  -------
127.0.0.1:1  failed
"""


def at_both_widths(*arguments: str) -> Ended:
    """Return the output of the command, which must be equal at both widths."""
    narrow, wide = (without_creation(typed(*arguments, columns=width)) for width in WIDTHS)
    assert narrow == wide
    return wide


def without_creation(ended: Ended) -> Ended:
    """Return the result with the random creation ids replaced."""
    return ended._replace(output=re.sub("(?<=xprofiler_creation=)[0-9a-f]{32}", "ID", ended.output))


def without_padding(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["", *COMMAND_NAMES])
def test_help_fits_and_has_the_same_text(name: str) -> None:
    texts = []
    for width in WIDTHS:
        ended = typed(*filter(None, [name]), "--help", columns=width)
        assert ended.code == 0
        assert max(map(len, ended.output.splitlines())) <= width
        texts.append(ended.output.split())
    assert texts[0] == texts[1]
    assert texts[0][:2] == ["usage:", "xprofiler"]


def test_a_deletion_is_shown_as_in_the_readme(cloud: ComputeServer) -> None:
    outputs = []
    for width in WIDTHS:
        add_viewer(cloud, "xprof-one", logs=WHERE[3], link="one")
        add_viewer(cloud, "xprof-two", logs=WHERE[3])
        outputs.append(typed("delete", *WHERE, "--quiet", columns=width))
    assert outputs[0] == outputs[1]
    assert (outputs[0].code, without_padding(outputs[0].output), outputs[0].errors) == (0, DELETED, WILL_DELETE)


def test_a_dry_run_is_one_command_to_copy(cloud: ComputeServer) -> None:
    ended = at_both_widths("create", *WHERE, "-n", "xprof-x", "--dry-run")
    output = re.sub(r"(?<==)\d+[.-]\d+[.-]\d+(?:[-+]mld)?(?=[, ])", "V", ended.output)
    assert re.sub(r"startup-script=\S+", "startup-script=SCRIPT", output) == PLANNED
    assert (ended.code, ended.errors) == (0, "")


def test_a_capture_without_profiles_is_reported_in_a_table_and_a_sentence(tmp_path: Path) -> None:
    arguments = ("capture", "-o", "local", "-f", "jax", "-n", "127.0.0.1:1", "-l", str(tmp_path), "-d", "100")
    ended = at_both_widths(*arguments)
    assert ended.code == 1
    assert without_padding(ended.output) == NOT_CAPTURED
    assert ended.errors.splitlines()[:2] == ["Capturing 100 ms of 127.0.0.1:1, all at the same moment.", ""]
    assert "Failed to profile host 127.0.0.1:1 with error: nothing listens at 127.0.0.1:1." in ended.errors
