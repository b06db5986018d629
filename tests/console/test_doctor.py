"""The report of the doctor: one story in the headline, everything else in its order, at most a screen."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import UsageError
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_console._explanation import explain_rule, explain_verdict
from ml_diagnostics_console._facts.facts import Fact, Facts
from ml_diagnostics_console._live.alerts import LOG_ID, AlertError, alerts_of
from ml_diagnostics_console._live.watch import Watch
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.rule import Rule, Threshold
from ml_diagnostics_console.doctor import Report, judge
from ml_diagnostics_console.report import format_report
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    Cost,
    CostBasis,
    NextCommand,
    NotChecked,
    Part,
    Verdict,
    VerdictClass,
)

from .made_facts import after, facts, process, ref


def verdict(rule: str = "C1", **fields: Any) -> Verdict:
    known: dict[str, Any] = {
        "verdict_class": VerdictClass.CRASH,
        "sentence": f"sentence of {rule} at step 41,207 (16:02:11 UTC)",
        "blame": Blame.USER,
        "confidence": Confidence.PROVEN,
        "hosts": ("tpu-17",),
        "evidence": (ref("killed, cgroup out-of-memory count 0 -> 1", host="tpu-17"),),
        "next": (NextCommand(f"mldiagnostics logs run-1 --host tpu-17 # {rule}", "find what grows"),),
    }
    return Verdict(rule=rule, **{**known, **fields})


def rule_of(result: Verdict | NotChecked | None, rule_id: str = "", **fields: Any) -> Rule:
    name = rule_id or (result.rule if result is not None else "X1")
    return Rule(name, f"symptom of {name}", ("entries",), lambda _: result, **fields)


def report_of(*results: Verdict | NotChecked | None, known: Facts | None = None, **replaces: tuple[str, ...]) -> Report:
    rules = [
        rule_of(result, replaces=replaces.get(result.rule, ()) if result is not None else ()) for result in results
    ]
    return judge(known or facts([process(0, end="exception: ValueError: x")]), rules)


def test_a_cascade_and_a_teardown_are_never_the_headline() -> None:
    report = report_of(
        verdict("C7", part=Part.CASCADE),
        verdict("C4", part=Part.TEARDOWN),
        verdict("L1", verdict_class=VerdictClass.SLOW, confidence=Confidence.POSSIBLE),
    )
    assert report.headline.rule == "L1"
    assert [each.rule for each in report.shown] == ["L1"]
    assert len(report.verdicts) == 3


def test_a_job_that_failed_is_not_first_of_all_slow() -> None:
    slow = verdict("L1", verdict_class=VerdictClass.SLOW, cost=Cost(9e9))
    report = report_of(slow, verdict("C1", confidence=Confidence.POSSIBLE))
    assert report.headline.rule == "C1"
    assert report.exit_code == 12


def test_the_more_certain_verdict_is_first_then_the_costlier_then_the_earlier() -> None:
    ordered = [
        verdict("C1"),
        verdict("C5", confidence=Confidence.LIKELY, cost=Cost(100)),
        verdict("C6", confidence=Confidence.LIKELY, cost=Cost(10), since_ns=1),
        verdict("C7", confidence=Confidence.LIKELY, cost=Cost(10), since_ns=2),
    ]
    assert [each.rule for each in report_of(*reversed(ordered)).verdicts] == ["C1", "C5", "C6", "C7"]


def test_a_more_specific_rule_replaces_the_general_one() -> None:
    report = report_of(verdict("C1"), verdict("C2", confidence=Confidence.LIKELY), C2=("C1",))
    assert report.headline.rule == "C2"
    assert [each.rule for each in report.shown] == ["C2"]
    assert {each.rule for each in report.verdicts} == {"C1", "C2"}


def test_a_possibility_replaces_nothing_that_is_proven() -> None:
    report = report_of(verdict("C1"), verdict("C2", confidence=Confidence.POSSIBLE), C2=("C1",))
    assert report.headline.rule == "C1"


def test_costs_are_in_chip_hours_where_the_number_of_chips_is_known() -> None:
    known = facts([process(0, end="exception: ValueError: x")], chips=Fact(256))
    report = report_of(verdict(cost=Cost(4320, CostBasis.LEDGER)), known=known)
    assert report.headline.cost is not None
    assert report.headline.cost.chip_hours == pytest.approx(307.2)
    assert "1 h 12 min, 307 chip-hours" in format_report(report)


def test_nothing_known_is_unknown_and_not_healthy() -> None:
    report = report_of(None)
    assert (report.headline.verdict_class, report.exit_code) == (VerdictClass.UNKNOWN, 19)


@given(
    st.lists(
        st.builds(
            verdict,
            st.sampled_from([f"X{number}" for number in range(40)]),
            verdict_class=st.sampled_from(VerdictClass),
            confidence=st.sampled_from(Confidence),
            part=st.sampled_from(Part),
            sentence=st.text(min_size=1, max_size=300),
            since_ns=st.none() | st.integers(0, 2**62),
            cost=st.none() | st.builds(Cost, st.floats(0, 1e9)),
        ),
        max_size=20,
        unique_by=lambda made: made.rule,
    ),
    st.integers(40, 200),
)
def test_any_report_is_text_of_the_terminal_and_json(made: list[Verdict], width: int) -> None:
    report = report_of(*made)
    assert json.loads(json.dumps(report.to_json()))["exit_code"] == report.exit_code
    assert len(report.shown) <= 5
    text = format_report(report, width)
    words = {word for each in made for word in each.sentence.split()}
    longest = max(map(len, words), default=0)
    whole = ("  next    mldiagnostics", "  explain mldiagnostics")  # Commands are not cut, so that they can be copied.
    lines = [line for line in text.splitlines() if not line.startswith(whole)]
    assert all(len(line) <= max(width, longest + 14) for line in lines)


def test_the_report_is_a_screen_with_the_answer_first() -> None:
    results = [verdict(f"C{number}") for number in range(1, 9)]
    missing = [NotChecked(f"{kind}{number}", f"reason {kind}{number}") for kind in "CW" for number in range(11, 16)]
    text = format_report(report_of(*results, *missing), 80)
    lines = text.splitlines()
    assert lines[0].startswith("Failed: sentence of C1 at step 41,207 (16:02:11 UTC).")
    assert "[proven]" in " ".join(lines[:2])
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    assert any(re.match(r"  proof   tpu-17: killed", line) for line in lines)
    assert any(line.startswith("  next    mldiagnostics logs run-1 --host tpu-17") for line in lines)
    assert "reason C11 (C11)" in text
    assert "reason W" not in text
    assert "not checked: 8 more rules; --all lists them" in text
    assert "reason W15 (W15)" in format_report(report_of(*results, *missing), 80, with_all=True)


def test_a_verdict_is_explained_with_each_entry_and_each_rival() -> None:
    report = report_of(verdict("C1"), verdict("C7", part=Part.CASCADE), NotChecked("W1", "no cluster was asked"))
    text = explain_verdict(report, report.headline)
    assert "host-0.1000" not in text
    assert "tpu-17.100000000000" in text
    assert "lost: C1 is initiating, C7 cascade" in text
    assert "W1: no cluster was asked" in text


def test_a_verdict_that_is_not_the_headline_is_explained_by_what_won() -> None:
    slow = verdict("L1", verdict_class=VerdictClass.SLOW, part=Part.CONTRIBUTING)
    report = report_of(verdict("C1"), slow)
    text = explain_verdict(report, report.verdicts[1])
    assert "won: C1 is initiating, L1 contributing" in text


def test_a_text_of_the_job_does_not_control_the_terminal() -> None:
    evil = "\x1b[2Jcleared \u202e reversed\r\n"
    report = report_of(verdict("C1", sentence=evil, evidence=(ref(evil),), next=(NextCommand(f"echo {evil}", evil),)))
    assert all(character.isprintable() or character == "\n" for character in str(report))


def test_a_rule_is_explained_with_its_thresholds_and_their_source() -> None:
    threshold = Threshold("share of the step", "10 %", "below it a profile cannot separate it from noise")
    text = explain_rule(rule_of(None, "L1", thresholds=(threshold,), example="input-bound: 62 % of each step"))
    assert text.startswith("L1: symptom of L1")
    assert "10 %" in text
    assert "below it a profile" in text


def test_every_rule_has_an_id_of_its_own_and_explains_itself() -> None:
    rules = all_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    known = {rule.id for rule in rules}
    for rule in rules:
        assert re.fullmatch(r"[A-Z]{1,2}\d{0,2}s?", rule.id), rule.id
        assert rule.title, rule.id
        assert rule.needs, rule.id
        assert rule.example, rule.id
        assert set(rule.replaces) <= known, rule.id
        assert explain_rule(rule)


class Reader:
    """A reader that returns one of some facts after the other."""

    def __init__(self, *known: Facts) -> None:
        self.known = list(known)

    def read(self) -> Facts:
        return self.known.pop(0) if len(self.known) > 1 else self.known[0]


def live(**fields: Any) -> Facts:
    return facts([process(0)], is_live=True, **fields)


def over() -> Facts:
    return facts([process(0, end="exception: ValueError: x")], is_live=False)


def judged_by(found: dict[int, Verdict]) -> Any:
    """Return a judge that finds the verdict of a look."""
    looks = iter(range(100))

    def judged(known: Facts) -> Report:
        result = found.get(next(looks))
        return judge(known, [rule_of(result)] if result is not None else [])

    return judged


class Alerts:
    """An alert that fails some times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.sent: list[str] = []

    def send(self, report: Report, verdict: Verdict) -> None:
        if self.failures:
            self.failures -= 1
            raise AlertError("the webhook does not answer")
        self.sent.append(verdict.rule)


def test_a_watched_job_reports_each_verdict_once_and_ends_with_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    alert, waits = Alerts(failures=1), list[float]()
    slow = verdict("L1", verdict_class=VerdictClass.SLOW)
    crash = verdict("C1", sentence="host-0 failed first: ValueError: x")
    reader = Reader(live(), live(), live(), over())
    watch = Watch(
        reader,  # type: ignore[arg-type]
        Console("mldiagnostics"),
        "text",
        [alert],
        wait=waits.append,
        judged=judged_by({0: slow, 1: slow, 2: slow, 3: crash}),
    )
    assert watch.run() == 12
    assert alert.sent == ["L1", "C1"]
    assert waits == [10.0, 10.0, 10.0]
    printed = capsys.readouterr()
    assert printed.out.count("sentence of L1") == 1
    assert printed.out.count("host-0 failed first") == 1
    assert printed.err.count("the webhook does not answer") == 1


def test_the_alert_on_the_last_verdict_is_tried_again_after_the_end_of_the_job() -> None:
    alert, waits = Alerts(failures=3), list[float]()
    watch = Watch(
        Reader(over()),  # type: ignore[arg-type]
        Console("mldiagnostics"),
        "text",
        [alert],
        wait=waits.append,
        judged=judged_by({0: verdict("C1")}),
    )
    assert watch.run() == 12
    assert alert.sent == ["C1"]
    assert len(waits) == 3


def test_a_verdict_on_a_further_host_is_a_further_alert() -> None:
    alert = Alerts()
    one, two = verdict("L2", hosts=("host-3",)), verdict("L2", hosts=("host-3", "host-4"))
    watch = Watch(
        Reader(live(), live(), live(), over()),  # type: ignore[arg-type]
        Console("mldiagnostics"),
        "text",
        [alert],
        wait=lambda _: None,
        judged=judged_by({0: one, 1: two, 2: one, 3: two}),
    )
    watch.run()
    assert alert.sent == ["L2", "L2"]


def test_watching_can_end_at_the_first_verdict_of_a_kind() -> None:
    stuck = verdict("K1", verdict_class=VerdictClass.STUCK)
    watch = Watch(
        Reader(live()),  # type: ignore[arg-type]
        Console("mldiagnostics"),
        "text",
        until="stuck",
        wait=lambda _: None,
        judged=judged_by({2: stuck}),
    )
    assert watch.run() == 13


class Webhook(BaseHTTPRequestHandler):
    """Keeps what is posted; `/moved` redirects, `/broken` answers 500."""

    received: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/hook")
        else:
            self.send_response(500 if self.path == "/broken" else 204)
            if self.path == "/hook":
                self.received.append({"host": self.headers["Host"], **json.loads(body)})
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[int]:
    Webhook.received.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_verdict_as_json(webhook: int) -> None:
    report = report_of(verdict("C1"))
    (alert,) = alerts_of([f"webhook=http://localhost:{webhook}/hook"], allows_private=True)
    alert.send(report, report.headline)
    (received,) = Webhook.received
    assert received["host"] == f"localhost:{webhook}"
    assert received["run"] == "run-1"
    assert received["verdict"]["rule"] == "C1"


def test_a_webhook_on_a_private_address_is_refused_unless_allowed(webhook: int) -> None:
    report = report_of(verdict("C1"))
    private = ("localhost", "127.0.0.1", "0.0.0.0", "[::1]", "10.0.0.7", "169.254.169.254", "224.0.0.1")
    for host in (*private, "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fec0::1]", "[::ffff:10.0.0.7]"):
        (alert,) = alerts_of([f"webhook=http://{host}:{webhook}/hook"], allows_private=False)
        with pytest.raises(AlertError, match=r"not public|has no address"):
            alert.send(report, report.headline)
    assert Webhook.received == []


@pytest.mark.parametrize("path", ["moved", "broken"])
def test_a_webhook_that_redirects_or_fails_is_reported_and_not_followed(webhook: int, path: str) -> None:
    report = report_of(verdict("C1"))
    (alert,) = alerts_of([f"webhook=http://127.0.0.1:{webhook}/{path}"], allows_private=True)
    with pytest.raises(AlertError, match="status"):
        alert.send(report, report.headline)
    assert Webhook.received == []


@pytest.mark.parametrize(
    "target", ["webhook=", "webhook=ftp://x/", "webhook=https://a:b@x/", "mail", "webhook=http://x:0/"]
)
def test_an_alert_that_is_not_valid_is_a_usage_error(target: str) -> None:
    with pytest.raises(UsageError) as caught:
        alerts_of([target], allows_private=False)
    assert "a:b" not in str(caught.value)


@pytest.mark.parametrize(("target", "key"), [("entry", "rule"), ("event", "displayName")])
def test_a_verdict_can_be_an_entry_of_the_journal(target: str, key: str) -> None:
    report = report_of(verdict("C1", since_ns=after(3)))
    (alert,) = alerts_of([target], allows_private=False)
    alert.send(report, report.headline)
    (entry,) = [each for batch in JournalReader(LOG_ID, root=diagnostics_directory()).read_new() for each in batch]
    assert key in entry.payload
    assert entry.context.labels["run"] == "run-1"
