"""Which requests the page answers: each row of the guard's table, and the token beyond loopback."""

from __future__ import annotations

import pytest
from ml_diagnostics_console._web.guard import SECURITY_HEADERS, Guard, Token

HOST = ("host", "127.0.0.1:8000")


def headers(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs]


@pytest.mark.parametrize(
    "pairs",
    [
        [HOST],
        [("host", "localhost:8000")],
        [("host", "LocalHost:9")],
        [("host", "localhost")],
        [("host", "[::1]:8000")],
        [HOST, ("sec-fetch-site", "none")],
        [HOST, ("sec-fetch-site", "same-origin")],
        [HOST, ("origin", "http://127.0.0.1:8000")],
        [HOST, ("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "same-origin")],
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_requests_of_the_page_and_of_programs_are_answered(method: str, pairs: list[tuple[str, str]]) -> None:
    assert Guard().refusal(method, headers(*pairs)) == ""


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "BREW", ""])
def test_only_get_and_head_are_answered(method: str) -> None:
    assert "only GET and HEAD" in Guard().refusal(method, headers(HOST))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "127.0.0.2",
        "10.0.0.1:8000",
        "[::2]",
        "0.0.0.0",
        "2130706433",
        "0x7f.1",
        "127.1",
        "localhost.",
        "localhost:0",
        "localhost:65536",
        "localhost:8000:1",
        "user@localhost",
        "localhost:8000/",
        "localhost\x00",
        "",
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert "Host header" in Guard().refusal("GET", headers(("host", host)))


def test_a_missing_or_repeated_host_is_refused() -> None:
    assert "Host header" in Guard().refusal("GET", [])
    assert "Host header" in Guard().refusal("GET", headers(HOST, ("host", "evil.example")))
    assert "Host header" in Guard().refusal("GET", headers(HOST, HOST))


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "https://127.0.0.1:8000",
        "http://localhost:8000",
        "http://127.0.0.1:8001",
        "http://127.0.0.1",
        "http://127.0.0.1:8000/",
        "file://",
        "chrome-extension://abc",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    assert "another page" in Guard().refusal("GET", headers(HOST, ("origin", origin)))
    own = ("origin", "http://127.0.0.1:8000")
    assert "another page" in Guard().refusal("GET", headers(HOST, own, ("origin", origin)))


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "other"])
def test_a_request_of_another_site_is_refused(site: str) -> None:
    assert "another page" in Guard().refusal("GET", headers(HOST, ("sec-fetch-site", site)))


def test_further_names_and_addresses_are_ours_only_where_we_listen_on_them() -> None:
    one = Guard(frozenset({"10.0.0.7", "login-1"}))
    everywhere = Guard(frozenset({"login-1"}), allows_addresses=True)
    for host in ("10.0.0.7:80", "login-1", "127.0.0.1"):
        assert one.refusal("GET", headers(("host", host))) == ""
        assert everywhere.refusal("GET", headers(("host", host))) == ""
    for host, is_refused_by_one in (("10.0.0.8", True), ("[2001:db8::1]:80", True), ("evil.example", True)):
        assert bool(one.refusal("GET", headers(("host", host)))) is is_refused_by_one
    assert everywhere.refusal("GET", headers(("host", "10.0.0.8"))) == ""
    assert everywhere.refusal("GET", headers(("host", "[2001:db8::1]:80"))) == ""
    assert everywhere.refusal("GET", headers(("host", "evil.example")))
    assert everywhere.refusal("GET", headers(("host", "[::1")))


def test_a_refusal_shows_foreign_text_bounded_and_as_ascii() -> None:
    refusal = Guard().refusal("GET", headers(("host", "é\x1b[31m<b>" + "x" * 10_000)))
    assert refusal.isascii()
    assert len(refusal) < 400
    assert "\x1b" not in refusal


def test_the_token_has_256_bits_and_differs_each_time() -> None:
    texts = {Token().text for _ in range(100)}
    assert len(texts) == 100
    assert all(len(text) == 43 for text in texts)


def test_a_token_becomes_a_cookie_that_scripts_cannot_read() -> None:
    token = Token("secret", 8000)
    assert token.is_in_authorization(headers(("authorization", "Bearer secret")))
    assert token.cookie == "mldiagnostics_8000=secret; HttpOnly; SameSite=Strict; Path=/"
    assert token.is_in_cookie(headers(("cookie", "a=b; mldiagnostics_8000=secret")))


@pytest.mark.parametrize("text", ["", "Bearer ", "Bearer Secret", "Bearer secret2", "Basic secret", "Bearer sécret"])
def test_a_wrong_token_is_refused(text: str) -> None:
    assert not Token("secret").is_in_authorization(headers(("authorization", text)))


@pytest.mark.parametrize(
    "cookie",
    ["", "mldiagnostics_8000=", "mldiagnostics_8000=Secret", "mldiagnostics_8001=secret", "=;;=", "a" * 100_000],
)
def test_a_wrong_cookie_is_refused(cookie: str) -> None:
    assert not Token("secret", 8000).is_in_cookie(headers(("cookie", cookie)))
    assert not Token("secret", 8000).is_in_cookie([])


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline() -> None:
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    for forbidden in ("unsafe-inline", "unsafe-eval", "http:", "https:", "*", "blob:"):
        assert forbidden not in policy


@pytest.mark.parametrize(
    "other",
    [
        '{"theme": "dark"}',
        'state={"a": 1}',
        "a b=1",
        "[x]=1",
        "=;;=",
        'half="quoted',
        "name=\xe9",
        "flag",
        "a=" + "b" * 60_000,
    ],
)
def test_a_cookie_of_another_server_on_the_host_does_not_hide_the_token(other: str) -> None:
    token = Token("secret", 8000)
    assert token.is_in_cookie(headers(("cookie", f"{other}; mldiagnostics_8000=secret")))
    assert token.is_in_cookie(headers(("cookie", f"mldiagnostics_8000=secret; {other}")))
    assert token.is_in_cookie(headers(("cookie", other), ("cookie", "mldiagnostics_8000=secret")))
    assert not token.is_in_cookie(headers(("cookie", f"{other}; mldiagnostics_8000=other")))
