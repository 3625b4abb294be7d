"""Settings of the whole server: flags over environment over conf/bottomless.toml over defaults.

The only reader of the environment. Loaded once, frozen, passed down.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from engine.settings import (
    KIB,
    MIB,
    CommitSettings,
    CompactSettings,
    EngineSettings,
    LimitSettings,
    MaintainSettings,
    ReadSettings,
    RetainSettings,
    Section,
    StreamDeclaration,
    WalSettings,
    load_declarations,
)

DEFAULT_CONFIG: Final = Path("conf/bottomless.toml")
STREAMS_FILE: Final = "streams.toml"
_WAL_GROUP_HINT: Final = "limits.body_bytes must fit into wal.group_bytes_max"
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,*?#@]+")
# Whoever guesses is answered as fast as anybody else, so a secret must be long.
_SECRET_CHARACTERS_MIN: Final = 16


class HttpSettings(Section):
    """The front: address, time-outs, what one request may cost."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines can only reach a server that listens on 0.0.0.0."""
    port: int = Field(default=4437, ge=0, le=65535)
    """Port to listen on."""
    tls_cert: str = ""
    """PEM file with the certificate and its chain: the server then speaks HTTPS only."""
    tls_key: str = ""
    """PEM file with the certificate's private key."""
    cors_origins: tuple[str, ...] = ("*",)
    """Web pages of these origins may use the server. * is every page; cookies are never used."""
    public_url: str = Field(default="", max_length=512)
    """Base of the URLs in Location headers behind a proxy, e.g. https://streams.example.com."""
    bare_records: bool = False
    """Serve the records dialect at /{name} too: every path that is not the server's own."""
    long_poll_timeout_ms: int = Field(default=30_000, ge=10, le=600_000)
    """A long-poll without news is answered after this time."""
    sse_keep_alive_ms: int = Field(default=15_000, ge=100, le=600_000)
    """An SSE reader without news gets a control event this often."""
    sse_lifetime_ms: int = Field(default=60_000, ge=1000, le=86_400_000)
    """An SSE response ends after about this time; the client goes on with a new one."""
    header_bytes: int = Field(default=32 * KIB, ge=1 * KIB, le=1 * MIB)
    """Most bytes of a request's line and headers (431 above it)."""
    header_count: int = Field(default=100, ge=8, le=10_000)
    """Most headers of a request (431 above it)."""
    header_timeout_ms: int = Field(default=10_000, ge=100, le=600_000)
    """A request's headers must arrive within this time (408 after it)."""
    body_timeout_ms: int = Field(default=20_000, ge=100, le=600_000)
    """Time for a body to arrive, plus a second for every 16 KiB of it (408 after it)."""
    write_timeout_ms: int = Field(default=30_000, ge=1000, le=600_000)
    """A reader that takes nothing for this long is cut off."""
    keep_alive_ms: int = Field(default=75_000, ge=1000, le=3_600_000)
    """An idle connection is closed after this time."""
    connections: int = Field(default=20_000, ge=1)
    """Most open connections; more are refused (503)."""
    drain_timeout_ms: int = Field(default=10_000, ge=0, le=600_000)
    """After SIGTERM, requests under way get this long to end."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        if "*" in origins and len(origins) > 1:
            raise ValueError("* stands for every origin; name none beside it")
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin like https://app.example.com")
        return origins

    @model_validator(mode="after")
    def _check_tls(self) -> HttpSettings:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together")
        return self


class JwtSettings(Section):
    """Signed tokens of an identity provider. Needs the extra jwt (PyJWT)."""

    jwks_file: str = ""
    """JSON Web Key Set with the provider's public keys; empty: no JWT is accepted."""
    issuer: str = ""
    """What iss must be."""
    audience: str = ""
    """What aud must be or hold."""
    algorithms: tuple[
        Literal[
            "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
        ],
        ...,
    ] = ("RS256", "ES256", "EdDSA")
    """Signatures that count. There is no way to allow none or a shared secret (HS256 …)."""
    leeway_seconds: int = Field(default=30, ge=0, le=300)
    """How far the provider's clock may be off."""
    scope_claim: str = Field(default="scope", min_length=1, max_length=256)
    """The claim with the scopes: a list, or one string with spaces in between."""
    rate: int = Field(default=0, ge=0, le=1_000_000)
    """Requests per second of one JWT (429 above it); 0 for no bound."""

    @model_validator(mode="after")
    def _check_complete(self) -> JwtSettings:
        if self.jwks_file and not (self.issuer and self.audience and self.algorithms):
            raise ValueError("jwks_file needs issuer, audience and algorithms")
        return self


class AuthSettings(Section):
    """Who may do what. See docs/security.md."""

    mode: Literal["off", "on"] = "off"
    """on: every request needs a token. off: everybody may do everything, on loopback only."""
    header_secret: SecretStr = SecretStr("")
    """A request whose auth header is this has all rights. The environment variable AUTH_HEADER sets
    it too, and then mode is on."""
    failures_per_minute: int = Field(default=20, ge=1, le=100_000)
    """After so many wrong tokens from one address, further wrong ones get 429."""
    jwt: JwtSettings = JwtSettings()
    """Signed tokens of an identity provider."""

    @model_validator(mode="after")
    def _check_secret(self) -> AuthSettings:
        secret = self.header_secret.get_secret_value()
        if secret and (len(secret) < _SECRET_CHARACTERS_MIN or secret != secret.strip()):
            raise ValueError(
                f"header_secret (AUTH_HEADER) must have at least {_SECRET_CHARACTERS_MIN}"
                " characters and no space around them"
            )
        if secret and self.mode == "off":
            raise ValueError("header_secret is set but mode is off: nobody would be asked for it")
        return self


class LoggingSettings(Section):
    """What the server writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["auto", "json", "text"] = "auto"
    """One JSON object per line, or text for people; auto means text on a terminal."""


class Settings(BaseSettings):
    """Everything a server can be told."""

    model_config = SettingsConfigDict(
        env_prefix="BOTTOMLESS_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        toml_file=DEFAULT_CONFIG,
    )

    root: Path = Path("data")
    """The data folder: one Delta table per stream, and the write-ahead log in _wal."""
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    wal: WalSettings = WalSettings()
    commit: CommitSettings = CommitSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    compact: CompactSettings = CompactSettings()
    retain: RetainSettings = RetainSettings()
    maintain: MaintainSettings = MaintainSettings()
    logging: LoggingSettings = LoggingSettings()
    _declared: dict[str, StreamDeclaration] = PrivateAttr(default_factory=dict)

    @property
    def declared(self) -> dict[str, StreamDeclaration]:
        """What conf/streams.toml says, by name or pattern of streams."""
        return self._declared

    @model_validator(mode="after")
    def _check_relations(self) -> Settings:
        if self.limits.body_bytes > self.wal.group_bytes_max:
            raise ValueError(_WAL_GROUP_HINT)
        if self.limits.body_bytes > self.limits.tail_bytes:
            raise ValueError("limits.body_bytes must fit into limits.tail_bytes")
        if self.wal.bytes_max < 2 * self.wal.segment_bytes + self.wal.group_bytes_max:
            raise ValueError(
                "wal.bytes_max must hold two segments and a group:"
                " at least 2 * wal.segment_bytes + wal.group_bytes_max"
            )
        return self

    @property
    def engine(self) -> EngineSettings:
        """The part the engine takes."""
        return EngineSettings(
            wal=self.wal,
            commit=self.commit,
            read=self.read,
            limits=self.limits,
            streams=self._declared,
        )

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        inherited = InitSettingsSource(settings_cls, _inherited_settings())
        return init_settings, env_settings, inherited, TomlConfigSettingsSource(settings_cls)


def _inherited_settings() -> dict[str, Any]:
    """DurableStreams asks for its AUTH_HEADER as soon as there is one, and so do we."""
    secret = os.environ.get("AUTH_HEADER")
    return {"auth": {"mode": "on", "header_secret": secret}} if secret else {}


class BadSettings(ValueError):
    """A setting is unknown or out of range; the message says which one and why."""


def load_settings(flags: dict[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Read the settings; ``flags`` are nested like the settings themselves."""
    if config is not None and not config.is_file():
        raise BadSettings(f"there is no file {config}")

    path = config or DEFAULT_CONFIG

    class Loaded(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        declared = load_declarations(path.with_name(STREAMS_FILE))
    except ValueError as error:
        raise BadSettings(str(error)) from error
    try:
        settings = Loaded(**(flags or {}))
        settings._declared = declared
        return settings
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}"
            for item in error.errors()
        ]
        raise BadSettings("\n".join(["these settings are not right:", *lines])) from error
    except (OSError, ValueError) as error:
        raise BadSettings(f"{path}: {error}") from error
