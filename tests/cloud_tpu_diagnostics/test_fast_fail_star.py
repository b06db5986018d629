"""The connections of a star over real sockets: members join and receive the first cause; strangers change nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics._collect.fast_fail import JobFastFail
from cloud_tpu_diagnostics._fast_fail import meeting
from cloud_tpu_diagnostics._fast_fail.hub import AUTHENTICATION_SECONDS, Hub
from cloud_tpu_diagnostics._fast_fail.meeting import (
    FOLDER,
    LAUNCH,
    TOKEN,
    Address,
    LoopbackError,
    Meeting,
    default_address,
    launch_id,
    launcher_token,
    local_address,
)
from cloud_tpu_diagnostics._fast_fail.member import Member
from cloud_tpu_diagnostics._fast_fail.messages import MEMBER, Channel, nonce_in
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState
from cloud_tpu_diagnostics._fast_fail.star import POSITION, PUBLISHED, Star
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.story import ProcessEnd
from ml_diagnostics_testing.cloud_storage import CloudStorageServer

from ..waiting import free_port, wait_until

KEY = bytes(range(32))
KILLED = Event("ended", ProcessEnd("signal", ended_ns=time.time_ns(), signal="SIGKILL"), 7)


class Clock:
    """Monotonic seconds that also pass by themselves, so that sockets have their time."""

    def __init__(self) -> None:
        self.added = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) + self.added

    def stop(self) -> None:
        """Let no time pass by itself from now on."""
        self._stopped_at = time.monotonic()


class Network:
    """A hub, and members that connect to it."""

    def __init__(self, processes: int = 4, **hub: Any) -> None:
        self.clock = Clock()
        self.hub = Hub("127.0.0.1", KEY, processes, hello(0), clock=self.clock, **hub)
        self.members: list[Member] = []

    def member(self, index: int, token: bytes = KEY, **differs: Any) -> Member:
        member = Member("127.0.0.1", self.hub.port, token, hello(index)._replace(**differs), clock=self.clock)
        self.members.append(member)
        return member

    def step(self) -> bool:
        self.hub.step()
        for member in self.members:
            member.step()
        return True

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: self.step() and condition())

    def stranger(self) -> socket.socket:
        end = socket.create_connection(("127.0.0.1", self.hub.port))
        end.settimeout(60)
        return end

    def refuses(self, reason: str, count: int = 1) -> None:
        self.until(lambda: self.hub.refused[reason] >= count)
        assert self.hub.decision.first_cause is None


def hello(index: int) -> Hello:
    return Hello(index, f"host-{index}", 100 + index, 200 + index)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    for member in made.members:
        member.close()
    with contextlib.suppress(ValueError):  # It is closed already.
        made.hub.close()


def joined(network: Network, *indexes: int) -> list[Member]:
    members = [network.member(index) for index in indexes]
    network.until(lambda: all(member.is_joined for member in members))
    return members


# --- Members --------------------------------------------------------------------------------------------


def test_all_members_receive_which_process_was_the_first_cause(network: Network) -> None:
    first, second, third = joined(network, 1, 2, 3)
    second.add(KILLED)
    network.until(lambda: all(member.first_cause for member in network.members))
    for member in (first, third):
        assert member.first_cause == second.first_cause == network.hub.decision.first_cause
        assert not member.is_first
    assert second.is_first
    assert second.first_cause is not None
    assert (second.first_cause.process_indices, second.first_cause.step) == ((2,), 7)
    network.until(network.hub.is_idle)


def test_the_failure_of_process_0_reaches_all(network: Network) -> None:
    joined(network, 1, 2, 3)
    network.hub.add(KILLED)
    network.until(lambda: all(member.first_cause for member in network.members))
    assert network.hub.decision.first == {0}


def test_a_member_that_joins_after_the_decision_receives_it_as_well(network: Network) -> None:
    (first,) = joined(network, 1)
    first.add(KILLED)
    network.until(lambda: first.first_cause)
    late = network.member(2)
    network.until(lambda: late.first_cause)
    assert late.first_cause == first.first_cause


def test_a_failure_before_the_connection_is_reported_after_it(network: Network) -> None:
    member = network.member(1)
    member.add(KILLED)
    network.until(lambda: member.first_cause)
    assert member.is_first


def test_the_state_of_a_job_arrives_with_the_next_ping(network: Network) -> None:
    (member,) = joined(network, 1)
    member.report(JobState("step", 5, 0.5, 1.0))
    network.clock.added += 3
    network.until(lambda: network.hub.decision._peers[1].state == JobState("step", 5, 0.5, 1.0))
    assert network.hub.decision.first_cause is None


def test_a_broken_connection_is_made_again_with_all_that_was_not_acknowledged(network: Network) -> None:
    (member,) = joined(network, 1)
    for connection in list(network.hub._connections.values()):
        network.hub._close(connection, None)
    member.add(KILLED)
    network.until(lambda: not member.is_joined)
    network.clock.added += 2
    network.until(lambda: member.first_cause)
    assert network.hub.decision.first == {1}


def test_members_give_up_after_a_minute_without_a_hub_and_nothing_is_decided(network: Network) -> None:
    first, second = joined(network, 1, 2)
    network.hub._listener.close()
    for connection in list(network.hub._connections.values()):
        connection.end.close()
    for member in (first, second):
        wait_until(lambda member=member: member.step() and not member.is_joined)  # type: ignore[misc]
        network.clock.added += 61
        member.step()
        assert member.lost is not None
        assert member.lost.endswith("is gone")
        assert member.first_cause is None


def test_a_hub_that_leaves_is_not_missed(network: Network) -> None:
    members = joined(network, 1, 2, 3)
    network.hub.close()
    for member in members:
        wait_until(lambda member=member: member.step() and member.is_over)  # type: ignore[misc]
        assert member.lost is None


def test_a_stopped_hub_is_taken_for_gone_though_its_connections_stay_open(network: Network) -> None:
    (member,) = joined(network, 1)
    network.clock.added += 21
    member.step()
    assert not member.is_joined


# --- Strangers ------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_reported_in_the_end(network: Network) -> None:
    stranger = network.member(1, token=b"x" * 32)
    network.refuses("token")
    for _ in range(61):
        network.clock.added += 1
        network.step()
    network.until(lambda: stranger.lost)
    assert stranger.lost is not None
    assert "another token" in stranger.lost


def test_a_second_process_with_the_same_index_is_refused_and_the_first_one_stays(network: Network) -> None:
    (first,) = joined(network, 1)
    network.member(1, host="elsewhere")
    network.refuses("duplicate")
    assert first.is_joined


@given(data=st.binary(min_size=1, max_size=2000))
@settings(max_examples=30)
def test_garbage_is_refused_whatever_it_is(data: bytes) -> None:
    with contextlib.closing(Network().hub) as hub:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", hub.port)) as end:
                end.sendall(data + b"\n")
        wait_until(lambda: hub.step() is not None and hub.refused.total() >= 2)
        assert hub.decision.first_cause is None
        assert hub.decision.connected == 1


def test_a_line_that_is_too_long_is_refused(network: Network) -> None:
    with network.stranger() as end:
        end.sendall(b"x" * 5000)
        network.refuses("oversize")
        assert network.hub.refused.total() == 1


def test_a_slow_drip_is_refused_after_five_seconds(network: Network) -> None:
    network.clock.stop()
    with network.stranger() as end:
        for _ in range(4):
            end.sendall(b"{")
            network.step()
            network.clock.added += AUTHENTICATION_SECONDS / 4 - 0.1
        assert not network.hub.refused
        network.clock.added += 0.5
        network.refuses("late")


def test_recorded_messages_are_refused_on_another_connection_and_a_second_time(network: Network) -> None:
    with network.stranger() as end, end.makefile("rb") as lines:
        network.step()
        channel = Channel(KEY, nonce_in(lines.readline()), MEMBER)
        greeting = channel.seal("hello", nonce="11" * 32, **hello(1)._asdict())
        channel.add_nonce("11" * 32)
        failed = channel.seal("event", **Event("left", ProcessEnd("clean")).to_message())
        with network.stranger() as again:
            again.sendall(greeting)
            network.refuses("token")
        end.sendall(greeting + failed + failed)
        network.refuses("sequence")


def test_a_member_that_sends_what_only_the_hub_may_is_refused(network: Network) -> None:
    for kind in ("end", "ack", "hello"):
        with network.stranger() as end, end.makefile("rb") as lines:
            network.step()
            channel = Channel(KEY, nonce_in(lines.readline()), MEMBER)
            line = channel.seal("hello", nonce="11" * 32, **hello(1)._asdict())
            channel.add_nonce("11" * 32)
            end.sendall(line + channel.seal(kind, first_cause={}, is_first=False))
            before = network.hub.refused["garbage"]
            network.refuses("garbage", before + 1)


def test_strangers_cannot_take_the_connections_of_the_members(network: Network) -> None:
    most = 2 * 4 + 16
    ends = [network.stranger() for _ in range(most + 10)]
    network.refuses("full", 10)
    assert len(network.hub._connections) <= most
    network.clock.added += AUTHENTICATION_SECONDS + 1
    network.refuses("late")
    joined(network, 1, 2, 3)
    for end in ends:
        end.close()


def test_a_false_hub_ends_no_job() -> None:
    """It does not know the token: the member closes the connection at its first message."""
    with socket.create_server(("127.0.0.1", 0)) as false_hub:
        member = Member("127.0.0.1", false_hub.getsockname()[1], KEY, hello(1))
        wait_until(lambda: member.step() and member.descriptor)
        end, _ = false_hub.accept()
        with end:
            end.sendall(json.dumps({"nonce": "00" * 32}).encode() + b"\n")
            channel = Channel(b"x" * 32, "00" * 32, "hub")
            end.sendall(channel.seal("end", first_cause={}, is_first=False))
            wait_until(lambda: member.step() and member.descriptor is None)
        assert (member.first_cause, member.is_joined) == (None, False)


# --- Meeting --------------------------------------------------------------------------------------------


def star(
    index: int,
    processes: int,
    messages: list[dict[str, Any]],
    warnings: list[str],
    attempt: str = "3",
    clock: Any = time.monotonic,
    **environ: str,
) -> Star:
    made = Star(
        100 + index,
        f"host-{index}",
        "job",
        hang=False,
        send=messages.append,
        warn=warnings.append,
        environ={LAUNCH: "1", **environ},
        clock=clock,
    )
    made.handle({"kind": POSITION, "process_index": index, "processes": processes, "attempt": attempt, "address": None})
    return made


def drive(*stars: Star) -> bool:
    for each in stars:
        each.step(time.monotonic())
    return True


def test_the_members_of_a_job_meet_by_what_the_job_publishes() -> None:
    messages: list[dict[str, Any]] = []
    hub = star(0, 3, messages, [])
    (published,) = messages
    assert len(published["token"]) == 64
    members = [star(index, 3, [], []) for index in (1, 2)]
    for member in members:
        member.handle(published)
    wait_until(lambda: drive(hub, *members) and all(member.is_joined for member in members))
    members[0].add(KILLED)
    wait_until(lambda: drive(hub, *members) and members[1].first_cause)
    assert (members[0].is_first, members[1].is_first, hub.is_first) == (True, False, False)
    for each in (hub, *members):
        each.close()


def test_the_members_of_a_job_meet_by_a_private_file_of_a_shared_folder(tmp_path: Path) -> None:
    hub = star(0, 2, [], [], **{FOLDER: str(tmp_path)})
    member = star(1, 2, [], [], **{FOLDER: str(tmp_path)})
    wait_until(lambda: drive(hub, member) and member.is_joined)
    (file,) = (tmp_path / "fast_fail").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    hub.close()
    member.close()


def test_a_file_of_an_earlier_attempt_is_read_again_until_it_is_the_right_one(tmp_path: Path) -> None:
    warnings: list[str] = []
    Meeting(str(tmp_path), "job", launch_id({LAUNCH: "1"}), "3").publish(
        Address("127.0.0.1", free_port(), "00" * 32), warnings.append
    )
    wait_until(lambda: list((tmp_path / "fast_fail").glob("*.json")))
    member = star(1, 2, [], [], **{FOLDER: str(tmp_path)})
    wait_until(lambda: drive(member) and member.role)
    hub = star(0, 2, [], [], **{FOLDER: str(tmp_path)})
    wait_until(lambda: drive(hub, member) and member.is_joined)
    assert not warnings
    hub.close()
    member.close()


def test_a_file_of_an_earlier_attempt_does_not_turn_fast_fail_off_before_process_0_starts(tmp_path: Path) -> None:
    warnings: list[str] = []
    stale = Address("127.0.0.1", free_port(), "00" * 32)
    Meeting(str(tmp_path), "job", launch_id({LAUNCH: "1"}), "3").publish(stale, warnings.append)
    file = wait_until(lambda: next((tmp_path / "fast_fail").glob("*.json"), None))
    before = file.read_text()
    clock = Clock()
    member = star(1, 2, [], warnings, clock=clock, **{FOLDER: str(tmp_path)})
    wait_until(lambda: member.step(clock()) and member.role)
    clock.added += 61
    wait_until(lambda: member.step(clock()) and warnings)
    assert "so far" in warnings[0]
    assert not member.is_off
    hub = star(0, 2, [], [], **{FOLDER: str(tmp_path)})
    wait_until(lambda: file.read_text() != before)
    clock.added += 301
    wait_until(lambda: drive(hub) and member.step(clock()) and member.is_joined)
    assert len(warnings) == 1
    hub.close()
    member.close()


def test_a_hub_that_is_not_found_twice_at_the_same_address_turns_fast_fail_off() -> None:
    warnings: list[str] = []
    messages: list[dict[str, Any]] = []
    clock = Clock()
    member = star(1, 2, messages, warnings, clock=clock)
    address = Address("127.0.0.1", free_port(), "00" * 32)._asdict()
    for count in (1, 2):
        member.handle({"kind": PUBLISHED, **address})
        member.step(clock())
        clock.added += 61
        wait_until(lambda: member.step(clock()) and len(warnings) == count)  # noqa: B023
        member.handle({"kind": PUBLISHED, **address})
        member.step(clock())
        assert member.role == ("" if count == 1 else "member")
        clock.added += 301
    assert member.is_off
    assert warnings[1].startswith("Fast-fail is off in this process: its hub")
    assert messages == [{"kind": "fast_fail_off"}]


def test_a_member_without_a_hub_reads_the_file_seldom_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    monkeypatch.setattr(Meeting, "read", lambda _, take: reads.append(take))
    member = star(1, 2, [], [], **{FOLDER: str(tmp_path)})
    for second in range(3600):
        member.step(float(second))
    assert 120 <= len(reads) <= 140
    member.close()


def test_two_attempts_of_a_job_at_once_do_not_meet(tmp_path: Path) -> None:
    """The first is still ending when the second starts."""
    stars = [star(index, 2, [], [], attempt, **{FOLDER: str(tmp_path)}) for attempt in ("3", "4") for index in (0, 1)]
    wait_until(lambda: drive(*stars) and all(each.is_joined for each in stars))
    stars[1].add(KILLED)
    wait_until(lambda: drive(*stars) and stars[0].first_cause and stars[1].first_cause)
    for _ in range(20):
        drive(*stars)
    assert stars[2].first_cause is stars[3].first_cause is None
    for each in stars:
        each.close()


def test_two_jobs_of_the_same_name_at_once_do_not_meet(tmp_path: Path) -> None:
    environs = [{FOLDER: str(tmp_path), LAUNCH: text} for text in ("1", "2")]
    hubs = [star(0, 2, [], [], **environ) for environ in environs]
    wait_until(lambda: len(list((tmp_path / "fast_fail").glob("*.json"))) == 2)
    members = [star(1, 2, [], [], **environ) for environ in environs]
    wait_until(lambda: drive(*hubs, *members) and all(each.is_joined for each in members))
    members[0].add(KILLED)
    wait_until(lambda: drive(*hubs, *members) and hubs[0].first_cause and members[0].first_cause)
    for _ in range(20):
        drive(*hubs, *members)
    assert hubs[1].first_cause is members[1].first_cause is None
    for each in (*hubs, *members):
        each.close()


def test_a_process_of_another_launch_or_number_of_processes_is_refused(network: Network) -> None:
    others: list[dict[str, Any]] = [{"launch": "other"}, {"processes": 3}]
    for count, differs in enumerate(others, 1):
        network.member(1, **differs)
        network.refuses("job", count)
        network.members.pop().close()
    joined(network, 1)


def test_the_id_of_a_launch_is_that_of_the_launcher() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    torch = {"TORCHELASTIC_RUN_ID": "run"}
    environs: list[dict[str, str]] = [
        {LAUNCH: "a"},
        {TOKEN: "t" * 32},
        slurm,
        {**slurm, "SLURM_STEP_ID": "1"},
        torch,
        {**slurm, **torch},
        {"PMIX_NAMESPACE": "12345"},
    ]
    found = [launch_id(environ) for environ in environs]
    assert all(found)
    assert len(set(found)) == len(found)
    assert launch_id({**slurm, LAUNCH: "a"}) == found[0]
    for without in ({}, {"TORCHELASTIC_RUN_ID": "none"}, {LAUNCH: "", "SLURM_STEP_ID": "1"}):
        assert launch_id(without) == ""


def test_the_members_of_a_job_meet_by_a_file_of_a_bucket(
    cloud_storage_server: CloudStorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud_storage_server.environment().items():
        monkeypatch.setenv(name, value)
    folder = "gs://test-bucket/shared"
    hub = star(0, 2, [], [], **{FOLDER: folder})
    member = star(1, 2, [], [], **{FOLDER: folder})
    wait_until(lambda: drive(hub, member) and member.is_joined)
    hub.close()
    member.close()


def test_a_file_that_others_may_read_or_that_is_a_link_is_not_trusted(tmp_path: Path) -> None:
    found: list[Address] = []
    file = Meeting(str(tmp_path), "job", launch_id({LAUNCH: "1"}), "3")
    file.publish(Address("127.0.0.1", 1, "00" * 32), found.append)  # type: ignore[arg-type]
    path = wait_until(lambda: next((tmp_path / "fast_fail").glob("*.json"), None))
    assert file._content()
    path.chmod(0o644)
    assert file._content() == b""
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        file._content()


def test_the_token_of_a_launcher_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "a" * 40)
    messages: list[dict[str, Any]] = []
    hub = star(0, 2, messages, [], **{TOKEN: os.environ[TOKEN]})
    assert messages[0]["token"] is None
    member = star(1, 2, [], [])
    member.handle({**messages[0], "kind": PUBLISHED})
    wait_until(lambda: drive(hub, member) and member.is_joined)
    hub.close()
    member.close()


def test_a_token_that_is_too_short_turns_fast_fail_off_with_a_warning() -> None:
    warnings: list[str] = []
    off = star(0, 2, [], warnings, **{TOKEN: "secret"})
    assert off.is_off
    assert "give it 32 or more" in warnings[0]
    assert "secret" not in warnings[0]
    assert launcher_token({}) is None


def test_a_hub_that_cannot_listen_turns_fast_fail_off_with_a_warning() -> None:
    warnings: list[str] = []
    off = Star(1, "a", "job", hang=False, send=lambda _: None, warn=warnings.append, environ={})
    off.handle({"kind": POSITION, "process_index": 0, "processes": 2, "attempt": "", "address": "192.0.2.1"})
    assert off.is_off
    assert "The job continues" in warnings[0]


def test_the_hub_reports_once_that_processes_are_missing() -> None:
    warnings: list[str] = []
    clock = Clock()
    clock.stop()
    hub = star(0, 3, [], warnings, clock=clock)
    for seconds in (0.0, 119.0, 121.0, 300.0):
        hub.step(clock() + seconds)
        assert len(warnings) == (seconds > 120)
    assert warnings[0].startswith("Fast-fail: 1 of 3 processes have joined.")
    hub.close()


def test_the_hub_listens_on_the_interface_by_which_the_coordinator_is_reached() -> None:
    assert local_address("127.0.0.1:1234") == "127.0.0.1"
    assert local_address("localhost:1234") in ("127.0.0.1", "::1")
    for wrong in ("", "127.0.0.1", "127.0.0.1:port", "host-without-an-address.invalid:1"):
        with pytest.raises((OSError, ValueError)):
            local_address(wrong)


class Routes:
    """The names and routes of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, **routes: str) -> None:
        self.routes = {"127.0.1.1": "127.0.0.1", "127.0.0.1": "127.0.0.1", **routes}
        resolve = socket.getaddrinfo

        def mapped(host: str, *arguments: Any, **options: Any) -> Any:
            return resolve("127.0.1.1" if host == name else host, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", mapped)
        monkeypatch.setattr(meeting, "_interface", self.interface)

    def interface(self, family: int, target: tuple[Any, ...]) -> str:
        if target[0] not in self.routes:
            raise OSError("Network is unreachable")
        return self.routes[target[0]]


def test_no_loopback_address_is_published_for_a_name_that_debian_maps_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Routes(monkeypatch, "host-0", **{"192.0.2.1": "10.0.0.7"})
    assert local_address("host-0:1234", {}) == "10.0.0.7"
    assert local_address("127.0.0.1:1234", {}) == "127.0.0.1"
    assert default_address("it has no name", {}) == "10.0.0.7"


def test_a_machine_that_others_cannot_reach_publishes_no_address_but_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Routes(monkeypatch, "host-0")
    with pytest.raises(LoopbackError, match=r"host-0 is mapped to a loopback address, 127\.0\.1\.1"):
        local_address("host-0:1234", {})
    for environ in (
        {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "8"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"},
        {"SLURM_STEP_NUM_NODES": "1"},
    ):
        assert local_address("host-0:1234", environ) == "127.0.0.1"
    with pytest.raises(LoopbackError, match="it has no name, and there is no default route"):
        default_address("it has no name", {})
    with pytest.raises(LoopbackError):
        local_address("host-0:1234", {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"})


def test_process_0_without_an_address_reports_why_and_sends_no_position(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Routes(monkeypatch, "host-0")
    environ = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", FOLDER: "shared", LAUNCH: "1", "MASTER_ADDR": "host-0"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    sent: list[Any] = []
    job = JobFastFail(FastFailConfig(enabled=True), sent.append, lambda: None)
    assert job._search() is None
    assert sent == []
    wait_until(lambda: "host-0 is mapped to a loopback address" in caplog.text)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_only_an_address_is_taken_for_one(value: Any) -> None:
    assert Address.from_json(value) is None
    assert Address.from_json({"address": "127.0.0.1", "port": value, "token": None}) is None or 0 < value < 2**16
