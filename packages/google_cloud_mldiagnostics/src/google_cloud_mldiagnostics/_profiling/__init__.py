"""Profiles of a run: taken by the program itself (`xprof`), or on demand by another process (`on_demand`).

A profile is a session: a folder `plugins/profile/<session>` with one `<host>.xplane.pb` of each host, as XProf and
TensorBoard open it.
"""
