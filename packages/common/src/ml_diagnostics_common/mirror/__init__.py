"""The mirror: a job's whole history in a bucket, or in a folder that several machines share.

Processes of the job write their journal's lines to it, as gzip objects that are never changed: `writer`. Any machine
reads them: `reader`. `names` has the layout, `segments` the content. Nothing here is imported while
ML_DIAGNOSTICS_MIRROR is empty.
"""
