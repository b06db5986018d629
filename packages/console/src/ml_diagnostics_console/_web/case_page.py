"""The page of a case file: the shell with its styles, scripts, fonts and icon inside, under a policy of hashes.

`connect-src 'none'` and the hashes make sure that the file asks nothing of any server, whatever its data hold.
"""

from __future__ import annotations

import base64
import posixpath
import re
from typing import Final

from ml_diagnostics_common.page import policy_hash

from ml_diagnostics_console._web.assets import Assets
from ml_diagnostics_console._web.bundle import CHART_SCRIPT, page_script, page_style, read_shell
from ml_diagnostics_console._web.modules import ModuleError, safe_script

__all__ = ["case_page"]

_SCRIPT: Final = re.compile(r'<script src="/static/([^"]+)"></script>\n?')
_ICON: Final = re.compile(r'<link rel="icon"[^>]*>')
_CUT: Final = "<p>The rest of this file is not loaded yet. If this stays, the file was cut off: ask for it again.</p>"
"""The page shows it until its scripts, which are last in the file, replace it."""
_DATA_TYPES: Final = {".woff2": "font/woff2", ".svg": "image/svg+xml", ".png": "image/png"}


def case_page(assets: Assets, title: str, blocks: str) -> str:
    """Return the text of a case file.

    Args:
        assets: The static files of the page.
        title: Its title.
        blocks: The elements with its data; none of them is run.

    Raises:
        ModuleError: A file is missing, or has a form that cannot be inlined.
    """
    return _Page(assets).text(title, blocks)


class _Page:
    def __init__(self, assets: Assets) -> None:
        self._assets = assets
        self._script_hashes: list[str] = []
        self._style_hashes: list[str] = []

    def text(self, title: str, blocks: str) -> str:
        parts = read_shell(self._assets)
        shell = _SCRIPT.sub(lambda found: self._script(self._text(found[1])), parts.text)
        shell = _ICON.sub(f'<link rel="icon" href="{self._data_url("icon.svg")}">', shell)
        shell = re.sub(r"<title>[^<]*</title>", lambda _: f"<title>{_escaped(title)}</title>", shell)
        scripts = self._script(self._text(CHART_SCRIPT)) + self._script(page_script(self._assets, parts.module))
        shell = shell.replace("</main>", f"{_CUT}</main>")
        shell = shell.replace(
            "</head>", self._style(page_style(self._assets, parts.styles, self._data_url)) + "</head>"
        )
        shell = shell.replace("</body>", f"{blocks}\n{scripts}</body>")
        left = re.search(r'(?:src|href)="(?:/static|https?:)[^"]*"', shell[: shell.index(blocks)] if blocks else shell)
        if left is not None:
            raise ModuleError(f"index.html refers to a file that is not inlined: {left[0]}")
        return shell.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{self._policy()}', 1)

    def _policy(self) -> str:
        scripts, styles = " ".join(self._script_hashes), " ".join(self._style_hashes)
        rules = f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; font-src data:; "
        rules += "connect-src 'none'; base-uri 'none'; form-action 'none'"
        return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'

    def _text(self, name: str) -> str:
        return self._bytes(name).decode()

    def _bytes(self, name: str) -> bytes:
        asset = self._assets.find(name)
        if asset is None:
            raise ModuleError(f"this installation lacks the file static/{name}")
        return asset.data

    def _script(self, text: str) -> str:
        text = safe_script(text)
        self._script_hashes.append(policy_hash(text))
        return f"<script>{text}</script>\n"

    def _style(self, text: str) -> str:
        self._style_hashes.append(policy_hash(text))
        return f"<style>{text}</style>\n"

    def _data_url(self, name: str) -> str:
        kind = _DATA_TYPES[posixpath.splitext(name)[1]]
        return f"data:{kind};base64,{base64.b64encode(self._bytes(name)).decode()}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
