"""The star as one companion sees it: it starts the hub or connects to it, according to the messages of its job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from cloud_tpu_diagnostics._fast_fail.hub import Hub
from cloud_tpu_diagnostics._fast_fail.meeting import FOLDER, Address, Meeting, launch_id, launcher_token
from cloud_tpu_diagnostics._fast_fail.member import Member
from cloud_tpu_diagnostics._fast_fail.messages import TOKEN_BYTES
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause

__all__ = ["POSITION", "PUBLISHED", "Star"]

POSITION: Final = "fast_fail_position"
"""Message of the job: its `process_index` among `processes`, the `attempt`, and for the hub the `address`."""
PUBLISHED: Final = "fast_fail_address"
"""Message of the job, and to it: where the hub is."""
_READ_SECONDS: Final = 1.0
_SEARCH_SECONDS: Final = 120.0
_SLOW_READ_SECONDS: Final = 300.0
"""The interval of reads, and the pause before another attempt at the same address, after the time of the search."""
_SLOW_STEP_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 120.0
"""The time after which the hub reports that processes are missing."""


class Star:
    """The part of one companion in the star of its job.

    Args:
        pid: The job.
        host: This host.
        job: The job's name; may be empty.
        hang: True to decide on hangs, too.
        send: Sends a message to the job.
        warn: Lets the job log a warning.
        environ: The environment variables.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        pid: int,
        host: str,
        job: str,
        *,
        hang: bool,
        send: Callable[[dict[str, Any]], object],
        warn: Callable[[str], object],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._host, self._job, self._hang = pid, host, job, hang
        self._send, self._warn, self._environ, self._clock = send, warn, environ, clock
        self._hello: Hello | None = None
        self._hub: Hub | None = None
        self._member: Member | None = None
        self._address: Address | None = None
        self._found: Address | None = None
        """An address that another thread has read."""
        self._lost: Address | None = None
        """An address at which no hub of this job was found: the file may be that of an earlier attempt."""
        self._searching_since: float | None = None
        self._retry_at = 0.0
        self._meeting: Meeting | None = None
        self._next_read = 0.0
        self._complete_by: float | None = None
        """When all processes should have joined the hub; None if there is none, or that was checked."""
        self._events: list[Event] = []
        self.processes = 0
        self.is_joined = False
        """True while this companion is in a star."""
        self.is_off = False
        """True once there is no star any more, and none to wait for."""

    # --- Messages of the job --------------------------------------------------------------------------

    def handle(self, message: Mapping[str, Any]) -> None:
        """Take a message of the job: its position, or where the hub is."""
        if message["kind"] == POSITION and self._hello is None:
            self.processes = message["processes"]
            folder = self._environ.get(FOLDER)
            launch = launch_id(self._environ) if folder else ""
            index = message["process_index"]
            self._hello = Hello(index, self._host, self._pid, os.getpid(), self.processes, launch)
            if folder and launch:  # Without an id the job warns.
                self._meeting = Meeting(folder, self._job, launch, str(message.get("attempt") or ""))
            if self._hello.process_index == 0:
                self._start_hub(self._hello, str(message.get("address") or "127.0.0.1"))
        elif message["kind"] == PUBLISHED:
            self._found = Address.from_json(message)

    def _start_hub(self, hello: Hello, address: str) -> None:
        try:
            token = launcher_token(self._environ)
            key = token or os.urandom(TOKEN_BYTES)
            self._hub = hub = Hub(address, key, self.processes, hello, hang=self._hang, clock=self._clock)
        except (OSError, ValueError) as error:
            self._turn_off(f"cannot listen on {address}: {error}" if isinstance(error, OSError) else str(error))
            return
        self.is_joined = True
        self._complete_by = self._clock() + _JOIN_SECONDS
        published = Address(hub.address, hub.port, None if token else key.hex())
        self._send({"kind": PUBLISHED, **published._asdict()})
        if self._meeting is not None:
            self._meeting.publish(published, self._warn)
        for event in self._events:
            hub.add(event)

    # --- Reports --------------------------------------------------------------------------------------

    def report(self, state: JobState) -> None:
        """Take the present state of the job."""
        if self._hub is not None:
            self._hub.report(state)
        elif self._member is not None:
            self._member.report(state)

    def add(self, event: Event) -> None:
        """Take an event of the job."""
        self._events.append(event)
        if self._hub is not None:
            self._hub.add(event)
        elif self._member is not None:
            self._member.add(event)

    def needs_stack(self) -> bool:
        """Return True if the stack of the job is needed."""
        part = self._hub or self._member
        return part is not None and part.needs_stack()

    # --- Its state ------------------------------------------------------------------------------------

    @property
    def role(self) -> str:
        """`hub` or `member`; empty before it is known."""
        return "hub" if self._hub is not None else "member" if self._member is not None else ""

    @property
    def process_index(self) -> int | None:
        """The index of the job's process; None before it is known."""
        return None if self._hello is None else self._hello.process_index

    @property
    def descriptors(self) -> list[int]:
        """Readable when `step` has something to do."""
        if self._hub is not None:
            return [self._hub.descriptor]
        descriptor = None if self._member is None else self._member.descriptor
        return [] if descriptor is None else [descriptor]

    @property
    def refused(self) -> dict[str, int]:
        """The number of connections that the hub has refused, by reason."""
        return {} if self._hub is None else dict(self._hub.refused)

    @property
    def first_cause(self) -> FirstCause | None:
        """The decision; None while there is none."""
        if self._hub is not None:
            return self._hub.decision.first_cause
        return None if self._member is None else self._member.first_cause

    @property
    def is_first(self) -> bool:
        """True if the job's process is, or is one of, the first cause."""
        if self._hub is not None and self._hello is not None:
            return self._hello.process_index in self._hub.decision.first
        return self._member is not None and self._member.is_first

    def is_needed(self) -> bool:
        """Return True while other companions need this one: the hub, until their jobs have ended, or know the end."""
        if self._hub is None:
            return False
        return self._hub.decision.is_undecided() or (self.first_cause is not None and not self._hub.is_idle())

    def has_sent_all(self) -> bool:
        """Return True once the hub knows all events of this job."""
        return self._hub is not None or self._member is None or self._member.has_sent_all()

    # --- Steps ----------------------------------------------------------------------------------------

    def step(self, now: float) -> float:
        """Do what is due; return the seconds until the next call if nothing is received.

        Args:
            now: Monotonic seconds.
        """
        if self._hub is not None:
            if self._complete_by is not None and now >= self._complete_by:
                self._check_complete(self._hub.decision.connected)
            return self._hub.step()
        if self.is_off or self._hello is None or self._hello.process_index == 0:
            return _LONGEST_SECONDS
        if not self.is_joined:
            self._search(now)
        if self._member is not None:
            seconds = self._member.step()
            self._follow(self._member, now)
            return seconds if self.is_joined else min(seconds, _READ_SECONDS / 4)
        return _READ_SECONDS / 4 if self._is_search_new(now) else _SLOW_STEP_SECONDS

    def close(self) -> None:
        """Leave the star."""
        if self._hub is not None:
            self._hub.close()
        if self._member is not None:
            self._member.close()
        self.is_joined, self.is_off = False, True

    def _check_complete(self, connected: int) -> None:
        self._complete_by = None
        if connected < self.processes and not self._events:
            self._warn(
                f"Fast-fail: {connected} of {self.processes} processes have joined. A failure of the others is not "
                "noticed, and does not end this job: it must be on in all, and they must reach this host."
            )

    def _search(self, now: float) -> None:
        """Read the file, and connect to the hub; to one that was not found at its address, once more."""
        if self._searching_since is None:
            self._searching_since = now
        if self._meeting is not None and now >= self._next_read:
            self._next_read = now + (_READ_SECONDS if self._is_search_new(now) else _SLOW_READ_SECONDS)
            self._meeting.read(self._take_found)
        is_again = self._member is None and self._found == self._lost and now >= self._retry_at
        if self._found is not None and (self._found != self._address or is_again):
            self._connect(self._found)

    def _is_search_new(self, now: float) -> bool:
        return self._searching_since is None or now - self._searching_since < _SEARCH_SECONDS

    def _take_found(self, address: Address) -> None:
        self._found = address

    def _connect(self, address: Address) -> None:
        self._address = address
        key = address.key()
        if key is None or self._hello is None:
            return
        if self._member is not None:
            self._member.close()
        self._member = Member(address.address, address.port, key, self._hello, clock=self._clock)
        for event in self._events:
            self._member.add(event)

    def _follow(self, member: Member, now: float) -> None:
        """Follow the state of the connection, and let the job know: it searches for another hub if this one left."""
        if member.is_joined and not self.is_joined:
            self._send({"kind": "fast_fail_joined"})
        if member.is_over and self.is_joined:
            self._send({"kind": "fast_fail_searching"})
            self._searching_since, self._next_read = None, now
        self.is_joined = member.is_joined
        if member.lost is not None and not self.is_off:
            self._lose(member, member.lost, now)

    def _lose(self, member: Member, why: str, now: float) -> None:
        if member.was_joined or self._lost == self._address:
            self._turn_off(why)
            return
        member.close()
        self._member, self._lost, self._retry_at = None, self._address, now + _SLOW_READ_SECONDS
        self._warn(f"Fast-fail is not on in this process so far: {why}. It is tried again; the job continues.")

    def _turn_off(self, why: str) -> None:
        self.is_joined, self.is_off = False, True
        self._send({"kind": "fast_fail_off"})
        self._warn(f"Fast-fail is off in this process: {why}. The job continues.")
