"""The page's code as a browser gets it: one script and one style sheet, made of the modules and sheets of the shell.

There is no build: both are made when they are first asked for, and made again when one of their files has changed. The
server answers them at a path with their hash, so that a browser keeps them; a case file has them inside.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_console._web.assets import Asset, Assets
from ml_diagnostics_console._web.modules import ModuleError, inlined_modules, module_files
from ml_diagnostics_console._web.stripping import stripped_script, stripped_style

__all__ = ["CHART_SCRIPT", "SHELL", "Bundle", "Shell", "page_script", "page_style", "read_shell"]

SHELL: Final = "index.html"
CHART_SCRIPT: Final = "vendor/uplot/uPlot.iife.min.js"
SCRIPT: Final = "page.js"
STYLE: Final = "page.css"

_STYLE: Final = re.compile(r'<link rel="stylesheet" href="/static/([^"]+)">\n?')
_MODULE: Final = re.compile(r'<script type="module" src="/static/([^"]+)"></script>\n?')
_REFERENCE: Final = re.compile(r'(?<=")/static/([^"]+\.(?:js|css|svg))(?=")')
_URL: Final = re.compile(r'url\("?([^)"]+)"?\)')
_NEXT_MODULE: Final = re.compile(r'(?<=[}=][,{])(?="[\w./]+":\(__exported\)=>\{)')
_NAMED: Final = re.compile(r"/static/(?:v/\w+/)?([\w./-]+)")
_OPTIONAL: Final = "xprofiler/"
_ROOT: Final = '<html lang="en"'
_FIRST_FONT: Final = "vendor/inter/inter-latin-wght-normal.woff2"


@dataclass(frozen=True, slots=True)
class Shell:
    """The document that every page starts as, taken apart.

    Attributes:
        text: The document, without its style sheets and its module.
        styles: The names of its style sheets, in their order.
        module: The name of its module.
    """

    text: str
    styles: tuple[str, ...]
    module: str


def read_shell(assets: Assets) -> Shell:
    """Return the shell.

    Args:
        assets: The files of the page.

    Raises:
        ModuleError: It is missing, or has no module.
    """
    text = _text(assets, SHELL)
    module = _MODULE.search(text)
    if module is None:
        raise ModuleError(f"{SHELL} has no module")
    return Shell(_MODULE.sub("", _STYLE.sub("", text)), tuple(_STYLE.findall(text)), module[1])


def page_script(assets: Assets, module: str) -> str:
    """Return one script of a module and all that it imports, without comments; each module starts a line with its name.

    Args:
        assets: The files of the page.
        module: The name of the first module.

    Raises:
        ModuleError: A module is missing, or has a form that cannot be inlined.
    """
    try:
        text = stripped_script(inlined_modules(module, assets.text))
    except ValueError as error:
        raise ModuleError(f"{module}: {error}") from None
    return _NEXT_MODULE.sub("\n", text)


def page_style(assets: Assets, names: tuple[str, ...], url: Callable[[str], str]) -> str:
    """Return one style sheet of several, without comments.

    Args:
        assets: The files of the page.
        names: The sheets, in their order; one of another distribution may be missing.
        url: Returns the address of a file that a sheet refers to, from its name.

    Raises:
        ModuleError: A sheet or a file is missing.
    """

    def with_addresses(name: str) -> str:
        def addressed(found: re.Match[str]) -> str:
            if found[1].startswith("data:"):
                return found[0]
            return f'url("{url(posixpath.normpath(posixpath.join(posixpath.dirname(name), found[1])))}")'

        return _URL.sub(addressed, _text(assets, name))

    there = [name for name in names if not name.startswith(_OPTIONAL) or assets.find(name) is not None]
    return stripped_style("\n".join(map(with_addresses, there)))


class Bundle:
    """The script, the style sheet and the shell that a server answers.

    Args:
        assets: The files of the page.
        has_fleet: True if the page has a fleet, to which its header leads.
    """

    def __init__(self, assets: Assets, *, has_fleet: bool = False) -> None:
        self._assets, self._has_fleet = assets, has_fleet
        self._sources: dict[str, Asset | None] = {}
        self._made: dict[str, Asset] = {}

    def find(self, name: str) -> Asset | None:
        """Return the script, the style sheet or any file of the page, by its name; None for anything else.

        Raises:
            ModuleError: The script or the style sheet cannot be made.
        """
        if name not in (SCRIPT, STYLE):
            return self._assets.find(name)
        self._freshen()
        return self._made[name]

    def shell(self, *, has_charts: bool) -> Asset:
        """Return the document of a page.

        Args:
            has_charts: True for a page that draws charts: their library is then requested before the page asks.

        Raises:
            ModuleError: A file is missing, or has a form that cannot be used.
        """
        self._freshen()
        return self._made["charts" if has_charts else "plain"]

    def links(self, *names: str) -> str:
        """Return the elements that load style sheets and scripts of one page, beside those of all; of files that exist.

        Args:
            names: Their names.
        """
        found = {name: address(asset, name) for name in names if (asset := self._assets.find(name)) is not None}
        return "".join(
            f'<link rel="stylesheet" href="{path}">\n'
            if name.endswith(".css")
            else f'<script defer src="{path}"></script>\n'
            for name, path in found.items()
        )

    def _freshen(self) -> None:
        """Make all of them again if one of their files has changed."""
        if self._made and all(self._assets.find(name) is known for name, known in self._sources.items()):
            return
        shell = read_shell(self._assets)
        style = page_style(self._assets, shell.styles, self._address)
        script = page_script(self._assets, shell.module)
        script = _REFERENCE.sub(lambda found: self._address(found[1]), script)
        made = {SCRIPT: Asset(script.encode(), ".js"), STYLE: Asset(style.encode(), ".css")}
        names = {SHELL, CHART_SCRIPT, *shell.styles, *module_files(shell.module, self._assets.text)}
        names |= {name for text in (shell.text, script, style) for name in _NAMED.findall(text)}
        for key, scripts in (("plain", ()), ("charts", (self._address(CHART_SCRIPT),))):
            text = self._document(shell, made, scripts)
            made[key] = Asset(text.encode(), ".html")
        self._sources = {name: self._assets.find(name) for name in names}
        self._made = made

    def _document(self, shell: Shell, made: dict[str, Asset], scripts: tuple[str, ...]) -> str:
        lines = [f'<link rel="stylesheet" href="{address(made[STYLE], STYLE)}">']
        font = self._address(_FIRST_FONT)
        lines.append(f'<link rel="preload" href="{font}" as="font" type="font/woff2" crossorigin>')
        lines += [f'<script defer src="{each}"></script>' for each in (*scripts, address(made[SCRIPT], SCRIPT))]
        text = _REFERENCE.sub(lambda found: self._address(found[1]), shell.text)
        if self._has_fleet:
            text = text.replace(_ROOT, f"{_ROOT} data-fleet", 1)
        return text.replace("</head>", "\n".join([*lines, "</head>"]), 1)

    def _address(self, name: str) -> str:
        asset = self._assets.find(name)
        if asset is None:
            raise ModuleError(f"this installation lacks the file static/{name}")
        return address(asset, name)


def address(asset: Asset, name: str) -> str:
    """Return the path of a file that changes with its content, so that a browser never has to ask for it again."""
    return f"/static/v/{asset.version}/{name}"


def _text(assets: Assets, name: str) -> str:
    try:
        return assets.text(name)
    except KeyError:
        raise ModuleError(f"this installation lacks the file static/{name}") from None
