"""Which keys, variables, flags and headers name a secret.

The rules are judged by a corpus of secrets and harmless values (tests/common/secret_corpus.py). A machine learning
config is full of words that mean something else elsewhere: `max_tokens`, `key_dim`, `forward_pass`, `rng_key`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "[REDACTED]"
TRUNCATED = "[TRUNCATED]"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST_KEY = 256

_SECRET_WORDS = frozenset(
    """
    password passwd pwd passphrase passcode secret credential authorization apikey privatekey accesskey
    cookie sshpass jwt sessionid phpsessid jsessionid csrftoken xsrftoken accesstoken authtoken apitoken
    """.split()  # noqa: SIM905
)
_SECRET_ENDINGS = frozenset({"pw", "bearer"})  # only as the last word: `pw_conv`, `bearer_length`
_GLUED_TO_SECRET = ("password", "passwd", "passphrase")  # PGPASSWORD
_ACCOUNTS = """
    db database sql mysql pg postgres mongo redis smtp imap pop mail email ftp sftp ssh ldap http proxy user admin root
    """.split()  # noqa: SIM905
# Services that issue keys: `wandb_key`, `--hf-key`, `sshKey`. Not `cache_key`, `sort_key`, `rng_key`.
_KEY_ISSUERS = """
    api private access secret signing encryption hmac session license account master deploy storage ssh gpg pgp rsa
    tls ssl
    wandb hf huggingface openai anthropic gemini google gcp aws azure github gitlab stripe twilio sendgrid mailgun
    datadog dd newrelic sentry slack discord comet neptune mlflow cohere replicate pinecone kaggle langchain langsmith
    mistral groq together deepseek perplexity elevenlabs algolia clearml nvidia ngc databricks snowflake
    """.split()  # noqa: SIM905
_SECRET_PAIRS = frozenset(
    {
        *((first, "key") for first in _KEY_ISSUERS),
        *((first, "token") for first in ("access", "auth", "refresh", "session", "bearer", "api", "id")),
        *((first, "signature") for first in ("goog", "amz", "access")),
        ("auth", "header"),
        # "pass" alone is also a pass over the data, and "auth" a method.
        *((first, "pass") for first in _ACCOUNTS),
        *((first, "auth") for first in ("rediscli", "redis", "basic", "http", "proxy", "npm")),
        *((first, "pat") for first in ("github", "gitlab", "gh", "azure", "devops", "ado", "hub")),
    }
)
# `tokens` alone, or after any other word, are often those of a text, or a number of them: the value decides.
_SECRET_TOKENS = frozenset("access auth oauth refresh bearer api hf huggingface wandb github gitlab gh bot".split())  # noqa: SIM905
_COUNTS = frozenset("num number n max min total avg mean per used seen".split())  # noqa: SIM905
# A key that ends in "token" is a secret, except where the token is one of a vocabulary.
_VOCABULARY_WORDS = frozenset(
    """
    pad bos eos unk mask sep cls stop start end begin next last first special image audio per prefix suffix
    """.split()  # noqa: SIM905
)
# What describes a secret is not one: `password_file`, `secret_name`, `credential_type`.
_DESCRIPTIONS = frozenset(
    """
    id name file path ids names files paths dir directory type kind method mode policy length len size count enabled
    ttl format provider version env var variable
    """.split()  # noqa: SIM905
)
_POSSIBLE_ENDINGS = frozenset({"tokens", "auth", "dsn"})
_POSSIBLE_ALONE = frozenset({"key", "pass", "pat"})
# What a copy of a secret is for: `hf_token_write`, `API_KEY_PROD`. The value decides, for there is `token_test_size`.
_PURPOSES = frozenset(
    [
        "prod",
        "production",
        "dev",
        "staging",
        "test",
        "live",
        "read",
        "write",
        "readonly",
        "rw",
        "ro",
        "old",
        "new",
        "backup",
    ]
)
_LINK_WORDS = frozenset({"webhook", "webhooks"})

_LONG = 16  # Names of models, layers and data sets that mix letters and digits are mostly shorter.
_SHORT = 10  # The length from which on a text under a key that leaves little doubt is a secret.

_CHUNKS = re.compile(r"[A-Za-z0-9]+")
_PLACEHOLDER = re.compile(r"true|false|null|none|~|<[A-Za-z_|/ -]{1,40}>", re.IGNORECASE)
_NEVER_IN_A_SECRET = re.compile(r"[\s<>()\[\]{}|*\\]")
_PUNCTUATION = re.compile(r"[!#%$^+=~]")


def is_secret_key(key: str) -> bool:
    """Return True if what this key, variable, flag or header names is a secret.

    Args:
        key: In any style: `api_key`, `apiKey`, `X-Api-Key`, `--api-key`.

    Returns:
        True for passwords, tokens, API keys and the like; False for `max_tokens`, `eos_token`, `tokenizer`.
    """
    words = _words(key)
    if not words or words[-1] in _DESCRIPTIONS:
        return False
    singular = [_singular(word) for word in words]
    if _SECRET_WORDS.intersection(singular) or words[-1] in _SECRET_ENDINGS:
        return True
    if words.count("tokens") and not _COUNTS.isdisjoint(words):
        return False
    if words[-1] == "tokens":
        before = [name for name in singular[:-1] if not name.isdigit()]  # oauth2_tokens
        return bool(before) and before[-1] in _SECRET_TOKENS
    pairs = zip(words[:-1], singular[1:], strict=True)
    if not _SECRET_PAIRS.isdisjoint(pairs):
        return True
    if any(word.endswith(_GLUED_TO_SECRET) for word in singular):
        return True
    return words[-1] == "token" and (len(words) == 1 or words[-2] not in _VOCABULARY_WORDS)


def may_be_secret_key(key: str) -> bool:
    """Return True if the value decides: `tokens`, `key`, `auth`, `token_prod`, `webhook_url`; see `hold_secret`."""
    words = _words(key)
    if not words:
        return False
    if words[-1] in _PURPOSES and is_secret_key("_".join(words[:-1])):
        return True
    is_alone = len(words) == 1 and words[0] in _POSSIBLE_ALONE
    return is_alone or words[-1] in _POSSIBLE_ENDINGS or bool(_LINK_WORDS.intersection(words))


def hold_secret(key: str, texts: Sequence[str], *, in_container: bool = False) -> bool:
    """Return True if the texts under a key of `may_be_secret_key`, or behind a key and a space, seem to be credentials.

    Args:
        key: The key.
        texts: Its value, or the values directly inside of it.
        in_container: True if the value is a list or a mapping, and these are all of its texts.
    """
    suspects = [text for text in texts if resembles_secret(text, shortest=_SHORT)]
    if not suspects:
        return False
    if any(map(resembles_secret, suspects)) or _leaves_little_doubt(key):
        return True
    # One `image2text` may stand in any text that was split; a list of credentials has nothing else.
    return in_container and _words(key) == ["tokens"] and 2 * len(suspects) >= len(texts)


def _leaves_little_doubt(key: str) -> bool:
    """Return True for `api_key`, `hf_token_write`, `pat`; False for `token`, `secret`, `key`, `auth`."""
    words = _words(key)
    if words and words[-1] in _PURPOSES:
        del words[-1]
    return words == ["pat"] or (words not in (["token"], ["secret"]) and is_secret_key("_".join(words)))


def resembles_secret(value: str, *, shortest: int = _LONG) -> bool:
    """Return True if a text seems to be a generated credential, and not like a name, a path or a number.

    It has letters and digits mixed in one piece, and is long or has punctuation that names do not have. A link with a
    path is one, too, since its path is all that a webhook asks for.

    Args:
        value: The text.
        shortest: The number of characters from which on it is long.
    """
    if "://" in value:
        return value.count("/") > 2
    if len(value) < 8 or _NEVER_IN_A_SECRET.search(value) or value.startswith(("/", "./", "~")):
        return False
    mixed = [chunk for chunk in _CHUNKS.findall(value) if not chunk.isalpha() and not chunk.isdigit()]
    return bool(mixed) and (len(value) >= shortest or _PUNCTUATION.search(value) is not None)


def is_placeholder(value: str) -> bool:
    """Return True for a text that only states that nothing is set, or what to set: `None`, `<password>`, `</s>`."""
    return _PLACEHOLDER.fullmatch(value) is not None


def names_header(key: str) -> bool:
    """Return True for a header with a value up to the end of its line, with spaces and semicolons."""
    words = _words(key)
    return bool(words) and words[-1] in ("cookie", "authorization")


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key[:_LONGEST_KEY])]


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
