"""Completion scripts for shells, generated from the parser so that they always match it. Pure functions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["completion_script"]


@dataclass(frozen=True)
class _Option:
    """One option, or an argument if it has no flags; with its valid values."""

    flags: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return a script for the shell to source.

    Args:
        shell: bash, zsh or fish.
        parser: The command's parser, with its subcommands.
    """
    commands = dict(_commands(parser))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser, commands)


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> list[_Option]:
    return [
        _Option(
            flags=tuple(action.option_strings),
            takes_value=action.nargs != 0,
            choices=tuple(map(str, action.choices or ())),
            help=((action.help or "") % {**vars(action), "prog": parser.prog}).partition(" (default")[0],
        )
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction)
    ]


def _flags(parser: argparse.ArgumentParser) -> str:
    return " ".join(flag for option in _options(parser) for flag in option.flags)


def _bash(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """Complete the choices of an option; otherwise flags after a dash, and files."""
    after, flags = [], [f"      '') words='{' '.join(commands)} {_flags(parser)}' ;;"]
    for name, command in commands.items():
        flags.append(f"      {name}) words='{_flags(command)}' ;;")
        for option in _options(command):
            pattern = "|".join(f"{name}:{flag}" for flag in option.flags) or f"{name}:{name}"
            if option.choices:
                after.append(f"      {pattern}) words='{' '.join(option.choices)}' ;;")
    return "\n".join(
        [
            "_xprofiler() {",
            "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command='' words='' word",
            '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            f"    case $word in {'|'.join(commands)}) command=$word; break ;; esac",
            "  done",
            "  if [[ $current != -* ]]; then",
            "    case $command:$before in",
            *after,
            "    esac",
            "  fi",
            "  if [[ -z $words && ( -z $command || $current == -* ) ]]; then",
            "    case $command in",
            *flags,
            "    esac",
            "  fi",
            '  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$current")',
            "}",
            "complete -o bashdefault -o default -F _xprofiler xprofiler",
        ]
    )


def _zsh(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = ["#compdef xprofiler", "_xprofiler() {", "  local -a commands", "  commands=("]
    for name, command in commands.items():
        lines.append(f"    {_quoted(f'{name}:{command.description or name}')}")
    lines += ["  )", "  if (( CURRENT == 2 )); then", "    _describe command commands", *_zsh_arguments(parser)]
    lines += [
        "    return",
        "  fi",
        "  local command=${words[2]}",
        "  shift words",
        "  (( CURRENT-- ))",
        "  case $command in",
    ]
    for name, command in commands.items():
        lines += [f"    {name})", *_zsh_arguments(command), "      ;;"]
    lines += ["  esac", "}"]
    # When sourced, register it; when autoloaded by its name from $fpath, call it directly.
    lines += ["if [[ $funcstack[1] == _xprofiler ]]; then _xprofiler; else compdef _xprofiler xprofiler; fi"]
    return "\n".join(lines)


def _zsh_arguments(parser: argparse.ArgumentParser) -> list[str]:
    arguments = []
    for option in _options(parser):
        values = f"({' '.join(option.choices)})" if option.choices else "_files"
        if not option.flags:
            arguments.append(_quoted(f"1:{_plain(option.help)}:{values}"))
        for flag in option.flags:
            value = f":value:{values}" if option.takes_value else ""
            arguments.append(_quoted(f"*{flag}[{_plain(option.help)}]{value}"))
    return [f"      _arguments {' '.join(arguments)}"]


def _fish(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = []
    for name, command in commands.items():
        lines.append(
            f"complete -c xprofiler -f -n __fish_use_subcommand -a {name} -d {_quoted(command.description or name)}"
        )
    for option in _options(parser):
        lines.append(_fish_option("__fish_use_subcommand", option))
    for name, command in commands.items():
        for option in _options(command):
            lines.append(_fish_option(f"__fish_seen_subcommand_from {name}", option))
    return "\n".join(lines)


def _fish_option(condition: str, option: _Option) -> str:
    arguments = ["complete -c xprofiler", f"-n {_quoted(condition)}"]
    arguments += [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.choices:
        arguments += ["-x" if option.flags else "-f", f"-a {_quoted(' '.join(option.choices))}"]
    elif option.takes_value and option.flags:
        arguments.append("-r")
    return " ".join([*arguments, f"-d {_quoted(option.help)}"])


def _plain(text: str) -> str:
    """Replace the characters that have a meaning in zsh's argument specifications."""
    return text.replace("[", "(").replace("]", ")").replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
