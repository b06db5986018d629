"""`xprofiler completion`: print a script for completion in a shell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from xprofiler.exceptions import DONE

if TYPE_CHECKING:
    from xprofiler.console import Console

__all__ = ["CompletionCommand"]

_EPILOG = """\
bash: source <(xprofiler completion bash)       in ~/.bashrc
zsh:  source <(xprofiler completion zsh)        in ~/.zshrc
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
        from xprofiler.cli import make_parser
        from xprofiler.completion import completion_script

        console.data(completion_script(options.shell, make_parser()))
        return DONE
