"""Connections: an MLDiagnosticsConnection object becomes one verified profile session of its pods."""
