"""Secrets stay home: configs, environments, argv and tracebacks pass here before they leave the process.

A secret is known by its key (`password`, `api_key`, `HF_TOKEN`, `--token`) or by its form (a JWT, a PEM
block, a Google, GitHub or AWS key, a URL with a password). What is cut as too deep or too big says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from itertools import pairwise
from typing import Any

__all__ = ["REDACTED", "TRUNCATED", "is_secret_key", "redact", "redact_text"]

REDACTED = "[REDACTED]"
TRUNCATED = "[TRUNCATED]"
CIRCULAR = "[CIRCULAR]"

_LOOKED_AT_BEYOND = 4096  # Characters behind those that there is room for, since what is redacted gets shorter.
_DEEPEST = 100  # Far below Python's recursion limit.

# --- Keys ---------------------------------------------------------------------------------------------

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    """
    password passwords passwd pwd passphrase secret secrets credential credentials authorization
    apikey privatekey accesskey cookie cookies sshpass
    """.split()  # noqa: SIM905
)
_ACCOUNTS = """
    db database sql mysql pg postgres mongo redis smtp imap pop mail email ftp sftp ssh ldap http proxy user admin root
    """.split()  # noqa: SIM905
_SECRET_PAIRS = frozenset(
    {
        *((first, "key") for first in ("api", "private", "access", "secret", "signing", "encryption", "account")),
        *((first, "token") for first in ("access", "auth", "refresh", "session", "bearer", "api", "id")),
        *((first, "signature") for first in ("goog", "amz")),
        ("auth", "header"),
        # "pass" alone is also a pass over the data, and "auth" a method.
        *((first, "pass") for first in _ACCOUNTS),
        *((first, "auth") for first in ("rediscli", "redis", "basic", "http", "proxy", "npm")),
        *((first, "pat") for first in ("github", "gitlab", "gh", "azure", "devops", "ado", "hub")),
    }
)
_GLUED_TO_SECRET = ("password", "passwd", "passphrase")  # PGPASSWORD
# A key that ends in "token" is a secret, except where the token is one of a vocabulary.
_VOCABULARY_WORDS = frozenset(
    """
    pad bos eos unk mask sep cls stop start end begin next last first special image audio per prefix suffix
    """.split()  # noqa: SIM905
)


def is_secret_key(key: str) -> bool:
    """Whether what this key, variable, flag or header names is a secret.

    Args:
        key: In any style: `api_key`, `apiKey`, `X-Api-Key`, `--api-key`.

    Returns:
        True for passwords, tokens, API keys and the like; False for `max_tokens`, `eos_token`, `tokenizer`.
    """
    words = [word.lower() for word in _WORDS.findall(key[:256])]
    if not words:
        return False
    is_secret = _SECRET_WORDS.intersection(words) or _SECRET_PAIRS.intersection(pairwise(words))
    if is_secret or any(word.endswith(_GLUED_TO_SECRET) for word in words):
        return words[-1] not in ("id", "name", "file", "path")
    return words[-1] == "token" and (len(words) == 1 or words[-2] not in _VOCABULARY_WORDS)


# --- Text ---------------------------------------------------------------------------------------------

_HINT = re.compile(
    r"pass|pwd|secret|token|credential|auth|key|cookie|bearer|signature|://|-----BEGIN|AIza|gh[pousr]_|github_pat_"
    r"|glpat-|hf_|sk-|xox|AKIA|ASIA|ya29|eyJ|GOCSPX|[_-]pat\b|(?<!\S)-u\s|--(?:proxy-)?user",
    re.IGNORECASE,
)
# No pattern may scan to the end of the text from each of many places: what looks ahead is bounded.
_SECRET_FORMS = re.compile(
    r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"AIza[\w-]{30,}"  # Google API key
    r"|ya29\.[\w.-]{10,}"  # Google access token
    r"|GOCSPX-[\w-]{10,}"  # Google client secret
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"  # GitHub, GitLab
    r"|hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[\w-]{0,256}[0-9])[\w-]{16,}"  # OpenAI, Anthropic
    r"|xox[abeoprs]-[\w-]{10,}"  # Slack
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS
    r"|eyJ[\w-]{5,1024}\.[\w-]{5,}(?:\.[\w-]*)*"  # JWT
    r")",
    re.DOTALL,
)
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^\s/@:\"'<>]*:[^\s/@\"'<>]*@")
# What a signed URL is signed with, and the path that is all that a webhook asks for.
_URL_SECRET = re.compile(
    r"(?<=[?&])((?:sig|signature)=)[^\s&\"'<>]+|(?<=://)(hooks\.slack\.com/services/)[^\s?\"'<>]+", re.IGNORECASE
)
_USER_FLAG = re.compile(r"""(?<!\S)(-u|--user|--proxy-user)(\s+|=)([^\s:"']+:)[^\s"']+""")  # curl -u bob:hunter2
_VALUE = (
    r"(?:(?:bearer|basic|token|digest|negotiate)\s+)?"
    r"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;&"'(){}\]]+\]?)"""
)
# The key alone: what stands behind it may be another key, as in "ValueError: password=..." or "https://h:80/?token=...".
_ASSIGNED = re.compile(r"""(?<![\w.-])([\w.-]+)(?:\\?["']?\]?\s*(?:=>|[:=](?!//))\s*)""")
_ASSIGNED_VALUE = re.compile(_VALUE, re.IGNORECASE)
_FLAG = re.compile(rf"""(?<![\w.-])(--?[\w-]+)(\s+)(?!-)({_VALUE})""", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Replaces what looks like a secret in a text.

    Args:
        text: Any text: a line of a log, a traceback, a command line, JSON.

    Returns:
        The text with `[REDACTED]` in the place of each secret. Doing it again changes nothing. Never raises.
    """
    if not _HINT.search(text):
        return text
    for _ in range(8):  # A replacement may bring the rest of a secret to light; almost always the second is equal.
        cleaned = _redact_once(text)
        if cleaned == text:
            return cleaned
        text = cleaned
    return REDACTED


def _redact_once(text: str) -> str:
    text = _SECRET_FORMS.sub(REDACTED, text)
    text = _URL_USER.sub(f"{REDACTED}@", text)
    text = _URL_SECRET.sub(lambda match: f"{match[1] or match[2]}{REDACTED}", text)
    text = _USER_FLAG.sub(rf"\1\2\3{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    return _FLAG.sub(_redact_flag, _redact_assignments(text))


def _redact_assignments(text: str) -> str:
    parts: list[str] = []
    end = 0
    for match in _ASSIGNED.finditer(text):
        if match.start() < end or not is_secret_key(match[1]):
            continue
        value = _ASSIGNED_VALUE.match(text, match.end())
        if value is not None:
            parts += [text[end : match.end()], _in_place_of(value.group())]
            end = value.end()
    return "".join([*parts, text[end:]])


def _redact_flag(match: re.Match[str]) -> str:
    flag, between, value = match.groups()
    return f"{flag}{between}{_in_place_of(value)}" if is_secret_key(flag) else match.group()


def _in_place_of(value: str) -> str:
    if value.strip("\"'").startswith((REDACTED, TRUNCATED)):
        return value
    quote = value[0] if value[0] in "\"'" else ""
    return f"{quote}{REDACTED}{quote}"


# --- Structures ---------------------------------------------------------------------------------------


def redact(value: Any, *, max_depth: int = 16, max_bytes: int = 65536) -> Any:
    """Copies a value into plain containers, without its secrets.

    Mappings, dataclasses and named tuples become dicts; lists, tuples and sets lists. Numbers, booleans and
    None stay; text and bytes keep their type; an array becomes its type, shape and dtype; all else its `str`.
    The flag before a value in a list tells whether it is a secret, as in argv.

    Args:
        value: Anything; it may be recursive.
        max_depth: Containers nested deeper than this become `[TRUNCATED]`.
        max_bytes: Cap on the size of the result, in bytes as UTF-8; what is beyond it becomes `[TRUNCATED]`.

    Returns:
        The copy. Doing it again changes nothing. Never raises.
    """
    return _Redaction(min(max_depth, _DEEPEST), max_bytes).copy(value, 0)


class _Redaction:
    """One walk through one value: how much room is left, and what we are inside of."""

    def __init__(self, max_depth: int, max_bytes: int) -> None:
        self._max_depth = max_depth
        self._room = max_bytes
        self._inside: set[int] = set()

    def copy(self, value: Any, depth: int) -> Any:
        try:
            return self._copy(value, depth)
        except Exception:  # The value's own code failed: iteration, str, attributes.
            return self._text(f"<{type(value).__name__}>")

    def _copy(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            self._room -= 8
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, (bytes, bytearray)):
            return self._text(bytes(value).decode("latin-1")).encode("latin-1")
        items = _items(value)
        if items is None:
            return self._text(_describe(value))
        if depth >= self._max_depth:
            return TRUNCATED
        if id(value) in self._inside:
            return self._text(CIRCULAR)
        self._inside.add(id(value))
        try:
            return self._mapping(items, depth) if isinstance(items, dict) else self._list(items, depth)
        finally:
            self._inside.discard(id(value))

    def _mapping(self, items: dict[Any, Any], depth: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, value in items.items():
            if self._room <= 0 and key != TRUNCATED:
                copied[TRUNCATED] = TRUNCATED
                break
            name = self._text(key if isinstance(key, str) else _text_of_key(key))
            secret = is_secret_key(name) or (isinstance(key, str) and is_secret_key(key))
            cleaned = key if key is None or isinstance(key, (bool, int, float)) else name
            copied[cleaned] = self._secret(value, depth + 1) if secret else self.copy(value, depth + 1)
        return copied

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        copied: list[Any] = []
        secret_follows = False
        for item in items:
            if self._room <= 0 and item != TRUNCATED:
                copied.append(TRUNCATED)
                break
            is_flag = isinstance(item, str) and item.startswith("-")
            copied.append(
                self._secret(item, depth + 1) if secret_follows and not is_flag else self.copy(item, depth + 1)
            )
            secret_follows = is_flag and "=" not in item and is_secret_key(item)
        return copied

    def _secret(self, value: Any, depth: int) -> Any:
        unset = value is None or isinstance(value, bool) or value in ("", b"", TRUNCATED)
        return self.copy(value, depth) if unset else self._text(REDACTED)

    def _text(self, text: str) -> str:
        """Redacts a text, and cuts it between two words where there is no room for all of it."""
        most = max(self._room, 0) + _LOOKED_AT_BEYOND
        if len(text) > most:
            text = _whole_words(text[:most]) + TRUNCATED
        text = redact_text(text)
        data = text.removesuffix(TRUNCATED).encode("utf-8", "surrogatepass")
        if len(data) <= self._room:
            self._room -= len(data)
            return text
        kept = data[: max(self._room, 0)].decode("utf-8", "ignore")
        self._room = 0
        return _whole_words(kept) + TRUNCATED


def _whole_words(text: str) -> str:
    """Without what stands behind the last space: it may be a part of a secret, which has another form."""
    found = re.match(r".*\s", text, re.DOTALL)
    return found.group() if found else ""


def _text_of_key(key: Any) -> str:
    try:
        return str(key)
    except Exception:  # As for values: the key's own code failed.
        return f"<{type(key).__name__}>"


def _items(value: Any) -> dict[Any, Any] | list[Any] | None:
    """What a container holds, or None for what is not one."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple, Set)):
        return list(value)
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: getattr(value, name) for name in type(value).__dataclass_fields__}
    return None


def _describe(value: Any) -> str:
    # The text of an array would be long, and to get it may wait for a device.
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} shape={value.shape} dtype={value.dtype}>"
    return str(value)
