"""Replace secrets in texts: lines of logs, tracebacks, command lines, JSON (also escaped inside of text), YAML, URLs.

A secret is recognized by its key (`_secret_keys`) or by its form: a JWT, a PEM block, the key of a known service, a URL
with a password. Every pattern is bounded in what it reads ahead, so that the time is proportional to the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ml_diagnostics_common._secret_keys import (
    REDACTED,
    TRUNCATED,
    hold_secret,
    is_placeholder,
    is_secret_key,
    may_be_secret_key,
    names_header,
    resembles_secret,
)

# What a key of a known service starts with (one or several), and what follows. Add a service here.
_KNOWN_KEYS: Final = (
    ("AIza", r"[\w-]{30,}"),  # Google API key
    ("ya29.", r"[\w.-]{10,}"),  # Google access token
    ("1//0", r"[\w-]{20,}"),  # Google refresh token
    ("GOCSPX-", r"[\w-]{10,}"),  # Google client secret
    ("ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{20,}"),  # GitHub
    ("github_pat_", r"\w{20,}"),
    ("glpat- glptt- gldt- glrt- glsoat- glcbt- glft- glimt- glagent-", r"[\w-]{16,}"),  # GitLab
    ("hf_", r"[A-Za-z0-9]{20,}"),  # Hugging Face
    ("wandb_v1_", r"\w{20,}"),  # W&B
    ("lsv2_pt_ lsv2_sk_", r"\w{16,}"),  # LangSmith
    ("nvapi-", r"[\w-]{20,}"),  # NVIDIA
    ("gsk_ r8_ pplx- xai-", r"[A-Za-z0-9]{20,}"),  # Groq, Replicate, Perplexity, xAI
    ("sk-", r"(?=[\w-]{0,256}[0-9])[\w-]{16,}"),  # OpenAI, Anthropic
    ("sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_", r"\w{10,}"),  # Stripe
    ("whsec_", r"\w{16,}"),
    ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", r"[\w-]{10,}"),  # Slack
    ("AKIA ASIA", r"[0-9A-Z]{16}"),  # AWS
    ("npm_", r"[A-Za-z0-9]{30,}"),
    ("pypi-", r"[\w-]{40,}"),
    ("SG.", r"[\w-]{16,64}\.[\w-]{16,}"),  # SendGrid
    ("doo_v1_ dop_v1_ dor_v1_", r"[0-9a-f]{32,}"),  # DigitalOcean
    ("dapi", r"[0-9a-f]{32}"),  # Databricks
    ("hvs.", r"[\w-]{20,}"),  # HashiCorp Vault
    ("shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),  # Shopify
    ("ATATT3", r"[\w=-]{20,}"),  # Atlassian
    ("lin_api_ ntn_", r"\w{20,}"),  # Linear, Notion
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{20,}"),
    ("eyJ", r"[\w-]{5,1024}\.[\w-]{5,}(?:\.[\w-]*)*"),  # JWT
)
# No pattern may scan to the end of the text from each of many positions: lookahead is bounded.
_PEM_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL)
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{1,40}-----")
_PEM_LINE_END = re.compile(r"\r?\n|\\{1,15}r?\\{0,15}n")  # of a text, or inside of JSON
_PEM_LINE = re.compile(r"(?:(.*[^A-Za-z0-9+/=])|)([A-Za-z0-9+/=]+)[ \t]*", re.DOTALL)
_PEM_SPACED_REVERSED = re.compile(r"[ \t]*[A-Za-z0-9+/=]{0,128}(?:[ \t]{1,9}[A-Za-z0-9+/=]{16,})+|[A-Za-z0-9+/=]{16,}")
_LONGEST_PEM = 16_384
_PREFIXED_PEM_LINE = 40  # characters of a line of a key, such as those after the time and the level of a log
_KNOWN_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(f"(?:{'|'.join(map(re.escape, starts.split()))}){rest}" for starts, rest in _KNOWN_KEYS)
    + ")"
)
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
# A password may have an unescaped "@": up to the last one before the path.
_URL_PASSWORD = re.compile(r"(?<=://)[^\s/:@?\"'<>\\]*:[^\s/?\"'<>\\]*@")
_URL_USER = re.compile(r"([A-Za-z][\w+.-]{0,40}://)([^\s/:@?\"'<>\\]+)@")
_GO_DSN = re.compile(r"(?<![\w.-])([\w.-]{1,64}:)[^\s@\"'/]{1,256}@(?=(?:tcp|unix)\()")
# What a signed URL is signed with, and the path that is all that a webhook asks for.
_URL_SECRET = re.compile(
    r"(?<=[?&;])((?:sig|signature)=)[^\s&;\"'<>\\]+"
    r"|(?<=://)((?:hooks\.slack\.com/(?:services|workflows|triggers)/|(?:[\w-]+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]{0,80}webhook\.office\.com/|outlook\.office\.com/webhook/|hooks\.zapier\.com/hooks/catch/"
    r"|maker\.ifttt\.com/trigger/|api\.telegram\.org/bot|open\.feishu\.cn/open-apis/bot/v2/hook/))[^\s?\"'<>\\]+",
    re.IGNORECASE,
)
_USER_FLAG = re.compile(r"""(?<!\S)(-u|--user|--proxy-user)(\s+|=)([^\s:"']+:)[^\s"']+""")  # curl -u bob:hunter2
_BARE_WORD = re.compile(  # .netrc, sshpass, and SQL's users; prose has "identified by", too
    r"\b(login\s+\S{1,256}\s+password\s+|sshpass\s+-p\s*|(?:user|role|to)\s+\S{1,256}\s+identified\s+by\s+"
    r"""|identified\s+by\s+(?=\\{0,15}["']))(\S+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(r"(?<![\w.-])(--?[\w-]+)(\s+)(?=[^\s-])")
# The key alone: its value may be another key, as in "ValueError: password=..." or "https://h:80/?token=...".
_ASSIGNED = re.compile(r"""(?<![\w.-])([\w.-]+)\\{0,15}["']?\]?\s*(=>|[:=](?!//))[ \t]*""")
_NAME_AND_VALUE = re.compile(  # an environment of Kubernetes, as JSON, YAML or Python
    r"""\bname\\{0,15}["']?\s{0,9}[:=]\s{0,9}\\{0,15}["']?([\w.-]+)\\{0,15}["']?\s{0,40},?\s{0,40}\\{0,15}["']?"""
    r"""value\\{0,15}["']?\s{0,9}[:=][ \t]{0,40}""",
    re.IGNORECASE,
)
_VALUE_AND_NAME = re.compile(  # the same in reverse order
    r"""\bvalue\\{0,15}["']?\s{0,9}[:=][ \t]{0,40}(\\{0,15}["']?[^\s"',{}\[\]\\]{1,512}\\{0,15}["']?)"""
    r"""\s{0,40},?\s{0,40}\\{0,15}["']?name\\{0,15}["']?\s{0,9}[:=]\s{0,9}\\{0,15}["']?([\w.-]+)""",
    re.IGNORECASE,
)
# "passphrase 'x'", "oauth2_token x": prose uses these words, too, so that the value has to resemble a secret.
_KEY_AND_SPACE = re.compile(
    r"""(?<![\w.-])([\w.-]{0,64}(?:pass(?:word|phrase|code)|secret|token|api[_-]?key))[ \t]{1,9}"""
    r"""(?=(["']?)([^\s"',;]{8,512}))""",
    re.IGNORECASE,
)
_PAIR = re.compile(r"""[(\[]\s{0,9}(\\{0,15}["'])([\w.-]+)\1\s{0,9},\s{0,9}(?=\\{0,15}["'])""")
_PAIR_END = re.compile(r"\s{0,9}[)\]]")

_QUOTE = re.compile(r"""(\\{0,15})(["'])""")
_CLOSING_QUOTES = {quote: re.compile(rf"(?<!\\)(\\*){quote}") for quote in "\"'"}
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|negotiate|apikey)\s+", re.IGNORECASE)
_BARE = re.compile(r"(?:\[REDACTED\]|\[TRUNCATED\]|&(?![\w.-]+=)|[^\s,;&\"')}\]\\])+")
_HEADER_LINE = re.compile(r"[^\r\n\"']+")
_YAML_LINE = re.compile(r"[^\r\n,;\"'}]+")
_YAML_KEY = re.compile(r"[ \t]*(?:- )?[\w.-]*\Z")
_YAML_BLOCK = re.compile(r"[|>][+-]?[ \t]*\n")
_YAML_LOWER_LINE = re.compile(r"\n[ \t]{1,64}([^\s:#-][^\s:]*)[ \t]*(?=\n|\Z)")  # a value below its key
_YAML_BLOCK_LINE = re.compile(r"([ \t]*)[^\n]*(?:\n|\Z)")
# "grpc_credentials.cc:180]", "token.py:12: error": a place in a program, as logs of C++ and Python show it.
_SOURCE_FILE = re.compile(r"\.(?:c|cc|cpp|go|h|java|js|py|pyx|rs|ts)\Z")
_LINE_NUMBER = re.compile(r"\d{1,6}(?=[\]:),\s]|\Z)")
_BRACKETS = re.compile(r"[\[\](){}]")
_LONGEST_POSSIBLE = 256  # read of a list behind a key that need not be a secret: each such key reads its own


def redact_text(text: str) -> str:
    """Replace secrets in a text: see `redaction.redact_text`."""
    for _ in range(8):  # A replacement may uncover the rest of a secret; almost always the second pass changes nothing.
        cleaned = _redact_once(text)
        if cleaned == text:
            return cleaned
        text = cleaned
    return REDACTED


def _redact_once(text: str) -> str:
    folded = text.casefold()  # To search it for all the hints takes a tenth of the time of one pattern of them.
    if "-----begin " in folded:
        text = _PEM_BLOCK.sub(REDACTED, text)
    if "-----end " in folded:
        text = _redact_pem_tails(text)
    for hints, pattern, replacement in _RULES:
        if any(hint in folded for hint in hints):
            text = pattern.sub(replacement, text)
    if any(part in folded for part in _PARTS_OF_KEYS):
        text = _replace_values(text, _ASSIGNED, _assigned_value)
        text = _replace_values(text, _NAME_AND_VALUE, _named_value)
        text = _replace_values(text, _VALUE_AND_NAME, _value_before_name)
        text = _replace_values(text, _KEY_AND_SPACE, _spaced_value)
        text = _replace_values(text, _PAIR, _paired_value)
        text = _replace_values(text, _FLAG, _flag_value)
    return text


def _redact_pem_tails(text: str) -> str:
    """Replace the lines of keys without their first line: the last lines of a log may start within a key."""
    parts: list[str] = []
    end = searched = 0
    for match in _PEM_END.finditer(text):
        start = _start_of_pem_lines(text, max(searched, match.start() - _LONGEST_PEM), match.start())
        searched = match.end()
        if start < match.start():
            parts += [text[end:start], REDACTED]
            end = match.end()
    return "".join([*parts, text[end:]])


def _start_of_pem_lines(text: str, least: int, end: int) -> int:
    """Return the start of the base64 before a last line of a key; the position of that line if there is none.

    Args:
        text: The text.
        least: The position before which nothing is searched.
        end: The position of the last line of the key, which may follow the time and the level of a log.
    """
    breaks = [(least, least), *((found.start(), found.end()) for found in _PEM_LINE_END.finditer(text, least, end))]
    start = end
    own = text[breaks[-1][1] : end]
    if spaced := _PEM_SPACED_REVERSED.match(own[::-1]):  # The line breaks became spaces.
        start = end - spaced.end()
        if own[: -spaced.end()].strip(_AROUND):
            return start
    is_first = True
    for (_, line_start), (line_end, _) in zip(breaks[-2::-1], breaks[:0:-1], strict=True):
        line = _PEM_LINE.fullmatch(text, line_start, line_end)
        if line is None:
            break
        if len(line[2]) >= _PREFIXED_PEM_LINE or not (line[1] or "").strip(_AROUND):
            start = line.start(2)
        elif not is_first:  # The last line of base64 may be short, and is behind a prefix only if others are.
            break
        is_first = False
    return start


def _redact_bare_word(match: re.Match[str]) -> str:
    return f"{match[1]}{_in_place_of(match[2])}"


def _redact_url_user(match: re.Match[str]) -> str:
    scheme, user = match.groups()
    is_web = scheme.lower().endswith(("http://", "https://"))
    keep = user == "git" or REDACTED in user or not (is_web or resembles_secret(user))
    return match.group() if keep else f"{scheme}{REDACTED}@"


_Replacement = str | Callable[["re.Match[str]"], str]
# In this order. The hints are in lower case: a text without any of them has no match, and most texts have none at all.
_RULES: Final[tuple[tuple[Sequence[str], re.Pattern[str], _Replacement], ...]] = (
    ([start.casefold() for starts, _ in _KNOWN_KEYS for start in starts.split()], _KNOWN_KEY, REDACTED),
    (["://"], _URL_PASSWORD, f"{REDACTED}@"),
    (["://"], _URL_USER, _redact_url_user),
    (["@tcp(", "@unix("], _GO_DSN, rf"\1{REDACTED}@"),
    (["://", "sig=", "signature="], _URL_SECRET, rf"\1\2{REDACTED}"),
    (["-u"], _USER_FLAG, rf"\1\2\3{REDACTED}"),
    (["login", "sshpass", "identified"], _BARE_WORD, _redact_bare_word),
    (["bearer"], _BEARER, rf"\1{REDACTED}"),
)
# Each key that `_secret_keys` takes for that of a secret has one of these.
_PARTS_OF_KEYS: Final = (
    *("pass", "pw", "secret", "token", "credential", "auth", "key", "cookie", "bearer", "signature", "sess", "dsn"),
    *("hook", "jwt", "pat"),
)


# --- Values behind keys -----------------------------------------------------------------------------------


class _Span(NamedTuple):
    start: int
    end: int


_AROUND = " \t\"'\\"
_FindValue = Callable[[str, "re.Match[str]"], "_Span | None"]


def _replace_values(text: str, pattern: re.Pattern[str], find_value: _FindValue) -> str:
    parts: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        if match.start() < end:
            continue
        span = find_value(text, match)
        if (
            span is not None
            and span.end > span.start
            and not is_placeholder(text[span.start : span.end].strip(_AROUND))
        ):
            parts += [text[end : span.start], _in_place_of(text[span.start : span.end])]
            end = span.end
    return "".join([*parts, text[end:]]) if parts else text


def _assigned_value(text: str, match: re.Match[str]) -> _Span | None:
    key, start = match[1], match.end()
    if match[2] == ":" and _SOURCE_FILE.search(key) and _LINE_NUMBER.match(text, match.end(2)):
        return None
    if is_secret_key(key):
        if match[2] == ":" and not _QUOTE.match(text, start):
            if block := _yaml_block(text, match.start(1), start):
                return block
            if lower := _YAML_LOWER_LINE.match(text, start):
                return _Span(*lower.span(1))
            line = _HEADER_LINE if names_header(key) else _YAML_LINE if _starts_line(text, match) else None
            if line is not None and (found := line.match(text, start)) and not _is_opening(text, start):
                return _Span(start, start + len(found.group().rstrip()))
        return _value(text, start)
    if not may_be_secret_key(key):
        return None
    beginning = _value(text, start, most=_LONGEST_POSSIBLE)
    if beginning is None or not _holds_secret(key, text[beginning.start : beginning.end]):
        return None
    return _value(text, start)  # All of it: what is replaced is not searched again.


def _named_value(text: str, match: re.Match[str]) -> _Span | None:
    return _value(text, match.end()) if is_secret_key(match[1]) else None


def _value_before_name(text: str, match: re.Match[str]) -> _Span | None:
    return _Span(*match.span(1)) if is_secret_key(match[2]) else None


def _spaced_value(text: str, match: re.Match[str]) -> _Span | None:
    if not is_secret_key(match[1]) or not hold_secret(match[1], [match[3].rstrip(".:)]}")]):
        return None
    return _value(text, match.end())


def _paired_value(text: str, match: re.Match[str]) -> _Span | None:
    if not is_secret_key(match[2]):
        return None
    span = _value(text, match.end())
    return span if span is not None and _PAIR_END.match(text, span.end) else None


def _flag_value(text: str, match: re.Match[str]) -> _Span | None:
    return _value(text, match.end()) if is_secret_key(match[1]) else None


def _value(text: str, start: int, *, most: int | None = None) -> _Span | None:
    """Return where the value at `start` is: quoted, in brackets, or up to the next space or punctuation mark."""
    limit = len(text) if most is None else min(len(text), start + most)
    if quote := _QUOTE.match(text, start):
        return _Span(start, _quoted_end(text, quote, limit))
    if scheme := _SCHEME.match(text, start):
        bare = _BARE.match(text, scheme.end())
        return _Span(start, bare.end() if bare else scheme.end())
    if _is_opening(text, start):
        return _Span(start, _bracketed_end(text, start, limit))
    bare = _BARE.match(text, start)
    return _Span(start, bare.end()) if bare else None


def _quoted_end(text: str, quote: re.Match[str], limit: int) -> int:
    """Return the end of a quoted value.

    In JSON that was escaped n times, a delimiting quote has k = 2**n - 1 backslashes before it, and each backslash of
    the value is written as 2 * (k + 1); so the quote that ends the value has k of them, modulo 2 * (k + 1).
    """
    depth = len(quote[1])
    for closing in _CLOSING_QUOTES[quote[2]].finditer(text, quote.end(), limit):
        if len(closing[1]) % (2 * (depth + 1)) == depth:
            return closing.end()
    return limit


def _bracketed_end(text: str, start: int, limit: int) -> int:
    depth = 0
    for bracket in _BRACKETS.finditer(text, start, limit):
        depth += 1 if bracket.group() in "[({" else -1
        if depth == 0:
            return bracket.end()
    return limit


def _is_opening(text: str, start: int) -> bool:
    return text[start : start + 1] in ("[", "(", "{") and not text.startswith((REDACTED, TRUNCATED), start)


def _starts_line(text: str, match: re.Match[str]) -> bool:
    line_start = text.rfind("\n", max(0, match.start() - 256), match.start()) + 1
    is_whole = line_start > 0 or match.start() <= 256
    return is_whole and match.group().endswith(" ") and _YAML_KEY.match(text[line_start : match.start()]) is not None


def _yaml_block(text: str, key_start: int, start: int) -> _Span | None:
    """Return the lines of a block scalar: all that are blank or further to the right than their key."""
    head = _YAML_BLOCK.match(text, start)
    if head is None:
        return None
    line_start = text.rfind("\n", max(0, key_start - 1024), key_start) + 1
    indent = key_start - line_start
    end = head.end()
    while end < len(text) and (line := _YAML_BLOCK_LINE.match(text, end)):
        if line.group().strip() and len(line[1]) <= indent:
            break
        end = line.end()
    return _Span(head.end(), len(text[:end].rstrip())) if text[head.end() : end].strip() else None


_QUOTED_OR_BARE = re.compile(r"""[^\s,;:"'\[\](){}\\]+""")


def _holds_secret(key: str, value: str) -> bool:
    if REDACTED in value:
        return False
    if hold_secret(key, [value.strip("\"'\\")]):
        return True
    is_list = _is_opening(value, 0) and TRUNCATED not in value
    return hold_secret(key, _QUOTED_OR_BARE.findall(value), in_container=is_list)


def _in_place_of(value: str) -> str:
    bare = value.strip("\"'\\")
    if bare.startswith(TRUNCATED) or bare == REDACTED:
        return value
    indent = value[: len(value) - len(value.lstrip())]
    quote = _QUOTE.match(value)
    return f"{quote.group()}{REDACTED}{quote.group()}" if quote else f"{indent}{REDACTED}"
