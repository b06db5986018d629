"""Windows, as far as pure Python sees it: `import simulated_windows` takes away from a process what Windows has not.

Modules, functions, signals and flags that CPython has only on Unix are gone. The standard library is imported before,
since its own modules choose their implementation at import; so is psutil. Files, processes and sockets are still those
of this machine, and so is `os.name`: pathlib would make no paths.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import ctypes.util
import faulthandler
import getpass
import http.server
import importlib.abc
import importlib.metadata
import importlib.resources
import locale
import logging.handlers
import mimetypes
import multiprocessing.connection
import multiprocessing.pool
import os
import pdb
import platform
import select
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import uuid
import webbrowser
import zoneinfo
from contextlib import suppress
from types import ModuleType
from typing import Final

with suppress(ImportError):
    import psutil  # noqa: F401

_IMPORTED: Final = (
    asyncio,
    concurrent.futures.thread,
    ctypes.util,
    getpass,
    http.server,
    importlib.metadata,
    importlib.resources,
    locale,
    logging.handlers,
    mimetypes,
    multiprocessing.connection,
    multiprocessing.pool,
    pdb,
    platform,
    shutil,
    sqlite3,
    ssl,
    subprocess,
    tarfile,
    tempfile,
    urllib.request,
    uuid,
    webbrowser,
    zoneinfo,
)

_MODULES: Final = frozenset(
    ["crypt", "curses", "fcntl", "grp", "nis", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty"]
)

_NAMES: Final[dict[ModuleType, str]] = {
    os: """
        EX_CANTCREAT EX_CONFIG EX_DATAERR EX_IOERR EX_NOINPUT EX_NOPERM EX_OSERR EX_SOFTWARE EX_TEMPFAIL
        EX_UNAVAILABLE EX_USAGE F_LOCK F_TLOCK F_ULOCK O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW
        O_NONBLOCK O_PATH O_SYNC O_TMPFILE PRIO_PROCESS SCHED_BATCH SCHED_IDLE WEXITSTATUS WIFEXITED WIFSIGNALED
        WIFSTOPPED WNOHANG WTERMSIG WUNTRACED chown chroot confstr copy_file_range ctermid eventfd fchdir fchmod
        fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp
        getpriority getrandom getresuid getsid getuid getxattr killpg lchown listxattr lockf major makedev
        memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise posix_fallocate
        posix_spawn posix_spawnp pread preadv pwrite pwritev readv register_at_fork removexattr sched_getaffinity
        sched_getscheduler sched_param sched_setaffinity sched_setscheduler sched_yield sendfile setgid setns setpgid
        setpgrp setpriority setresuid setreuid setsid setuid setxattr splice statvfs sync sysconf tcgetpgrp tcsetpgrp
        ttyname uname unshare wait wait3 wait4 waitid writev
    """,
    signal: """
        ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE
        SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU
        SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer
        pause pidfd_send_signal pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait
        sigwaitinfo
    """,
    select: "epoll kqueue poll",
    socket: """
        AF_UNIX CMSG_LEN CMSG_SPACE MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS SO_PEERCRED SO_REUSEPORT recv_fds send_fds
    """,
    time: """
        CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME CLOCK_THREAD_CPUTIME_ID clock_gettime
        clock_gettime_ns clock_settime pthread_getcpuclockid tzset
    """,
    faulthandler: "register unregister",
}


class _Missing(importlib.abc.MetaPathFinder):
    """Finds no module of Unix."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in _MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for _name in [name for name in sys.modules if name.partition(".")[0] in _MODULES]:
    del sys.modules[_name]
sys.meta_path.insert(0, _Missing())
for _module, _names in _NAMES.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
sys.platform = "win32"
vars(subprocess)["_USE_POSIX_SPAWN"] = False  # Read at import; processes are still started as on Unix.
