"""Hooks for training frameworks: a module for each, imported by its name.

    from ml_diagnostics.integrations.keras import DiagnosticsCallback

If the framework is not installed, its module raises one ModuleNotFoundError that names the package to install.
"""
