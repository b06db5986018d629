"""Signals as they arrive, in a thread of their own: also while the main thread is stuck in native code.

A handler in Python runs when the main thread next executes Python. CPython's C handler, though, also writes the number
of each signal that has a handler in Python to one descriptor of the process (`signal.set_wakeup_fd`). That is all it
does: unlike faulthandler's handler it reads no frames and preserves errno, so it is safe in any program. Here that
descriptor is shared: every subscriber receives all numbers, and so does a descriptor that was set before, such as
asyncio's.
"""

from __future__ import annotations

import _socket  # `socket` takes milliseconds to import, and nothing of it is needed here.
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable

from ml_diagnostics_common.descriptors import Descriptor, identity, with_high_number
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.process_hooks import at_fork
from ml_diagnostics_common.worker import start

__all__ = ["SignalWakeups", "block_signals", "in_main_thread", "subscribe", "unsubscribe"]

_READ_BYTES = 4096
_NOT_A_SIGNAL = b"\0"
_REAL_TIME = 32
"""The first number that is a real-time signal, or not a signal at all."""

Receiver = Callable[[bytes], object]


def block_signals() -> None:
    """Block all signals in this thread: the program's are for its own threads."""
    # signal.valid_signals() takes a tenth of a millisecond, with the GIL held, to make enum members.
    real_time = range(getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", -1) + 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*range(1, _REAL_TIME), *real_time})


class SignalWakeups:
    """The wake-up descriptor of this process, and the thread that reads it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._read, self._write = _socket_pair()
        self._handling, self._begun = _socket_pair()
        self._number = self._write.number()
        self._previous = -1
        self._previous_identity = (0, 0)
        self._is_over = False
        self.receivers: tuple[Receiver, ...] = ()
        self.thread_ident: int | None = None
        """The identifier of the thread that reads; None until it runs."""

    @property
    def is_open(self) -> bool:
        """False once the program has closed one of its ends."""
        return None not in (self.reader, self.writer)

    @property
    def reader(self) -> int | None:
        """The descriptor that the numbers arrive at; None if the program has closed it."""
        return self._read.number()

    @property
    def writer(self) -> int | None:
        """The descriptor that the numbers are written to; None if the program has closed it."""
        return self._write.number()

    @property
    def handling(self) -> int | None:
        """The descriptor with the numbers that the thread handles: unread by subscribers, as far as others can know.

        They are there from the moment before they are read, as the thread may then wait for the GIL for ever.
        """
        return self._handling.number()

    def start(self) -> None:
        """Start the thread."""
        start(self._run, "ml-diagnostics-signals")

    def install(self) -> bool:
        """Set this as the wake-up descriptor, in the main thread; the one that was set before still receives all.

        A forked child never sets it, although it may have inherited this call: its signals would reach its parent.

        Returns:
            True if it was set already.
        """
        number = self.writer
        if number is None or self._is_over or os.getpid() != self._owner:
            return False
        before = signal.set_wakeup_fd(number, warn_on_full_buffer=False)
        if before != number:
            self._remember(before)
        return before == number

    def uninstall(self) -> None:
        """Restore the descriptor that was set before, unless another was set since; call it in the main thread.

        A second call changes nothing: by then, the same number may be that of another object.
        """
        if self._number is None:
            return
        current = signal.set_wakeup_fd(-1)
        if current == self._number:
            current = self._previous_number()
        self._number = None
        if current != -1:
            try:
                signal.set_wakeup_fd(current)
            except (OSError, ValueError):
                pass  # Closed meanwhile.

    def take(self, number: int) -> bool:
        """Remove one signal's number, so that the thread does not receive it; return False if it had not arrived."""
        data = self._receive()
        rest = data.replace(bytes([number]), b"")
        if rest:
            self.send(rest)
        return len(rest) < len(data)

    def send(self, data: bytes) -> None:
        """Pass bytes to the thread, as if a signal had written them; when it is full, there is enough to read."""
        _send(self._write, data)

    def stop(self) -> None:
        """End the thread."""
        self._is_over = True
        self.send(_NOT_A_SIGNAL)

    def _receive(self, most_bytes: int = _READ_BYTES) -> bytes:
        return _read(self._read, most_bytes)

    def _peek(self) -> bytes:
        """Return what there is to read, and leave it there."""
        number = self._read.number()
        if number is None:
            return b""
        try:
            end = _socket.socket(fileno=number)
        except OSError:
            return b""
        try:
            end.setblocking(False)  # Whatever the program's default timeout is.
            return end.recv(_READ_BYTES, _socket.MSG_PEEK)
        except OSError:
            return b""
        finally:
            end.detach()

    def _run(self) -> None:
        block_signals()
        self.thread_ident = threading.get_ident()
        self._read_signals()
        if not self._is_over:  # The number of the closed end may be that of a file of the program's next.
            in_main_thread(self.uninstall)

    def _read_signals(self) -> None:
        """Return once this is over, or the program has closed one of the ends."""
        poller = select.poll()
        number = self._read.number()
        if number is None:
            return
        poller.register(number, select.POLLIN)
        while not self._is_over and self._read.number() is not None:
            events = poller.poll()
            waiting = self._peek()
            if not waiting and events[0][1] & ~select.POLLIN:
                return  # The other end was closed; poll() would return at once each time.
            begun = _send(self._begun, waiting)
            self._handle(self._receive(len(waiting)).replace(_NOT_A_SIGNAL, b""))
            _read(self._handling, begun)

    def _handle(self, data: bytes) -> None:
        if not data or self._is_over:
            return
        self._pass_on(data)
        for receive in self.receivers:
            try:
                receive(data)
            except Exception as error:
                LOSSES.add(f"signal_wakeups: {type(error).__name__}")

    def _pass_on(self, data: bytes) -> None:
        previous = self._previous_number()
        if previous != -1:
            try:
                os.write(previous, data)
            except OSError:
                pass  # Full, or closed.

    def _remember(self, previous: int) -> None:
        try:
            self._previous_identity = identity(previous)
            self._previous = previous
        except OSError:  # There was none, or it is closed.
            self._previous = -1

    def _previous_number(self) -> int:
        """Return the descriptor that was set before; -1 if it was closed: its number may be a file of the program's."""
        try:
            is_theirs = self._previous != -1 and identity(self._previous) == self._previous_identity
        except OSError:
            is_theirs = False
        return self._previous if is_theirs else -1


def _socket_pair() -> tuple[Descriptor, Descriptor]:
    """Return the ends to read and write: sockets, which another process can read without consuming (MSG_PEEK)."""
    reader, writer = (Descriptor(with_high_number(end.detach())) for end in _socket.socketpair())
    for end in (reader, writer):
        os.set_blocking(end.number() or 0, False)
    return reader, writer


def _send(end: Descriptor, data: bytes) -> int:
    """Write as much as fits; return the number of bytes."""
    number = end.number()
    try:
        return os.write(number, data) if number is not None and data else 0
    except OSError:
        return 0


def _read(end: Descriptor, most_bytes: int) -> bytes:
    number = end.number()
    try:
        return os.read(number, most_bytes) if number is not None else b""
    except OSError:
        return b""


# State of the process: its shared wake-up descriptor, while there are subscribers.
_lock = threading.RLock()
_shared: SignalWakeups | None = None


def subscribe(receive: Receiver) -> SignalWakeups:
    """Call a function with the numbers of signals as they arrive; a second subscription changes nothing.

    Once the program has closed our descriptors, earlier subscribers receive nothing more; new ones do.

    Args:
        receive: Called in a thread with one byte for each signal. It must not block for longer than a moment.

    Raises:
        OSError: The limit of open files is reached.
    """
    global _shared
    with _lock:
        if _shared is not None and _shared.is_open:
            if receive not in _shared.receivers:
                _shared.receivers += (receive,)
            return _shared
        if _shared is not None:
            in_main_thread(_shared.uninstall)
        wakeups = _shared = SignalWakeups()
        wakeups.receivers = (receive,)
        in_main_thread(_follow)
        wakeups.start()
        return wakeups


def unsubscribe(receive: Receiver) -> None:
    """Undo `subscribe`; a second call changes nothing."""
    global _shared
    with _lock:
        if _shared is None:
            return
        _shared.receivers = tuple(each for each in _shared.receivers if each != receive)
        if not _shared.receivers:
            in_main_thread(_shared.uninstall)
            _shared.stop()
            _shared = None


def _follow() -> None:
    if _shared is not None:
        _shared.install()


def _in_forked_child() -> None:
    """Forget the parent's descriptor: the thread that reads it does not exist in the child."""
    global _lock, _shared
    _lock = threading.RLock()
    wakeups, _shared = _shared, None
    if wakeups is not None:
        wakeups.uninstall()


at_fork(_in_forked_child)


# State of the process: what the main thread is to do next.
_waiting: deque[Callable[[], object]] = deque()


def in_main_thread(function: Callable[[], object]) -> None:
    """Call a function in the main thread, which alone may change handlers; at once if that is this thread.

    Else it is called when the main thread next executes Python: not before a lock that it waits for is free.
    """
    if threading.get_ident() == threading.main_thread().ident:
        function()
        return
    if function not in _waiting:  # A main thread that is stuck for days must not have days of work to do.
        _waiting.append(function)
    _add_pending_call()


class _WaitingCalls:
    """Makes the calls that wait when its truth value is read."""

    def __bool__(self) -> bool:
        try:
            while _waiting:
                _call(_waiting.popleft())
        finally:
            if _waiting:  # Ctrl-C, or a handler of the program that exits, has interrupted one.
                _add_pending_call()
        return False


_waiting_calls = _WaitingCalls()


def _add_pending_call() -> None:
    from ml_diagnostics_common.process_hooks import import_undisturbed

    import_undisturbed("ctypes")
    import ctypes

    # A C function that calls Python, and returns 0 for False: a callback of ctypes would drop what is raised in it.
    is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    ctypes.pythonapi.Py_AddPendingCall(is_true, ctypes.py_object(_waiting_calls))


def _call(function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:
        LOSSES.add(f"signal_wakeups: {type(error).__name__}")
