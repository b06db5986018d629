"""Endpoints of Google's services: each rule a test."""

import pytest
from ml_diagnostics_common.endpoints import endpoint, logging_over_grpc, require_secure
from ml_diagnostics_common.exceptions import ConfigurationError


def test_gclouds_settings_redirect_a_service() -> None:
    environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": "http://127.0.0.1:8080/logging/v2/"}
    assert endpoint("logging", environ) == "http://127.0.0.1:8080/logging/v2"
    assert endpoint("monitoring", environ) is None


@pytest.mark.parametrize(
    ("emulator", "url"),
    [
        ("http://127.0.0.1:9023", "http://127.0.0.1:9023"),
        ("127.0.0.1:9023", "http://127.0.0.1:9023"),
        ("", "https://other:1"),
    ],
)
def test_the_storage_emulator_wins_over_gclouds_setting(emulator: str, url: str) -> None:
    environ = {
        "STORAGE_EMULATOR_HOST": emulator,
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "https://other:1/",
    }
    assert endpoint("storage", environ) == url


@pytest.mark.parametrize("value", ["localhost", "ftp://host/", "http://", "http://host:99999/", "http://[/"])
def test_an_endpoint_that_is_not_a_url_is_an_error_that_names_the_variable(value: str) -> None:
    with pytest.raises(ConfigurationError, match="CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"):
        endpoint("compute", {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": value})


@pytest.mark.parametrize("url", ["localhost", "ftp://127.0.0.1/", "http://[/"])
def test_an_argument_that_is_not_a_url_is_an_error_that_names_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url is"):
        require_secure(url, "base_url")


@pytest.mark.parametrize(
    "url", ["https://logging.example.com", "http://127.0.0.1:80", "http://[::1]:80", "http://localhost:80"]
)
def test_http_is_for_this_machine_only(url: str) -> None:
    assert endpoint("logging", {"CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": url}) == url
    assert endpoint("logging", {}) is None


@pytest.mark.parametrize(
    "url", ["http://logging.example.com", "http://10.0.0.1:80", "http://127.0.0.1.example.com", "HTTP://10.0.0.1"]
)
def test_http_to_another_machine_is_an_error_that_names_the_variable(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING.*https"):
        endpoint("monitoring", {"CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING": url})


def test_a_storage_emulator_may_be_any_machine_since_it_gets_no_token() -> None:
    redirected = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "http://storage.example.com"}
    emulated = {**redirected, "STORAGE_EMULATOR_HOST": "fake-gcs:4443"}
    assert endpoint("storage", emulated) == "http://fake-gcs:4443"
    with pytest.raises(ConfigurationError, match=r"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE.*https"):
        endpoint("storage", redirected)
    with pytest.raises(ConfigurationError, match="CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"):
        endpoint("logging", {**emulated, "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING": "http://10.0.0.1"})


@pytest.mark.parametrize(("value", "is_grpc"), [("", False), ("rest", False), ("grpc", True), (" GRPC ", True)])
def test_entries_are_written_over_rest_unless_the_environment_selects_grpc(value: str, is_grpc: bool) -> None:
    assert logging_over_grpc({"ML_DIAGNOSTICS_LOGGING_TRANSPORT": value}) is is_grpc


def test_an_unknown_transport_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"ML_DIAGNOSTICS_LOGGING_TRANSPORT.*'http'.*'rest' or 'grpc'"):
        logging_over_grpc({"ML_DIAGNOSTICS_LOGGING_TRANSPORT": "http"})
