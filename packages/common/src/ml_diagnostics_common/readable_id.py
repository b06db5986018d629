"""Ids of machine learning runs, made of names in any script."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

__all__ = ["readable_id"]

_LONGEST_ID = 63


def readable_id(*parts: str, is_exact: bool = False) -> str:
    """Return an id of `[a-z][a-z0-9-]{0,62}` that people recognise.

    Where letters had to be left out (of a name in another script) or the id is too long, a digest of all of it keeps
    it apart from others. The last part is kept where there is room for it: it is a time, or a number.

    Args:
        *parts: Text in any script; the first is the name.
        is_exact: Whether other parts must have another id, as where no time and no chance is among them: then the
            digest is there, too, where capitals or punctuation were lost, or one of several parts has a dash of its
            own. A name alone may still look like the parts of another.
    """
    words = [_plain(part) for part in parts]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:8]
    is_faithful = _is_exact(parts, words) if is_exact else all(_is_plain(part) for part in parts)
    name = words[0] if words[0][:1].isalpha() else f"run-{words[0]}".rstrip("-")
    run_id = "-".join(word for word in [name, *words[1:], "" if is_faithful else digest] if word)
    if len(run_id) <= _LONGEST_ID:
        return run_id
    last = words[-1][-20:].strip("-") if len(words) > 1 else ""
    end = "-".join(word for word in [digest, last] if word)
    return f"{run_id[: _LONGEST_ID - len(end) - 1].rstrip('-')}-{end}"


def _plain(text: str) -> str:
    """Return lower-case letters, digits and single dashes; accents are removed."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text.lower()).strip("-")


def _is_exact(parts: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether the id determines the words, and the words the parts."""
    is_kept = list(parts) == list(words) and parts[0][:1].isalpha()
    return is_kept and (len(parts) == 1 or not any("-" in word for word in words))


def _is_plain(text: str) -> bool:
    """Return whether nothing but punctuation, accents and case is lost of a text."""
    decomposed = unicodedata.normalize("NFKD", text)
    return bool(_plain(text)) and all(char.isascii() or unicodedata.combining(char) for char in decomposed)
