"""Uploads a job's goodput while it runs, from a process of its own.

monitor           what a trainer calls
uploaders         which uploads are on, and the process that does them, started again if it dies
helper_process    one life of that process, as the trainer sees it
~~~~~~~~~~~~~~~~~ JSON lines over a socket and a pipe
helper            the same, from within: commands, deadlines, and whether the trainer still lives
worker            when to take a snapshot, and of what
sinks             one exporter, its failures, and when to try it again
settings          what both sides know
"""
