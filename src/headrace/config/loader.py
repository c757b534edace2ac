"""Loads Settings from a config file, the environment and flags.

Precedence: flags, environment, file, defaults. Unknown, invalid and contradictory settings are rejected, and all of
them reported at once. Keys are defined in `config/keys/`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from headrace.config.definition import ConfigDef, render
from headrace.config.keys.node import SAME_MEANING, Alias, find_config, known_names
from headrace.config.settings import Settings
from headrace.config.settings_builder import build_settings
from headrace.config.values import SYNONYM_UNIT_MS
from headrace.model.errors import InvalidConfig

_MEMBERS, _REPLICAS = "cluster.initial_members", "default.replication.factor"
_IN_SYNC = "min.insync.replicas"
_MEMBERS_THAT_SURVIVE_A_LOSS = 3
ENVIRONMENT_PREFIX = "HEADRACE_"
CONFIG_FILE_VARIABLE = "HEADRACE_CONFIG"
# Variables with the prefix that are not node settings: the command line reads them.
_OTHER_VARIABLES = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        "HEADRACE_BOOTSTRAP",
        "HEADRACE_DEBUG",
        "HEADRACE_LOOP_LAG_FILE",
        "HEADRACE_PIPELINES",
        "HEADRACE_SPARK_PYTHON",
        "HEADRACE_SQL",
    }
)


class RawSetting(NamedTuple):
    """One setting as written: name, text, and source."""

    written: str
    text: str
    where: str


class ResolvedSetting(NamedTuple):
    """One setting after the lookup: its key and canonical text."""

    key: str
    text: str
    said: RawSetting


class SettingsError(InvalidConfig):
    """The settings are invalid; the message has all reasons."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class LoadedSettings(NamedTuple):
    settings: Settings
    heard: Mapping[str, ResolvedSetting]  # by key, the setting in effect and its source

    def remarks(self) -> list[str]:
        """Returns remarks about valid settings that have no effect."""
        if not self.heard:
            return []
        from headrace.config.ignored_keys import IGNORED_KEYS, INSTEAD

        idle = ((key, one.said) for key, one in self.heard.items() if key in IGNORED_KEYS)
        return [f"{said.where}{said.written} has no effect {INSTEAD.get(key, 'in this version')}" for key, said in idle]


def load_settings(
    file: str | None, environment: Mapping[str, str], flags: Iterable[tuple[str, str, str]] = ()
) -> LoadedSettings:
    """Loads settings from all sources. A flag is (key, value, how the user wrote it). Raises SettingsError."""
    problems: list[str] = []
    heard: dict[str, ResolvedSetting] = {}
    path = file or environment.get(CONFIG_FILE_VARIABLE)
    sources: tuple[tuple[Callable[[], list[RawSetting]], bool], ...] = (
        (lambda: _from_file(path), False),
        (lambda: _from_environment(environment, problems), False),
        # The last of repeated flags wins, so that scripts can append to a given command line.
        (lambda: [RawSetting(*flag) for flag in flags], True),
    )
    for read, last_wins in sources:
        try:
            said = read()
        except InvalidConfig as error:
            problems.append(str(error))
            continue
        _overrule(heard, _hear(said, problems, last_wins=last_wins))
    if problems:
        raise SettingsError(problems)
    _add_defaults_of_clusters(heard)
    return LoadedSettings(_build(heard), heard)


def _from_file(path: str | None) -> list[RawSetting]:
    if path is None:
        return []
    from headrace.config.yaml_document import read_yaml

    return [RawSetting(line.key, line.text, f"{path} line {line.line}: ") for line in read_yaml(path)]


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> list[RawSetting]:
    ours = [name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in _OTHER_VARIABLES]
    ours = [name for name in ours if not _is_service_link(name, environment[name])]
    if not ours:
        return []
    names = {environment_name(name): name for name in known_names()}
    said = []
    for variable in sorted(ours):
        key = names.get(variable)
        if key is not None:
            said.append(RawSetting(key, environment[variable], f"environment variable {variable}: "))
        else:
            problems.append(_unknown_variable(variable, names))
    return said


def _unknown_variable(variable: str, names: Iterable[str]) -> str:
    from headrace.config.definition import nearest

    close = nearest(variable, names)
    hint = f"did you mean {close}?" if close else "`headrace config docs` lists all keys"
    return f"environment variable {variable}: no such key; {hint}"


def environment_name(key: str) -> str:
    """Returns a key's environment variable, e.g. HEADRACE_NUM_PARTITIONS for num.partitions; also for aliases."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_").replace("-", "_")


def _is_service_link(variable: str, value: str) -> bool:
    """Returns whether Kubernetes set the variable.

    In every pod beside a service named headrace it sets HEADRACE_PORT=tcp://… and others.
    """
    if "_SERVICE_HOST" in variable or "_SERVICE_PORT" in variable:
        return True
    return "_PORT" in variable and ("_TCP" in variable or value.startswith(("tcp://", "udp://")))


def _hear(said: Iterable[RawSetting], problems: list[str], *, last_wins: bool) -> dict[str, ResolvedSetting]:
    """Looks up and parses the settings of one source. Appends errors and contradictions to `problems`."""
    heard: dict[str, ResolvedSetting] = {}
    for one in said:
        try:
            definition, alias = find_config(one.written)
            new = ResolvedSetting(definition.name, _canonical(definition, alias, one.text), one)
        except InvalidConfig as error:
            problems.append(f"{one.where}{error}")
            continue
        old = heard.get(new.key)
        repeated = last_wins and old is not None and old.said.written == one.written
        if old is not None and not repeated and old.text != new.text:
            problems.append(_contradiction(old.said, new.said))
        heard[new.key] = new
    for group in SAME_MEANING:
        problems.extend(_group_contradictions([heard[key] for key in group if key in heard]))
    return heard


def _canonical(definition: ConfigDef, alias: Alias, text: str) -> str:
    if alias.prefix:
        # api_addr is a single address without a listener name; a complete listener is accepted as it is.
        text = text if "://" in text else alias.prefix + text
    value = definition.parse(text)
    if alias.unit != 1:
        assert isinstance(value, int), "only whole numbers have a unit"
        value = value * alias.unit if value > 0 else value
    return render(value)


def _group_contradictions(group: list[ResolvedSetting]) -> Iterable[str]:
    for earlier, later in pairwise(group):
        if _in_ms(earlier) != _in_ms(later):
            yield _contradiction(earlier.said, later.said)


def _in_ms(heard: ResolvedSetting) -> int:
    value = int(heard.text)
    return value * SYNONYM_UNIT_MS.get(heard.key, 1) if value > 0 else value


def _contradiction(one: RawSetting, other: RawSetting) -> str:
    return (
        f"{other.where}{other.written}={other.text} contradicts {one.written}={one.text} "
        f"({one.where.rstrip(': ')}): both mean the same; keep one"
    )


def _overrule(heard: dict[str, ResolvedSetting], newer: Mapping[str, ResolvedSetting]) -> None:
    """Replaces settings by those of a source with higher precedence.

    Also where that source sets the same thing in another unit.
    """
    for group in SAME_MEANING:
        if any(key in newer for key in group):
            for key in group:
                heard.pop(key, None)
    heard.update(newer)


def _add_defaults_of_clusters(heard: dict[str, ResolvedSetting]) -> None:
    """Adds defaults for clusters of at least three members.

    Topics then survive the loss of one member, unless a setting prevents it.
    """
    members = heard.get(_MEMBERS)
    if members is None or len(members.text.split(",")) < _MEMBERS_THAT_SURVIVE_A_LOSS:
        return
    replicas = heard.get(_REPLICAS)
    if replicas is None:
        replicas = heard[_REPLICAS] = ResolvedSetting(_REPLICAS, "3", RawSetting(_REPLICAS, "3", f"{_MEMBERS}: "))
    if _IN_SYNC not in heard and int(replicas.text) >= _MEMBERS_THAT_SURVIVE_A_LOSS:
        heard[_IN_SYNC] = ResolvedSetting(_IN_SYNC, "2", RawSetting(_IN_SYNC, "2", f"{_MEMBERS}: "))


def _build(heard: Mapping[str, ResolvedSetting]) -> Settings:
    problems: list[str] = []

    def refuse(key: str, reason: str) -> None:
        one = heard.get(key)
        problems.append(f"{one.said.where if one else ''}{reason}")

    settings = build_settings({key: one.text for key, one in heard.items()}, refuse)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings
