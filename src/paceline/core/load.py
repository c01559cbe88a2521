"""From text to Config: defaults < TOML file < environment < flags, with errors that name file and key."""

import copy
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tomli_w
from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    Token,
    UnknownOptionError,
)
from cyclopts import UnusedCliTokensError as UnusedError

from paceline.core.config import DEFAULTS_BY_NAME, SETTINGS, Config
from paceline.core.errors import ConfigError, SettingError, flag, suggestion
from paceline.core.foreign_flags import foreign_flag_hint, meant_choice, nearest_flag
from paceline.core.setting_types import Interval
from paceline.core.start import START_SETTINGS, Start

PREFIX = "PACELINE_"
KNOWN = (*SETTINGS, *START_SETTINGS)
FORMER_NAMES = {"run": "name"}
"""Former names of settings that files and variables may still use."""
EXPECTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    Interval: '1 (epochs), "2 epochs" or "500 steps"',
    int | Literal["auto"]: "a whole number or auto",
    tuple[int, ...]: "whole numbers, such as 60,120",
}

Settings = Annotated[Config, Parameter(name="*")]
FindFiles = Callable[[Mapping[str, Argument]], Sequence[Path]]


class Layers:
    """Fills in settings without a flag from the environment, or else from the first file that has them.

    Cyclopts calls it between reading the flags and building the Config. It remembers where each value came from.
    """

    def __init__(self, environ: Mapping[str, str], find_files: FindFiles) -> None:
        self._environ = environ
        self._find_files = find_files
        self._places: dict[str, str] = {}

    def __call__(self, _app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Fill in the settings that no flag sets."""
        by_name = _by_setting(arguments)
        for key, value, place in self._values(by_name):
            argument = by_name.get(key)
            if argument is None or argument.tokens or argument.hint != _types()[key]:
                continue  # a flag with the same name but another type is no setting: `data pack --keep pixels`
            self._places[key] = place
            _fill(argument, value, place)

    def read(self) -> Config:
        """Return the settings without any flags."""
        found: dict[str, Any] = {}
        for key, value, place in self._values({}):
            if key in SETTINGS and key not in found:
                found[key], self._places[key] = value, place
        try:
            return Config(**{key: _converted(key, found[key], self._places[key]) for key in SETTINGS if key in found})
        except (CycloptsError, SettingError) as problem:
            raise self.explain(problem) from problem

    def explain(self, problem: CycloptsError | SettingError) -> ConfigError:
        """Return the error with the file or variable it comes from."""
        if isinstance(problem, SettingError):
            place = self._places.get(problem.setting)
            return SettingError(problem.setting, problem.problem, place=place, hint=problem.hint)
        if isinstance(problem, UnknownOptionError):
            return _unknown(problem)
        if not isinstance(problem, CoercionError) or problem.token is None or problem.argument is None:
            return ConfigError(_sentence(problem))
        setting = problem.argument.name.removeprefix("--").replace("-", "_")
        place = self._places.get(setting, flag(setting))
        meant = meant_choice(problem.token.value, _choices(problem.argument.hint))
        return ConfigError(
            f'{place}: expected {_expected(problem.argument.hint)}, got "{problem.token.value}"',
            hint=None if meant is None else f"use {meant}",
        )

    def _values(self, arguments: Mapping[str, Argument]) -> Iterator[tuple[str, Any, str]]:
        """Yield every setting of the environment and the files, with its source, in order of precedence."""
        yield from _placed(_from_environment(self._environ), lambda key: PREFIX + key.upper())
        for file in self._find_files(arguments):
            yield from _placed(_from_file(file), lambda key, file=file: f"{file}: {key}")


def load_config(*files: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read settings from files (earlier ones take precedence) and from an environment, which overrides them."""
    return Layers(environ or {}, lambda _arguments: files).read()


def load_written(path: Path) -> tuple[Config, frozenset[str]]:
    """Return the settings of a file that `write_config` wrote, and the names of those that are in it.

    It takes a tenth of the time of `load_config`, which reads the file if it was edited by hand or is an earlier one.
    """
    values = _from_file(path)
    if all(key in SETTINGS and _is_as_written(key, value) for key, value in values.items()):
        with suppress(SettingError, ValueError):
            return Config.from_dict(values), frozenset(values)
    return load_config(path), frozenset(map(current_name, values))


def write_config(config: Config, path: Path) -> None:
    """Write settings so that `load_config(path)` gives them back."""
    path.write_text(config_text(config), encoding="utf-8")


def config_text(config: Config) -> str:
    """Return settings as TOML."""
    return tomli_w.dumps(config.as_dict())


def current_name(key: str) -> str:
    """Return the current name of a setting, given its current or former name."""
    return FORMER_NAMES.get(key, key)


def _refuse_two_values(values: Mapping[str, Any], place: Callable[[str], str]) -> None:
    """Refuse a setting with one value under its name and another under its former name."""
    for former, name in FORMER_NAMES.items():
        if former in values and name in values and values[former] != values[name]:
            raise ConfigError(
                f'{place(name)} is "{values[name]}", but {place(former)} is "{values[former]}"',
                hint=f"{former} is the former name of {name}: keep one of them",
            )


def _placed(values: Mapping[str, Any], place: Callable[[str], str]) -> Iterator[tuple[str, Any, str]]:
    """Yield settings under their current names, each with its source."""
    _refuse_two_values(values, place)
    for key, value in values.items():
        yield current_name(key), value, place(key)


def _converted(setting: str, value: Any, place: str) -> Any:
    """Convert a file's `value` for a setting: typed values stay as they are, text is parsed like the flag's."""
    if type(value) in _ready(setting) or value in _ready(setting):
        return value
    argument = copy.copy(_arguments()[setting])
    argument.tokens = []
    _fill(argument, value, place)
    return argument.convert_and_validate()


def _fill(argument: Argument, value: Any, place: str) -> None:
    for index, text in enumerate(_texts(value)):
        argument.append(Token(keyword=place, value=text, source=place, index=index))


@cache
def _arguments() -> dict[str, Argument]:
    """Return the command-line parser of each setting; cached, because building it is slower than reading many files."""
    app = App()

    @app.default
    def settings(config: Settings = Config()) -> None:  # noqa: B008 - frozen
        del config

    return _by_setting(app.assemble_argument_collection())


def _by_setting(arguments: ArgumentCollection) -> dict[str, Argument]:
    return {argument.name.removeprefix("--").replace("-", "_"): argument for argument in arguments}


@cache
def _types() -> dict[str, Any]:
    """Return the type of every setting."""
    return get_type_hints(Config) | get_type_hints(Start)


def _is_as_written(setting: str, value: Any) -> bool:
    """Tell whether a value has the type that `Config.as_dict` gives it."""
    default = DEFAULTS_BY_NAME[setting]
    if isinstance(default, Path | Interval):
        return type(value) is str
    if isinstance(default, tuple):
        return type(value) is list and len({type(item) for item in value} | {type(item) for item in default}) <= 1
    return type(value) in _ready(setting) or value in _ready(setting)


@cache
def _ready(setting: str) -> tuple[Any, ...]:
    """Return the types, or the choices, whose TOML values need no parsing."""
    hint = _types()[setting]
    return () if get_origin(hint) is tuple else get_args(hint) or (hint,)


def _sentence(problem: CycloptsError) -> str:
    """Return the error for invalid command-line arguments."""
    command = " ".join(problem.command_chain or ["paceline"])
    for former, name in FORMER_NAMES.items():
        if isinstance(problem, RepeatArgumentError) and problem.token.keyword in {flag(former), flag(name)}:
            return f"{flag(name)} and {flag(former)} are the same setting: give one"
    if isinstance(problem, UnusedError) and problem.unused_tokens:
        return f'{command} does not take "{problem.unused_tokens[0]}"'
    if isinstance(problem, MissingArgumentError) and problem.argument is not None:
        name = problem.argument.name
        is_flag = problem.keyword is not None or not problem.argument.required
        return f"{problem.keyword or name} needs a value" if is_flag else f"{command} needs {name.strip('-').upper()}"
    return str(problem).strip()


def _unknown(problem: UnknownOptionError) -> ConfigError:
    """Return the error for an unknown flag: with ours, if it is one that other programs have."""
    name = problem.token.keyword or problem.token.value
    own = {own for argument in problem.argument_collection for own in argument.names}
    hint = foreign_flag_hint(name, own)
    near = nearest_flag(name, own) if hint is None else None
    return ConfigError(f"Unknown option: {name}.{'' if near is None else f' Did you mean {near}?'}", hint=hint)


def _expected(hint: Any) -> str:
    """Describe the values that a setting takes, from its type."""
    if hint in EXPECTED:
        return EXPECTED[hint]
    if choices := _choices(hint):
        return "one of " + ", ".join(choices)
    options = [option for option in get_args(hint) if option is not type(None)]
    return EXPECTED.get(hint) or EXPECTED.get(options[0] if options else hint, "another value")


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the choices that a setting takes, from its type; none if it takes other values."""
    found = next((each for each in (hint, *get_args(hint)) if get_origin(each) is Literal), None)
    return () if found is None else get_args(found)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings from PACELINE_… variables; a misspelt one is an error, not ignored."""
    values = {key.removeprefix(PREFIX).lower(): value for key, value in environ.items() if key.startswith(PREFIX)}
    for key in values:
        if current_name(key) not in KNOWN:
            known = [PREFIX + name.upper() for name in KNOWN]
            raise ConfigError(f"{PREFIX}{key.upper()} is not a setting", hint=_short_hint(PREFIX + key.upper(), known))
    return values


def _from_file(file: Path) -> dict[str, Any]:
    """Return the settings of a TOML file."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as cause:
        raise ConfigError(f"cannot read {file}: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:  # not only TOMLDecodeError: a year 0 is a ValueError
        other = file.suffix in {".yaml", ".yml", ".json"}
        hint = 'settings are TOML: a line such as epochs = 3 or model = "resnet20" for each' if other else None
        raise ConfigError(f"{file} is not valid TOML: {cause}", hint=hint) from cause
    for key, value in values.items():
        if current_name(key.replace("-", "_")) not in KNOWN:
            raise ConfigError(f"{file}: {key} is not a setting", hint=_short_hint(key, KNOWN))
        if isinstance(value, dict):
            raise ConfigError(f"{file}: [{key}] is a table, but settings are flat", hint=f"write {key} = …")
    settings = {key.replace("-", "_"): value for key, value in values.items()}
    for key, value in settings.items():
        hint = _types()[current_name(key)]
        if isinstance(value, list) and get_origin(hint) is not tuple:
            got = ", ".join(map(str, value))
            raise ConfigError(f'{file}: {key}: expected {_expected(hint)}, got "{got}"')
    return settings


def _short_hint(name: str, known: Iterable[str]) -> str:
    """Return the nearest name if there is one, instead of the long list of all."""
    return suggestion(name, known).split(" (known")[0]


def _texts(value: Any) -> list[str]:
    """Return a TOML value as the arguments a user would type after the flag."""
    items = (value or [""]) if isinstance(value, list) else [value]
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
