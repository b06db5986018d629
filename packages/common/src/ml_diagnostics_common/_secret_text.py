"""Replace secrets in texts: lines of logs, tracebacks, command lines, JSON (also escaped inside of text), YAML, URLs.

A secret is recognized by its key (`_secret_keys`) or by its form: a JWT, a PEM block, the key of a known service, a URL
with a password. Every pattern is bounded in what it reads ahead, so that the time is proportional to the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

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

# A text without any of these has no secret that the patterns below can find; most texts end here.
_HINT = re.compile(
    r"pass|pw|secret|token|credential|auth|key|cookie|bearer|signature|sess|csrf|sig=|dsn|hook|://|@tcp\(|@unix\(|-----BEGIN"
    r"|AIza|gh[pousr]_|github_pat_|gl[a-z]{2,4}-|hf_|sk-|[srp]k_|xox|xapp-|AKIA|ASIA|ya29|eyJ|GOCSPX|\bpat\b|_pat\b|jwt|(?<!\S)-u\s"
    r"|--(?:proxy-)?user|npm_|pypi-|SG\.|gsk_|r8_|pplx-|nvapi-|do[opr]_v1_|shp|dapi|hvs\.|lsv2_|ATATT|1//0|xai-|lin_|ntn_"
    r"|wandb_v1|AGE-S",
    re.IGNORECASE,
)
# No pattern may scan to the end of the text from each of many positions: lookahead is bounded.
_FORMS = re.compile(
    r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"AIza[\w-]{30,}"  # Google API key
    r"|ya29\.[\w.-]{10,}|1//0[\w-]{20,}"  # Google access token, refresh token
    r"|GOCSPX-[\w-]{10,}"  # Google client secret
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"  # GitHub
    r"|gl(?:pat|ptt|dt|rt|soat|cbt|ft|imt|agent)-[\w-]{16,}"  # GitLab
    r"|hf_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|wandb_v1_\w{20,}|lsv2_(?:pt|sk)_\w{16,}|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}"
    r"|pplx-[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}"  # W&B, LangSmith, NVIDIA, Groq, Replicate, Perplexity, xAI
    r"|sk-(?=[\w-]{0,256}[0-9])[\w-]{16,}"  # OpenAI, Anthropic
    r"|[srp]k_(?:live|test)_\w{10,}|whsec_\w{16,}"  # Stripe
    r"|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}"  # Slack
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}"  # npm, PyPI
    r"|SG\.[\w-]{16,64}\.[\w-]{16,}"  # SendGrid
    r"|do[opr]_v1_[0-9a-f]{32,}|dapi[0-9a-f]{32}|hvs\.[\w-]{20,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"
    r"|ATATT3[\w=-]{20,}|lin_api_\w{20,}|ntn_\w{20,}|AGE-SECRET-KEY-1[0-9A-Z]{20,}"
    r"|eyJ[\w-]{5,1024}\.[\w-]{5,}(?:\.[\w-]*)*"  # JWT
    r")",
    re.DOTALL,
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
_BARE_WORD = re.compile(r"\b(login\s+\S{1,256}\s+password\s+|sshpass\s+-p\s*|identified\s+by\s+)(\S+)", re.IGNORECASE)
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
_BRACKETS = re.compile(r"[\[\](){}]")
_LONGEST_POSSIBLE = 256  # read of a list behind a key that need not be a secret: each such key reads its own


def redact_text(text: str) -> str:
    """Replace secrets in a text: see `redaction.redact_text`."""
    if not _HINT.search(text):
        return text
    for _ in range(8):  # A replacement may uncover the rest of a secret; almost always the second pass changes nothing.
        cleaned = _redact_once(text)
        if cleaned == text:
            return cleaned
        text = cleaned
    return REDACTED


def _redact_once(text: str) -> str:
    text = _FORMS.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(f"{REDACTED}@", text)
    text = _URL_USER.sub(_redact_url_user, text)
    text = _GO_DSN.sub(rf"\1{REDACTED}@", text)
    text = _URL_SECRET.sub(lambda match: f"{match[1] or match[2]}{REDACTED}", text)
    text = _USER_FLAG.sub(rf"\1\2\3{REDACTED}", text)
    text = _BARE_WORD.sub(lambda match: f"{match[1]}{_in_place_of(match[2])}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _replace_values(text, _ASSIGNED, _assigned_value)
    text = _replace_values(text, _NAME_AND_VALUE, _named_value)
    text = _replace_values(text, _VALUE_AND_NAME, _value_before_name)
    text = _replace_values(text, _KEY_AND_SPACE, _spaced_value)
    text = _replace_values(text, _PAIR, _paired_value)
    return _replace_values(text, _FLAG, _flag_value)


def _redact_url_user(match: re.Match[str]) -> str:
    scheme, user = match.groups()
    is_web = scheme.lower().endswith(("http://", "https://"))
    keep = user == "git" or REDACTED in user or not (is_web or resembles_secret(user))
    return match.group() if keep else f"{scheme}{REDACTED}@"


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
