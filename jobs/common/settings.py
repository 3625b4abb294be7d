"""Settings of the jobs: those of the server's file that concern them, conf/streams.toml, and what
streams have of their own.

A flag of the run wins over what the stream has of its own, that over conf/streams.toml, that over
the environment, that over conf/bottomless.toml, that over the defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from engine.settings import (
    CompactSettings,
    MaintainSettings,
    ReadSettings,
    RetainSettings,
    Section,
    StreamDeclaration,
    inherited,
    load_declarations,
    overlay,
)

if TYPE_CHECKING:
    from jobs.common.tables import StreamTable

DEFAULT_CONFIG: Final = Path("conf/bottomless.toml")
STREAMS_FILE: Final = "streams.toml"
S = TypeVar("S", bound=Section)


class BadJobSettings(ValueError):
    """A setting is unknown or out of range; the message says which one and why."""


class JobSettings(BaseSettings):
    """What a job can be told for all streams."""

    model_config = SettingsConfigDict(
        env_prefix="BOTTOMLESS_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    root: Path = Path("data")
    token: SecretStr = SecretStr("")
    """For a server that asks for one: BOTTOMLESS_TOKEN, never a flag, which others could read."""
    read: ReadSettings = ReadSettings()
    compact: CompactSettings = CompactSettings()
    retain: RetainSettings = RetainSettings()
    maintain: MaintainSettings = MaintainSettings()

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


class StreamSettings:
    """Settings for a stream: the general ones, conf/streams.toml, its own, the run's flags."""

    def __init__(self, general: JobSettings, declared: dict[str, StreamDeclaration]) -> None:
        self.general = general
        self._declared = declared

    def compact(self, table: StreamTable, flags: dict[str, Any]) -> CompactSettings:
        """How to compact this stream."""
        return self._merge(self.general.compact, "compact", table, flags)

    def retain(self, table: StreamTable, flags: dict[str, Any]) -> RetainSettings:
        """What to keep of this stream."""
        return self._merge(self.general.retain, "retain", table, flags)

    def _merge(self, section: S, key: str, table: StreamTable, flags: dict[str, Any]) -> S:
        told = overlay(inherited(self._declared, table.name), table.overrides)
        values = section.model_dump() | getattr(told, key).model_dump(exclude_none=True)
        values |= {flag: value for flag, value in flags.items() if value is not None}
        return _validated(type(section), values, f"the {key} settings of {table.name}")


def load_settings(config: Path | None, root: Path | None) -> StreamSettings:
    """Read everything once; BadJobSettings where something is wrong."""
    if config is not None and not config.is_file():
        raise BadJobSettings(f"there is no file {config}")
    path = config or DEFAULT_CONFIG

    class Loaded(JobSettings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        flags: dict[str, Any] = {} if root is None else {"root": root}
        general = Loaded(**flags)
    except ValidationError as error:
        raise BadJobSettings(_explain(str(path), error)) from error
    except (OSError, ValueError) as error:
        raise BadJobSettings(f"{path}: {error}") from error
    try:
        return StreamSettings(general, load_declarations(path.with_name(STREAMS_FILE)))
    except ValueError as error:
        raise BadJobSettings(str(error)) from error


def _validated(model: type[S], values: object, where: str) -> S:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadJobSettings(_explain(where, error)) from error


def _explain(where: str, error: ValidationError) -> str:
    lines = [f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return "\n".join([f"{where}: these settings are not right:", *lines])
