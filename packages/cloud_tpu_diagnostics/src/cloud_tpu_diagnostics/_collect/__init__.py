"""A block of `diagnose`, in the job's own process.

blocks           nested, overlapping and forked blocks share one collection
collection       what a block turns on, and off again after any failure or interrupt
watchdog         faulthandler: faults, stuck processes, and its state before the block
timer            the periodic dump: by a thread while Python can run, else by faulthandler's timer
dump_requests    SIGUSR1, and which of three parts answers it; the small helper process of a block without a companion
printed_lines    the lines that Python prints, for the companion
trace_file       the file that dumps go to, beside those of other processes
console          stderr, written to without ever waiting for its reader
companion        the companion process, as the block sees it
log_queue        log messages: queued under locks, logged without them
"""
