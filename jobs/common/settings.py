"""Settings of the jobs: those of the server's file that concern them, and conf/streams.toml.

A flag of the run wins over conf/streams.toml, that over the environment, that over
conf/bottomless.toml, that over the defaults.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from typing_extensions import override

from engine.settings import CompactSettings, MaintainSettings, ReadSettings, RetainSettings, Section

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


class Overrides(Section):
    """One table of conf/streams.toml."""

    compact: dict[str, Any] = Field(default_factory=dict)
    retain: dict[str, Any] = Field(default_factory=dict)


class StreamSettings:
    """Settings for a stream by its name: the general ones, conf/streams.toml, the run's flags."""

    def __init__(self, general: JobSettings, patterns: dict[str, Overrides]) -> None:
        self.general = general
        self._patterns = patterns

    def compact(self, name: str, flags: dict[str, Any]) -> CompactSettings:
        """How to compact this stream."""
        return self._merge(self.general.compact, "compact", name, flags)

    def retain(self, name: str, flags: dict[str, Any]) -> RetainSettings:
        """What to keep of this stream."""
        return self._merge(self.general.retain, "retain", name, flags)

    def _merge(self, section: S, key: str, name: str, flags: dict[str, Any]) -> S:
        values = section.model_dump()
        for pattern, overrides in self._patterns.items():
            if fnmatchcase(name, pattern):
                values |= getattr(overrides, key)
        values |= {flag: value for flag, value in flags.items() if value is not None}
        return _validated(type(section), values, f"the {key} settings of {name}")


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
    return StreamSettings(general, _load_streams(path.with_name(STREAMS_FILE)))


def _load_streams(path: Path) -> dict[str, Overrides]:
    if not path.is_file():
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadJobSettings(f"{path}: {error}") from error
    found = {}
    for name, table in tables.items():
        overrides = _validated(Overrides, table, f"{path}, {name}")
        # A typing error must not wait for the night when a stream of that name comes along.
        _validated(CompactSettings, overrides.compact, f"{path}, {name}.compact")
        _validated(RetainSettings, overrides.retain, f"{path}, {name}.retain")
        found[name] = overrides
    return found


def _validated(model: type[S], values: object, where: str) -> S:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadJobSettings(_explain(where, error)) from error


def _explain(where: str, error: ValidationError) -> str:
    lines = [f"  {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return "\n".join([f"{where}: these settings are not right:", *lines])
