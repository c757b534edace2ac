"""Reads a node's YAML file into flat keys with their line numbers.

Validates the shape of the document, not the keys. Only this module imports PyYAML, and it is imported only if a
config file is given: a start without one does not pay for it.
"""

from typing import Any, NamedTuple

import yaml

from headrace.model.errors import InvalidConfig

FILE_BYTES_MAX = 1024 * 1024  # a config file has a few hundred lines; a larger file is not one, but e.g. a log
DEPTH_MAX = 16  # keys have at most eight parts, so deeper nesting is an error or an attack
_YAML_TRUE = frozenset({"y", "yes", "on", "true"})  # YAML 1.1's values for true
_MEMBERS_KEY = "cluster.initial_members"
_MEMBER_FIELDS = ("node_id", "api_addr", "rpc_addr")
# libyaml's parser is ten times as fast; PyYAML may have been built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Line(NamedTuple):
    """One key with its value as text, and its line."""

    key: str
    text: str
    line: int


def read_yaml(path: str) -> list[Line]:
    """Returns the keys of the file in order; nested mappings become dotted keys."""
    document = _compose(path, _read_text(path))
    if document is None:
        return []
    lines: list[Line] = []
    _flatten(path, document, "", lines, depth=0)
    _refuse_repeated(path, lines)
    return lines


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(f"{path} is larger than {FILE_BYTES_MAX} bytes: this is not a config file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not UTF-8 text (byte {error.start})") from None


def _compose(path: str, text: str) -> yaml.Node | None:
    try:
        # References could expand a small file to any size, so they are rejected before anything is built from them.
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark is not None else 1
                raise InvalidConfig(f"{path} line {line}: references (*name) are not supported; repeat the value")
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path} line {mark.line + 1}" if mark is not None else path
        raise InvalidConfig(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidConfig(f"{path}: not valid YAML: {reason}") from None
    return node


def _flatten(path: str, node: yaml.Node, prefix: str, lines: list[Line], *, depth: int) -> None:
    if not isinstance(node, yaml.MappingNode):
        raise InvalidConfig(f"{_place(path, node)}: a config file is a list of `key: value` lines")
    if depth > DEPTH_MAX:
        raise InvalidConfig(f"{_place(path, node)}: keys are nested deeper than {DEPTH_MAX} levels")
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise InvalidConfig(f"{_place(path, key_node)}: a key is a plain word")
        key = f"{prefix}{key_node.value}"
        if isinstance(value_node, yaml.MappingNode):
            _flatten(path, value_node, f"{key}.", lines, depth=depth + 1)
        else:
            lines.append(Line(key, _text(path, key, value_node), key_node.start_mark.line + 1))


def _text(path: str, key: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.SequenceNode):
        return _scalar(path, key, node)
    return ",".join(_item(path, key, item) for item in node.value)


def _item(path: str, key: str, node: yaml.Node) -> str:
    text = _member(path, node) if isinstance(node, yaml.MappingNode) else _scalar(path, key, node)
    if "," in text:
        raise InvalidConfig(f"{_place(path, node)}: an item of {key} holds a comma; make it two items")
    return text


def _member(path: str, node: yaml.MappingNode) -> str:
    """Returns an entry of cluster.initial_members in the text form of flags and environment."""
    fields = {str(key.value): _scalar(path, _MEMBERS_KEY, value) for key, value in node.value}
    if sorted(fields) != sorted(_MEMBER_FIELDS):
        raise InvalidConfig(f"{_place(path, node)}: a member has {', '.join(_MEMBER_FIELDS)} and nothing else")
    return "@".join(fields[name] for name in _MEMBER_FIELDS)


def _scalar(path: str, key: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise InvalidConfig(f"{_place(path, node)}: {key} cannot be nested like this")
    text, kind = str(node.value), node.tag.rpartition(":")[2]
    if kind == "null":
        raise InvalidConfig(f"{_place(path, node)}: {key} has no value; give it one or remove the line")
    if kind == "bool":
        return "true" if text.lower() in _YAML_TRUE else "false"
    return text.replace("_", "") if kind == "int" else text


def _refuse_repeated(path: str, lines: list[Line]) -> None:
    first: dict[str, Line] = {}
    for line in lines:
        earlier = first.setdefault(line.key, line)
        if earlier is not line:
            raise InvalidConfig(f"{path} line {line.line}: {line.key} stands on line {earlier.line} already")


def _place(path: str, node: yaml.Node) -> str:
    return f"{path} line {node.start_mark.line + 1}"
