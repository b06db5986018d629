"""The output of a job: `python -m cloud_tpu_diagnostics run` passes it on, and the last lines are recorded.

memory    a file in memory that one stream of the job is appended to, and freed behind the last lines
stream    passes a stream on as it grows, without the job ever waiting for a reader
capture   the streams of a job that are captured, and which of them share a file
segments  the last megabytes of a stream, on disk
tail      the last lines of another process's streams
"""
