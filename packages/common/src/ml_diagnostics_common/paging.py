"""Lists in pages: an end to one that would be followed for ever."""

from __future__ import annotations

__all__ = ["EndlessListError", "PageTokens"]

_MOST_PAGES_WITHOUT_NEWS = 100


class EndlessListError(Exception):
    """A list makes no progress: its server repeats a page token, or sends page after page with nothing new."""


class PageTokens:
    """Checks the page tokens of one list.

    tokens = PageTokens()
    while True:
        page = ask(token)
        token = tokens.next(page.next_page_token, has_news=bool(page.items))
        if not token:
            return
    """

    def __init__(self) -> None:
        self._sent = ""
        self._without_news = 0

    def next(self, token: str, *, has_news: bool) -> str:
        """Return the token to send next; empty after the last page.

        Args:
            token: What the page gave as the next token.
            has_news: Whether the page had anything that the pages before it had not.

        Raises:
            EndlessListError: The list makes no progress.
        """
        if token and token == self._sent:
            raise EndlessListError(f"the page token {token[:40]!r} repeats: the list would never end")
        self._without_news = 0 if has_news else self._without_news + 1
        if token and self._without_news >= _MOST_PAGES_WITHOUT_NEWS:
            raise EndlessListError(f"{self._without_news} pages in a row had nothing new: the list may never end")
        self._sent = token
        return token
