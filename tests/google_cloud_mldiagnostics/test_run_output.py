"""A run as one page of text, with the most important part first."""

from __future__ import annotations

import json
import sys

import pytest
from google_cloud_mldiagnostics._cli.html import format_html
from google_cloud_mldiagnostics._cli.run_output import format_run, format_runs, run_as_dict, runs_as_dicts
from google_cloud_mldiagnostics._reading.run_view import RunView

from .sample_entries import at, metric, process, resource, rfc3339, session, view


def part(page: str, title: str) -> list[str]:
    """Return the lines of a part of a page, without its title."""
    lines = page.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(title)) + 2
    return [line for line in lines[first : lines.index("", first) if "" in lines[first:] else None] if line]


def test_failed_processes_are_listed_first_in_order_of_time() -> None:
    entries = [process("ACTIVE", 0, host=f"host-{number}", index=number, count=128) for number in range(128)]
    entries.append(process("FAILED", 9, host="host-90", index=90, count=128, reason="RuntimeError: socket closed"))
    entries.append(process("FAILED", 8, host="host-100", index=100, count=128, reason="disk full"))
    page = format_run(view(resource(), *entries, now=10), [], [], at(10))
    assert page.splitlines()[1] == "  host-100 (process 100): disk full; 1 other failed because of it"
    assert "128 processes: 2 FAILED, 126 ACTIVE" in page
    lines = part(page, "128 processes")
    assert [line.split()[1] for line in lines[2:5]] == ["host-100", "host-90", "host-0"]
    assert lines[-1] == "  ... 116 more processes; --format json has all"


def test_a_single_process_that_cannot_be_profiled_is_not_a_table() -> None:
    assert "process " not in format_run(view(resource(), process("ACTIVE", 0), now=1), [], [], at(1))


def test_many_attempts_and_profiles_are_cut_in_the_middle() -> None:
    entries = [process("ACTIVE", 100 * number, attempt=number, pid=number) for number in range(1, 31)]
    entries += [session(f"s{number:02}", "SUCCEEDED", number) for number in range(30)]
    page = format_run(view(resource(), *entries, now=3001), [], [], at(3001))
    for title, first, last in (("30 attempts", "1", "30"), ("30 profiles", "s00", "s29")):
        lines = part(page, title)
        assert f"  ... 18 more {title.removeprefix('30 ')}; --format json has all" in lines
        assert (lines[2].split()[0], lines[-1].split()[0]) == (first, last)
    assert len(page.splitlines()) < 60


def test_profiles_are_listed_with_the_command_to_open_them_and_their_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "/my runs/run-1/profiles/plugins/profile/s1"
    profile = session("s1", "FAILED", 5, folder=folder, problem="its file is empty", size_bytes=0)
    page = format_run(view(resource(), profile, now=9), [], [], at(9))
    assert "host-0: its file is empty" in page
    assert "  open: xprofiler serve -l '/my runs/run-1/profiles'" in page.splitlines()
    monkeypatch.setitem(sys.modules, "xprofiler", None)  # As if it were not installed.
    page = format_run(view(resource(), profile, now=9), [], [], at(9))
    assert "  open: xprof --logdir '/my runs/run-1/profiles' --port 8791" in page.splitlines()


def test_a_framework_that_is_not_installed_is_not_shown_to_people() -> None:
    def shown(version: str) -> RunView:
        software = {"framework": "JAX", "framework_version": version, "python_version": "3.12.1"}
        return view(resource(configs={"softwareConfigs": software}), now=6)

    for text in (format_run(shown("n/a"), [], [], at(6)), format_html(shown("n/a"), {}, [], at(6))):
        assert "3.12.1" in text
        assert "framework" not in text
    for text in (format_run(shown("0.10.2"), [], [], at(6)), format_html(shown("0.10.2"), {}, [], at(6))):
        assert "framework_version" in text
    assert run_as_dict(shown("n/a"))["configs"]["software"]["framework"] == "JAX"


def test_nothing_is_cut_in_a_pipe() -> None:
    long = {name: f"{name}-{'x' * 400}-end" for name in ("group", "host", "reason", "profile", "problem", "value")}
    entries = [
        process("FAILED", 5, host=f"{long['host']}{index}", index=index, reason=long["reason"]) for index in (0, 1)
    ]
    entries.append(session(long["profile"], "FAILED", 5, problem=long["problem"]))
    shown = view(resource(runSet=long["group"], configs={"userConfigs": {"key": long["value"]}}), *entries, now=6)
    page, table = format_run(shown, [], [], at(6)), format_runs([shown], at(6))
    assert [name for name, text in long.items() if text not in page] == []
    assert long["group"] in table
    assert long["reason"] in table
    assert "-end" not in format_run(shown, [], [], at(6), width=100)
    assert "-end" not in format_runs([shown], at(6), width=100)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal_and_names_and_ids_are_not_cut(width: int) -> None:
    entries = [process("FAILED", 100 * number, attempt=number, reason="r" * 90) for number in range(1, 31)]
    hosts = [f"slice-{index}-{'x' * 20}" for index in range(2)]
    entries += [
        process("ACTIVE", 4000, attempt=31, host=host, index=index, count=2, pid=4_000_000, profiler_port=9012)
        for index, host in enumerate(hosts)
    ]
    profiles = [f"2026_11_21_05_36_{second}" for second in range(10, 40)]
    entries += [session(profile, "FAILED", 9, problem="p" * 90, size_bytes=10**8) for profile in profiles]
    page = format_run(view(resource(), *entries, now=9000), [], [], at(9000), width=width)
    rows = [line for title in ("31 attempts", "2 processes", "30 profiles") for line in part(page, title)]
    assert max(map(len, rows)) <= width
    for name in (*hosts, profiles[0], profiles[-1]):
        assert any(f" {name} " in row for row in rows)


def test_line_breaks_in_recorded_text_are_removed() -> None:
    failed = process("FAILED", 5, reason="first line\nsecond line\r\n" + "x" * 500)
    kept = resource(displayName="two\nlines", configs={"userConfigs": {"a\nb": "c\nd" * 500}})
    page = format_run(view(kept, failed, now=6), [], [], at(6), width=320)
    assert "first line second line" in page
    assert "  a b  c dc d" in page
    assert max(map(len, page.splitlines())) < 320


@pytest.mark.parametrize("ended", [None, rfc3339(125)])
def test_how_long_a_run_lasted(ended: str | None) -> None:
    kept = resource("COMPLETED", endTime=ended) if ended else resource()
    lines = format_runs([view(kept, process("ACTIVE", 119), now=120)], at(120)).splitlines()
    assert ("2 min 5 s" if ended else "2 min 0 s") in lines[2]


def test_a_silent_run_lasted_until_its_last_event() -> None:
    shown = view(resource(), process("ACTIVE", 0), metric("loss", 60, 1.0), now=7200)
    assert "1 min 0 s" in format_runs([shown], at(7200)).splitlines()[2]


def test_json_has_times_as_text_and_none_for_what_is_not_known() -> None:
    shown = view(resource(), process("ACTIVE", 0, profiler_port=9999), now=1)
    as_dict = run_as_dict(shown)
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert (as_dict["started"], as_dict["ended"]) == (rfc3339(0), None)
    (known,) = as_dict["attempts"][0]["processes"]
    assert (known["state"], known["started"], known["profiler_port"]) == ("ACTIVE", rfc3339(0), 9999)
    assert runs_as_dicts([shown])[0]["run"] == "run-1"
