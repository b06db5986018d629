"""Secrets in many shapes, and harmless values that resemble them: what the redactor is judged by.

Every sample is what a user might put into a config, an environment, a command line or a message. The secret material is
drawn from a seeded generator, so that no sample is a real credential and every run sees the same ones.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_PER_SHAPE = 10


class Sample(NamedTuple):
    """One secret, and the text or structure that holds it."""

    shape: str
    value: Any
    secret: str


@dataclasses.dataclass
class DatabaseConfig:
    host: str
    db_pw: str


Login = collections.namedtuple("Login", "user password")


class Material:
    """Draw secrets of the kinds that people have."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        return "".join(self._random.choice(alphabet) for _ in range(length))

    def choice(self, *options: str) -> str:
        return self._random.choice(options)

    def word(self) -> str:
        """Return a token: mostly letters and digits, of 10 to 40 characters."""
        length = self._random.randint(10, 40)
        kind = self._random.choices(
            ("letters and digits", "pieces", "hexadecimal", "uuid", "password", "letters or digits"),
            (12, 3, 2, 1, 1, 1),
        )[0]
        if kind == "pieces":
            separator = self.choice("-", "_", ".")
            return separator.join(self.mixed(self._random.randint(5, 9)) for _ in range(self._random.randint(2, 4)))
        if kind == "hexadecimal":
            return self.mixed(length, string.hexdigits.lower())
        if kind == "uuid":
            return "-".join(self.hexadecimal(part) for part in (8, 4, 4, 4, 12))
        if kind == "password":
            return self.of(string.ascii_lowercase, 6) + self.of(string.digits, 1) + self.of(string.ascii_lowercase, 3)
        if kind == "letters or digits":
            return self.of(self.choice(string.ascii_letters, string.digits), length)
        return self.mixed(length)

    def mixed(self, length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        """Return a text that has both letters and digits."""
        while (text := self.of(alphabet, length)).isalpha() or text.isdigit():
            pass
        return text

    def password(self) -> str:
        """Return what a person would choose: short, with a punctuation mark."""
        return self.of(string.ascii_lowercase, 6) + self.choice("!", "#", "-", "_", ".", "%") + self.of("0123456789", 3)

    def hexadecimal(self, length: int) -> str:
        return self.of("0123456789abcdef", length)

    def base64(self, length: int) -> str:
        return base64.b64encode(self._random.randbytes(length)).decode()

    def any(self) -> str:
        return self._random.choice([self.word, self.password, lambda: self.hexadecimal(40)])()  # type: ignore[no-untyped-call]


SHAPES: dict[str, Callable[[Material], tuple[Any, str]]] = {}


def shape(function: Callable[[Material], tuple[Any, str]]) -> Callable[[Material], tuple[Any, str]]:
    SHAPES[function.__name__] = function
    return function


def secrets() -> Iterator[Sample]:
    """Yield every secret sample."""
    for number, (name, make) in enumerate(SHAPES.items()):
        material = Material(number)
        for _ in range(_PER_SHAPE):
            value, secret = make(material)
            yield Sample(name, value, secret)


# --- Texts of configs and messages ----------------------------------------------------------------------


def _key(material: Material) -> str:
    return material.choice(
        "password", "api_key", "apiKey", "secret", "access_token", "client_secret", "HF_TOKEN", "db_pw"
    )


@shape
def json_text(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return json.dumps({"lr": 0.1, _key(material): secret, "steps": 5}), secret


@shape
def json_escaped_in_a_text(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return json.dumps({"body": json.dumps({_key(material): secret, "steps": 5})}), secret


@shape
def json_escaped_twice(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return json.dumps([json.dumps({"body": json.dumps({"n": 1, _key(material): secret})})]), secret


@shape
def json_with_an_escaped_quote(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return "got " + json.dumps(json.dumps({_key(material): f'a"b {secret}'})), secret


@shape
def variable_of_an_environment(material: Material) -> tuple[Any, str]:
    secret = material.any()
    name = material.choice("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "OPENAI_KEY", "DB_PW")
    return material.choice(f"{name}={secret}", f'export {name}="{secret}"', f"export {name}='{secret}'; run"), secret


@shape
def yaml_line_with_spaces(material: Material) -> tuple[Any, str]:
    secret = f"{material.of(string.ascii_lowercase, 6)} {material.of(string.ascii_lowercase, 7)}"
    return (
        f"host: db\n{material.choice('password', 'passphrase', 'db_password')}: {secret}\nport: 5432\n",
        secret.split()[1],
    )


@shape
def yaml_block(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"db:\n  password: {material.choice('|', '>', '|-')}\n    {secret}\n  host: here\n", secret


@shape
def ini_or_toml(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return material.choice(f"[db]\npassword = {secret}\nport = 1\n", f'[tool]\ntoken = "{secret}"\n'), secret


@shape
def netrc(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"machine api.wandb.ai login user password {secret}", secret


@shape
def keyword_argument(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"Client(host='h', {material.choice('password', 'api_key', 'token', 'pw')}='{secret}', retries=3)", secret


@shape
def repr_of_a_dict(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return repr({"user": "me", _key(material): secret, "n": 1}), secret


@shape
def repr_of_a_pair(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return (
        f"headers: {[('accept', 'json'), (material.choice('password', 'X-Api-Key', 'authorization'), secret)]!r}",
        secret,
    )


@shape
def assignment_in_a_traceback(material: Material) -> tuple[Any, str]:
    secret = material.any()
    line = material.choice(
        f'os.environ["HF_TOKEN"] = "{secret}"', f"wandb.login(key='{secret}')", f'api_key = "{secret}"'
    )
    return f'  File "train.py", line 3, in main\n    {line}\nValueError: no', secret


@shape
def plural_in_a_text(material: Material) -> tuple[Any, str]:
    secret = material.any()
    key = material.choice("api_keys", "passwords", "access_tokens", "secrets")
    return material.choice(f'{key}: ["{secret}", "{material.any()}"]', f'"{key}": {{"a": "{secret}"}}, "n": 1'), secret


@shape
def list_of_tokens_in_a_text(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return json.dumps({"user": "me", "tokens": [material.word(), secret]}), secret


@shape
def value_before_its_name_in_a_text(material: Material) -> tuple[Any, str]:
    secret = material.word()
    name = material.choice("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD")
    return material.choice(
        json.dumps([{"value": secret, "name": name}]), f"env:\n- value: {secret}\n  name: {name}\n"
    ), secret


@shape
def value_on_the_line_below(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"db:\n  {material.choice('password', 'api_key', 'secret')}:\n    {secret}\n  port: 5432\n", secret


@shape
def value_after_a_space(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return material.choice(
        f'unlocked with passphrase "{secret}"', f"using oauth2_token {secret} of me", f"set api_key {secret}"
    ), secret


@shape
def key_with_a_purpose(material: Material) -> tuple[Any, str]:
    secret = material.word()
    key = material.choice("hf_token_write", "token_prod", "API_KEY_STAGING", "apiKeyLive", "secret_key_backup")
    return material.choice(f"{key}={secret}", json.dumps({key: secret})), secret


@shape
def rarer_name_of_a_secret(material: Material) -> tuple[Any, str]:
    secret = material.word()
    key = material.choice("pass", "session_key", "hmac_key", "license_key", "jwt", "pat")
    return material.choice(f"{key}={secret}", json.dumps({key: secret})), secret


# --- Command lines --------------------------------------------------------------------------------------


def _flag(material: Material) -> str:
    return material.choice("--api-key", "--token", "--password", "--wandb-key", "--hf-key", "--db-pw", "--auth-token")


@shape
def flag_and_value(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"train.py --steps 5 {_flag(material)} {secret} --lr 0.1", secret


@shape
def flag_with_equals(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"train.py {_flag(material)}={secret} --lr=0.1", secret


@shape
def argv(material: Material) -> tuple[Any, str]:
    secret = material.any()
    flag = _flag(material)
    return ["train.py", *material.choice(f"{flag}={secret}", f"{flag} {secret}").split(), "--lr", "0.1"], secret


@shape
def container_environment(material: Material) -> tuple[Any, str]:
    secret = material.any()
    flag = material.choice("-e ", "--env ", "--env=", "--build-arg ")
    return f"docker run {flag}WANDB_API_KEY={secret} image:1", secret


@shape
def user_and_password_of_curl(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"curl {material.choice('-u', '--user', '--proxy-user')} bob:{secret} https://host/x", secret


@shape
def header_of_curl(material: Material) -> tuple[Any, str]:
    secret = material.word()
    header = material.choice("Authorization: Bearer", "X-Api-Key:", "PRIVATE-TOKEN:", "Authorization: Basic")
    return f"curl -H '{header} {secret}' https://host/x", secret


@shape
def sshpass(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"sshpass -p {secret} ssh host true", secret


# --- URLs -----------------------------------------------------------------------------------------------


@shape
def url_with_a_password(material: Material) -> tuple[Any, str]:
    secret = material.any()
    scheme = material.choice("postgres", "mysql+pymysql", "redis", "mongodb+srv", "amqp", "https")
    return f"connect to {scheme}://user:{secret}@db.host:5432/name failed", secret


@shape
def url_with_an_at_sign_in_the_password(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return f"postgres://user:a@{secret}@db.host/name", secret


@shape
def url_with_a_token_as_user(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"fetch https://{secret}@host.example/api?x=1", secret


@shape
def pip_requirement(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return f"pip install git+https://{secret}@github.com/org/repo.git@main", secret


@shape
def dsn(material: Material) -> tuple[Any, str]:
    secret = material.hexadecimal(32)
    return material.choice(
        f"https://{secret}@o12.ingest.sentry.io/34",
        f"SENTRY_DSN=https://{secret}@sentry.io/1",
        f"user:{secret}@tcp(db:3306)/x",
    ), secret


@shape
def parameter_of_a_url(material: Material) -> tuple[Any, str]:
    secret = material.word()
    name = material.choice("access_token", "api_key", "key", "token", "sig", "X-Amz-Signature", "password")
    return f"GET https://host/path?page=2&{name}={secret}&n=1", secret


@shape
def webhook(material: Material) -> tuple[Any, str]:
    secret = material.word() + material.word()
    return "post to " + material.choice(
        f"https://hooks.slack.com/services/T0/B0/{secret}",
        f"https://discord.com/api/webhooks/123456/{secret}",
        f"https://team.webhook.office.com/webhookb2/{secret}",
        f"https://chat.googleapis.com/v1/spaces/A/messages?key=k&token={secret}",
        f"https://api.telegram.org/bot{material.of(string.digits, 9)}:{secret}/sendMessage",
        f"https://hooks.zapier.com/hooks/catch/1/{secret}/",
    ), secret


@shape
def connection_string(material: Material) -> tuple[Any, str]:
    secret = material.base64(24)
    return material.choice(
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={secret};EndpointSuffix=x",
        f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={secret}",
        f"Server=db;User Id=me;Password={secret};",
        f"jdbc:postgresql://db/x?user=me&password={secret}",
        f"host=db user=me password={secret} dbname=x",
    ), secret


# --- Headers and known forms ----------------------------------------------------------------------------


@shape
def header_in_a_log(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return material.choice(
        f"> Authorization: Bearer {secret}",
        f"> authorization: Digest username=me, response={secret}",
        f"> Cookie: theme=dark; sessionid={secret}; n=1",
        f"< Set-Cookie: theme=dark; id={secret}; Path=/",
        f"> x-goog-api-key: {secret}",
    ), secret


@shape
def form_of_a_known_service(material: Material) -> tuple[Any, str]:
    letters = string.ascii_letters + string.digits
    secret = material.choice(
        "AIza" + material.of(letters, 35),
        "ghp_" + material.of(letters, 36),
        "hf_" + material.of(string.ascii_letters, 34),
        "sk-ant-api03-1" + material.of(letters, 40),
        "glpat-" + material.of(letters, 20),
        "npm_" + material.of(letters, 36),
        "pypi-AgEIcHlwaS5vcmc" + material.of(letters, 60),
        "sk_live_" + material.of(letters, 24),
        "SG." + material.of(letters, 22) + "." + material.of(letters, 43),
        "gsk_" + material.of(letters, 52),
        "nvapi-" + material.of(letters, 64),
        "dop_v1_" + material.hexadecimal(64),
        "AKIA" + material.of(string.ascii_uppercase + string.digits, 16),
        "lsv2_pt_" + material.hexadecimal(32),
        "xoxb-" + material.of(string.digits, 12) + "-" + material.of(letters, 24),
        "1//0" + material.of(letters, 40),
    )
    return f"the value {secret} was refused", secret


@shape
def pem(material: Material) -> tuple[Any, str]:
    secret = material.base64(48)
    kind = material.choice("RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY")
    return json.dumps({"note": f"-----BEGIN {kind}-----\n{secret}\n-----END {kind}-----\n"}), secret


@shape
def json_web_token(material: Material) -> tuple[Any, str]:
    parts = (base64.urlsafe_b64encode(b'{"alg":"RS256"}').decode().rstrip("="), material.word(), material.word())
    return f"sent {'.'.join(parts)} to the server", parts[2]


# --- Structures -----------------------------------------------------------------------------------------


@shape
def key_of_a_mapping(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {"model": {"lr": 0.1}, "db": {"host": "h", _key(material): secret}}, secret


@shape
def key_of_a_service(material: Material) -> tuple[Any, str]:
    secret = material.any()
    key = material.choice(
        "wandb_key", "hf_key", "openai_key", "AWS_KEY", "datadogKey", "stripe-key", "comet_key", "ssh_key"
    )
    return {"service": {key: secret}}, secret


@shape
def short_name_of_a_secret(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {material.choice("pw", "db_pw", "bearer", "sessionid", "PHPSESSID", "csrftoken", "passcode"): secret}, secret


@shape
def plural_of_a_mapping(material: Material) -> tuple[Any, str]:
    secret = material.any()
    key = material.choice("api_keys", "apiKeys", "passwords", "access_tokens", "credentials", "hf_tokens")
    return {key: ["x1", secret] if material.choice("list", "dict") == "list" else {"prod": secret}}, secret


@shape
def tokens_of_a_mapping(material: Material) -> tuple[Any, str]:
    secret = material.word()
    return {"tokens": [secret, material.word()]}, secret


@shape
def kubernetes_environment(material: Material) -> tuple[Any, str]:
    secret = material.any()
    name = material.choice("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD")
    return {"env": [{"name": "STEPS", "value": "5"}, {"name": name, "value": secret}]}, secret


@shape
def kubernetes_environment_in_a_text(material: Material) -> tuple[Any, str]:
    secret = material.any()
    name = material.choice("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD")
    return material.choice(
        json.dumps([{"name": "STEPS", "value": "5"}, {"name": name, "value": secret}]),
        repr([{"name": name, "value": secret}]),
        f"env:\n- name: {name}\n  value: {secret}\n- name: STEPS\n  value: 5\n",
        f'env:\n  - name: "{name}"\n    value: "{secret}"\n',
    ), secret


@shape
def pair_in_a_list(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {"headers": [("accept", "json"), (material.choice("password", "api_key", "Authorization"), secret)]}, secret


@shape
def file_of_credentials(material: Material) -> tuple[Any, str]:
    secret = material.hexadecimal(32)
    return (
        {"username": "me", "key": secret} if material.choice("a", "b") == "a" else {"auths": {"h": {"auth": secret}}}
    ), secret


@shape
def field_of_a_dataclass(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {"db": DatabaseConfig("h", secret)}, secret


@shape
def field_of_a_named_tuple(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return [Login("me", secret)], secret


@shape
def text_in_a_structure(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {"notes": [f"use --password {secret} there", {"x": 1}]}, secret


@shape
def bytes_in_a_structure(material: Material) -> tuple[Any, str]:
    secret = material.any()
    return {"body": json.dumps({"password": secret}).encode()}, secret


# --- Harmless -------------------------------------------------------------------------------------------

_HARMLESS_CONFIG: dict[str, Any] = {
    "num_keys": 8,
    "tokenizer": "google/gemma-2b",
    "tokenizer_path": "gs://bucket/tokenizer.model",
    "max_tokens": 4096,
    "num_tokens": "4096",
    "tokens_per_batch": 65536,
    "tokens_per_second": 1234.5,
    "token_count": 12,
    "total_tokens": 10**12,
    "max_new_tokens": "128",
    "key_dim": 64,
    "num_key_value_heads": 8,
    "key_size": 128,
    "qkv_keys": 3,
    "rng_key": 0,
    "prng_key": "threefry2x32",
    "random_key": "42",
    "dropout_key": "params",
    "primary_key": "id",
    "sort_key": "step",
    "partition_key": "date",
    "cache_key": "5d41402abc4b2a76b9719d911017c592",
    "image_key": "jpg",
    "label_key": "label",
    "feature_keys": ["input_ids", "labels"],
    "keys": ["input_ids", "attention_mask"],
    "key": "image",
    "monitor_key": "val_loss",
    "keyboard": "us",
    "monkey": "patch",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token": "<s>",
    "unk_token": "<unk>",
    "mask_token": "[MASK]",
    "sep_token": "[SEP]",
    "cls_token": "[CLS]",
    "pad_token_id": 0,
    "eos_token_id": 2,
    "token_type_ids": [0, 0, 1],
    "special_tokens": ["<pad>", "<s>", "</s>"],
    "additional_special_tokens": ["<image>", "<audio>"],
    "tokens": ["hello", "world"],
    "stop_tokens": ["\n\n", "END"],
    "num_special_tokens": 3,
    "image_token": "<image>",
    "tokens_seen": "1e12",
    "password_file": "/run/pw.txt",
    "secret_name": "wandb",
    "secret_path": "/run/credentials",
    "token_file": "/run/token",
    "credentials_file": "key.json",
    "auth_method": "oidc",
    "author": "me",
    "authority": "issuer.example",
    "pass_through": True,
    "passes": 3,
    "forward_pass": "eager",
    "num_passes": "2",
    "pass_rate": 0.97,
    "bypass": "off",
    "compass": "north",
    "passenger_count": 3,
    "patience": 5,
    "path": "/data/train",
    "pat": "*.tfrecord",
    "patch_size": 16,
    "pwconv": 3,
    "basic": "training",
    "session": "2026_11_22_05_36_43",
    "session_id": "2026_11_22_05_36_43",
    "user": "alice",
    "username": "alice",
    "email": "alice@example.com",
    "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGl1 alice",
    "commit": "48841d4e9d1f2c3b4a5968778695a4b3c2d1e0f9",
    "git_revision": "19abb28c0ffee0ddba11deadbeefcafe12345678",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "md5": "098f6bcd4621d373cade4e832627b4f6",
    "checksum": "crc32c:AAAAAA==",
    "etag": "CJjS8uKx3YkDEAE=",
    "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "run_id": "3b241101-e2bb-4255-8caf-4136c566a962",
    "uuid": "550e8400-e29b-41d4-a716-446655440000",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "seed": 1234567890123456,
    "image": "gcr.io/project/trainer:v1.2.3",
    "image_digest": "gcr.io/p/t@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "repo": "git@github.com:org/repo.git",
    "remote": "ssh://git@github.com/org/repo.git",
    "url": "http://host:8080/path?page=2&n=3",
    "coordinator": "http://10.0.0.1:8476",
    "dataset": "gs://bucket/c4/en/3.0.1",
    "requirement": "git+https://github.com/org/repo.git@v1.2.3",
    "mesh": "data:4,model:2",
    "logical_axis_rules": [("batch", "data"), ("vocab", "model")],
    "optimizer": ["adamw", "0.9"],
    "layers": {"attention": {"key": {"kernel": [4, 4]}, "query": {"kernel": [4, 4]}}},
    "encryption": "none",
    "secretary": "problem",
    "credential_type": "service_account",
    "authentication": "disabled",
    "authorized": True,
    "cookie_policy": None,
    "bearer_length": 12,
    "signature": "(x: int) -> int",
    "signing": False,
    "webhook_enabled": False,
    "hooks": ["log", "checkpoint"],
    "ssh_port": 22,
    "redis_host": "10.0.0.2",
    "wandb_project": "digits",
    "wandb_entity": "team",
    "wandb_mode": "offline",
    "hf_model": "meta-llama/Llama-3-8B",
    "openai_model": "gpt-x",
    "aws_region": "us-east-1",
    "google_project": "my-project-123456",
    "env": [{"name": "STEPS", "value": "5"}, {"name": "XLA_FLAGS", "value": "--xla_dump_to=/tmp/x"}],
    "num_experts_per_token": 2,
    "per_token_loss": True,
    "next_token": "the",
    "first_token_latency": 0.1,
    "token_embedding": "learned",
    "keypoints": 17,
    "keyframe": 30,
    "hotkey": "q",
    "turkey": "country",
    "access": "read",
    "api": "v1",
    "api_version": "v1alpha",
    "account": "team-a",
    "client": "grpc",
    "session_name": "warmup",
    "private": True,
    "cert_path": "/etc/ssl/cert.pem",
    "learning_rate": 3e-4,
    "schedule": "cosine",
    "steps": 10**6,
    "dtype": "bfloat16",
    "checkpoint": "gs://bucket/run-7/checkpoints/1200",
    "xla_flags": "--xla_gpu_enable_latency_hiding_scheduler=true --xla_tpu_scoped_vmem_limit_kib=98304",
    "description": "Trains a tokenizer on 3 passes over the data",
    "prompt": "Translate this sentence into French:",
}

# Neighbours of lists of credentials: words and ids of a text, counts, names of models and layers.
_HARMLESS_NEIGHBOURS: list[tuple[str, Any]] = [
    ("tokens", ["hello", "world", "layer_norm_12", "<s>", "step-12"]),
    ("tokens", ["image2text", "is", "a", "task"]),
    ("tokens", [101, 7592, 2088, 102]),
    ("tokens", ["101", "7592", "2088", "102"]),
    ("tokens", {"train": "4096", "eval": "512"}),
    ("tokens", {"bos": "<s>", "eos": "</s>", "unused": "extra_id_12"}),
    ("tokens", ["\u2581gpt2", "\u2581bf16", "\u2581covid19"]),
    ("tokens", "wikitext103"),
    ("tokens", 512),
    ("tokens", []),
    ("special_tokens", ["reserved4tokens", "unused12345"]),
    ("stop_tokens", {"a": "image2text"}),
    ("image_tokens", ["image2text"]),
    ("num_auth_tokens", 3),
    ("max_api_tokens", 4096),
    ("api_tokens_used", 512),
    ("access_tokens_per_second", 1.5),
    ("session_tokens", 4096),
    ("id_tokens", ["layer12norm"]),
    ("auth_tokens_file", "/run/tokens"),
    ("token_test", "wikitext103"),
    ("auth", "oauth2client"),
    ("pass", "inline2x"),
    ("key", "image2text"),
]

_HARMLESS_TEXTS = """
step 12: loss=0.34, tokens: 4096, task-parallel-with-16-way-sharding
python train.py --max_tokens 4096 --tokenizer gpt2 --key_dim=64
python train.py --num-keys=8 --token-type bpe --pad-token <pad>
connect to http://host:80/p failed
listening on https://localhost:6006/?run=7
cloned git@github.com:org/repo.git at 48841d4e9d1f2c3b4a5968778695a4b3c2d1e0f9
ssh -i key.pem user@10.0.0.1 hostname
gs://bucket/run-7/checkpoints/1200/params
ValueError: expected 3 tokens, got 4
KeyError: 'attention_mask'
TypeError: unsupported operand type(s) for +: 'int' and 'str'
authorization failed for alice@example.com: role roles/logging.logWriter is missing
permission denied: the secret wandb in namespace default does not exist
the password was not set; the token has expired
basic training of a bearer of news
skipped pass 2 of 3 over the data
sharding: {'batch': 'data', 'key': 'model'}
mesh_shape=(4, 2) axis_names=('data', 'model')
tokens/s: 123,456 per chip
num_tokens=4096 max_tokens=8192 tokens_per_batch=65536
special tokens: ["<pad>", "<s>"]
"special_tokens": {"pad_token": "<pad>", "eos_token": "</s>"}
{"name": "STEPS", "value": "5"}
- name: XLA_FLAGS\n  value: --xla_dump_to=out
[("learning_rate", "0.1"), ("steps", "100")]
checksum 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 matches
image gcr.io/p/t@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
run 3b241101-e2bb-4255-8caf-4136c566a962 started at 2026-11-22T05:36:43Z
File "train.py", line 88, in train_step
    loss, grads = jax.value_and_grad(loss_fn)(params, key)
    key, subkey = jax.random.split(key)
rng_key=Array([0, 42], dtype=uint32)
primary_key=id sort_key=step partition_key=date
password_file=pw.txt secret_name=wandb auth_method=oidc
--credentials-file key.json --token-file token.txt
kubectl get secret wandb -o name
docker run -e STEPS=5 -e XLA_FLAGS=--xla_dump_to=out image:1
curl -H 'accept: application/json' https://host/api
curl --max-time 5 -o out.json https://host/x?page=2
pip install git+https://github.com/org/repo.git@v1.2.3
postgres://db.host:5432/name
redis://10.0.0.2:6379/0
redis://cache@10.0.0.2:6379/0
Content-Type: application/json; charset=utf-8
retry-after: 30
x-request-id: 4bf92f3577b34da6a3ce929d0e0e4736
tokenizer: google/gemma-2b
token_type_ids: [0, 0, 1]
eos_token: </s>
monkey=1 keyboard=us
patience=5 patch_size=16 pat=*.tfrecord
author: alice
passes: 3
a key-value store
attention(query, key, value)
key: image
keys: [input_ids, labels]
--sort-key step --key-dim 64
-p 8080:80
-u nobody
sk-learn is not a key
the hf_hub cache is at hub/models--gpt2
use_pass_through=True
XLA_PYTHON_CLIENT_MEM_FRACTION=.75
JAX_PLATFORMS=cpu python train.py
2026-11-22 05:36:43,123 INFO trainer: step 100 took 0.123 s
worker-0.job.default.svc.cluster.local:8471
projects/my-project/logs/tpu.googleapis.com%2Fruntime_monitor
SG is not a region
npm run build
ratio 1//2
eyJust text
unknown tokens: threefry2x32, image2text
tokens: ["hello", "image2text", "layer_norm_12"]
the token threefry2x32 is not in the vocabulary
the secret wandb-key7f in namespace default does not exist
session 2026_11_22_05_36_43 has 4 hosts
"""


def harmless() -> Iterator[Sample]:
    """Yield every harmless value: configs, alone and in texts, and messages."""
    for key, value in [*_HARMLESS_CONFIG.items(), *_HARMLESS_NEIGHBOURS]:
        yield Sample("config", {"model": {key: value}}, str(value))
        if isinstance(value, (int, float, str)) and " " not in str(value):
            yield Sample("assignment", f"{key}={value}", str(value))
    for line in _HARMLESS_TEXTS.strip("\n").splitlines():
        yield Sample("text", line.replace("\\n", "\n"), line)
