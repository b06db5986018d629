"""The process beside the job that outlives it.

companion_process  the companion, as the job sees it
~~~~~~~~~~~~~~~~~  JSON lines over a socket and a pipe; the timer's dumps over another pipe
main               the same, from within: a loop over all that it hears, and the end of the job
channel            lines from and to the job
job                the job as a process: its death, signals to it
trace_output       the timer's dumps, each behind its header, to the trace file or the console
hang_watching      the job's progress, once a second; hang_response: what is done about a hang
endings            how the job ended, judged by what exit_status, out_of_memory, the job and its last trace tell
log                entries to the journal and to Cloud Logging; resource: what they belong to there
settings           what both sides know
"""
