"""A plain filter means what it means to gcloud: held against gcloud's own modules."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xprofiler.cloud.api import GoogleApi
from xprofiler.viewers.filters import parse_filters
from xprofiler.viewers.on_compute import ViewersOnCompute
from xprofiler.viewers.viewer import Sought

from ..loopback.compute import ComputeServer
from .viewer_vms import add_viewer

_ZONES = "https://www.googleapis.com/compute/v1/projects/p/zones"
VMS: list[dict[str, Any]] = [
    {"name": "xprof-a", "zone": f"{_ZONES}/us-central1-a", "status": "RUNNING", "labels": {"owner": "ann", "run": ""}},
    {"name": "xprof-bee", "zone": f"{_ZONES}/us-central1-b", "status": "TERMINATED", "labels": {"owner": "ann-marie"}},
    {"name": "a", "zone": f"{_ZONES}/us-east5-a", "status": "RUNNING", "labels": {"owner": "null"}},
    {"name": "other", "zone": f"{_ZONES}/us-central1-a", "machineType": f"{_ZONES}/us-central1-a/machineTypes/c4-x"},
    {"name": "rene", "status": "STAGING", "labels": {"owner": "ren\u00e9", "run": "x_y"}},
    {},
]
KEYS = ("name", "zone", "status", "machineType", "labels.owner", "labels.run", "labels.nothing")
WORDS = ("xprof-a", "xprof", "XPROF-BEE", "a", "us-central1-a", "us-central1", "Running", "ann", "ann-marie", "null",
         "rene", "x_y", "c4-x", "c4", "marie", "e", "other")  # fmt: skip
PATTERNS = ("^xprof", "a$", "[ab]", "x.*e", "^$", "us-(east|central)", "RUN", ".")


def random_filter(dice: random.Random) -> str:
    terms = []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        key, minus = dice.choice(KEYS), dice.choice(("", "", "", "-", "NOT "))
        sign = dice.choice((":", "=", "!=", "~", "!~"))
        values = dice.sample(WORDS, 2)
        value = values[0]
        if "~" in sign:
            value = dice.choice([pattern for pattern in PATTERNS if "(" not in pattern])
        elif sign == ":":
            value = dice.choice((value, f"{value}*", "*", f"({' '.join(values)})"))
        elif sign == "=":
            value = dice.choice((value, f"({','.join(values)})"))
        space = dice.choice(("", "", " "))
        terms.append(f"{minus}{key}{space}{sign}{space}{value}")
    return dice.choice((" ", " AND ")).join(terms)


def gcloud_says(filters: list[str]) -> list[list[bool]]:
    program = shutil.which("gcloud")
    sdk = Path(os.path.realpath(program or "")).parents[1]
    if not (sdk / "lib/googlecloudsdk/core/resource/resource_filter.py").exists():
        pytest.skip("gcloud, or its modules, are not on this machine")
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("evaluated_by_gcloud.py")), str(sdk)],
        input=json.dumps({"filters": filters, "vms": VMS}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer: list[list[bool]] = json.loads(ended.stdout)
    return answer


def passed(text: str) -> list[bool]:
    terms = parse_filters([text])
    assert terms is not None, text
    return [all(term.holds(vm) for term in terms) for vm in VMS]


def test_2000_plain_filters_mean_what_they_mean_to_gcloud() -> None:
    dice = random.Random(6)
    filters = [random_filter(dice) for _ in range(2_000)]
    for text, theirs in zip(filters, gcloud_says(filters), strict=True):
        assert passed(text) == theirs, text


@pytest.mark.parametrize(
    "text",
    [
        "name=a OR name=b",
        "(name=a)",
        "name='a b'",
        'name="a"',
        "labels.n=10",
        "labels.on=true",
        "creationTimestamp>2026-01-01",
        "name=",
        "name",
        "name=a AND",
        "AND name=a",
        "name=NOT",
        "labels.OWNER=ann",
        "name:a*b",
        "name=a*",
        "name~[",
        "name.len()=3",
        "status!=(a b)",
        "name=a;b",
    ],
)
def test_what_is_not_plain_is_left_to_gcloud(text: str) -> None:
    assert parse_filters([text]) is None


def test_no_filter_passes_all() -> None:
    assert parse_filters([]) == []
    assert parse_filters(["  "]) == []


def test_what_compute_is_asked_for_hides_nothing_that_passes(cloud: ComputeServer, api: GoogleApi) -> None:
    for name, owner in (("xprof-a", "ann"), ("xprof-b", "bob"), ("xprof-c", "")):
        add_viewer(cloud, name, labels={"owner": owner} if owner else {})
    dice = random.Random(7)
    texts = [
        "name=xprof-a",
        "name=(XPROF-A xprof-b)",
        "labels.owner=Ann status=running",
        "-name=xprof-a",
        "status=stopped",
    ]
    texts += [random_filter(dice) for _ in range(40)]
    everything = [vm["name"] for vm in cloud.instances()]
    for text in texts:
        terms = parse_filters([text]) or []
        wanted = [name for name in everything if all(term.holds(cloud.instance(name)) for term in terms)]
        assert [viewer.name for viewer in ViewersOnCompute(api).find(Sought(filters=[text]))] == wanted, text
