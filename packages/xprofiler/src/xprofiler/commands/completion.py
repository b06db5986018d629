"""`xprofiler completion SHELL`: print a script for completion in a shell, as `xprofiler --print-completion SHELL`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_diagnostics_common.command.errors import DONE

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

__all__ = ["CompletionCommand"]

_EPILOG = """\
bash: source <(xprofiler completion bash)       in ~/.bashrc
zsh:  source <(xprofiler completion zsh)        in ~/.zshrc, after compinit
fish: xprofiler completion fish | source        in ~/.config/fish/config.fish
"""


class CompletionCommand:
    """Prints a shell's completion script."""

    name = "completion"
    summary = "print a script that completes this command in a shell"
    passes_on = False

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the script."""
        from xprofiler.cli import PROGRAM

        console.data(PROGRAM.completion(options.shell))
        return DONE
