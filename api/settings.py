"""Settings of the whole server: flags over environment over conf/bottomless.toml over defaults.

The only reader of the environment. Loaded once, frozen, passed down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
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
    WalSettings,
)

DEFAULT_CONFIG: Final = Path("conf/bottomless.toml")
_WAL_GROUP_HINT: Final = "limits.body_bytes must fit into wal.group_bytes_max"


class HttpSettings(Section):
    """The front: address, time-outs, what one request may cost."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines can only reach a server that listens on 0.0.0.0."""
    port: int = Field(default=4437, ge=0, le=65535)
    """Port to listen on."""
    public_url: str = Field(default="", max_length=512)
    """Base of the URLs in Location headers behind a proxy, e.g. https://streams.example.com."""
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
    wal: WalSettings = WalSettings()
    commit: CommitSettings = CommitSettings()
    read: ReadSettings = ReadSettings()
    limits: LimitSettings = LimitSettings()
    compact: CompactSettings = CompactSettings()
    retain: RetainSettings = RetainSettings()
    maintain: MaintainSettings = MaintainSettings()
    logging: LoggingSettings = LoggingSettings()

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
        return EngineSettings(wal=self.wal, commit=self.commit, read=self.read, limits=self.limits)

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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


class BadSettings(ValueError):
    """A setting is unknown or out of range; the message says which one and why."""


def load_settings(flags: dict[str, Any] | None = None, config: Path | None = None) -> Settings:
    """Read the settings; ``flags`` are nested like the settings themselves."""
    if config is not None and not config.is_file():
        raise BadSettings(f"there is no file {config}")

    class Loaded(Settings):
        model_config = SettingsConfigDict(toml_file=config or DEFAULT_CONFIG)

    try:
        return Loaded(**(flags or {}))
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}"
            for item in error.errors()
        ]
        raise BadSettings("\n".join(["these settings are not right:", *lines])) from error
    except (OSError, ValueError) as error:
        raise BadSettings(f"{config or DEFAULT_CONFIG}: {error}") from error
