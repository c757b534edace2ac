"""Typed access to YAML nodes with line numbers, collecting all errors. PyYAML's loader drops the positions of values;
its node tree has them.
"""

import re
from collections.abc import Iterable, Mapping

import yaml
import yaml.reader

from headrace.config.definition import nearest
from headrace.pipeline.definition import FieldPath
from headrace.pipeline.errors import Problem

# A pipeline file is written by people. A value repeats what its aliases name, so the limit applies to the size with all
# aliases expanded.
FILE_CHARACTERS_MAX = 1024 * 1024
NODES_MAX = 20_000
DEPTH_MAX = 32
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def composed(text: str) -> tuple[yaml.Node | None, Problem | None]:
    """Returns the node tree of a file, or the problem that prevents it; neither for an empty file."""
    if len(text) > FILE_CHARACTERS_MAX:
        return None, Problem(0, f"has {len(text)} characters; a pipeline's file has {FILE_CHARACTERS_MAX} at most")
    try:
        deep = _too_deep(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader) if deep is None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        return None, Problem(line, f"is not YAML: {error.problem}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return None, Problem(line, f"is not YAML: it holds the character {ord(text[error.position]):#06x}")
    if deep is None and node is not None and not _is_bounded(node):
        return None, Problem(0, f"comes to more than {NODES_MAX} values, or {DEPTH_MAX} levels, with its aliases")
    return node, deep


def _too_deep(text: str) -> Problem | None:
    """Checks the nesting before the tree is built, because PyYAML builds it by recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                mark = event.start_mark
                return Problem(mark.line + 1 if mark is not None else 0, f"has more than {DEPTH_MAX} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _is_bounded(root: yaml.Node) -> bool:
    """Whether the tree with all aliases expanded is within the limit. A node that contains itself is not."""
    waiting, seen = [(root, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > NODES_MAX or depth > DEPTH_MAX:
            return False
        if isinstance(node, yaml.MappingNode):
            waiting += [(one, depth + 1) for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(one, depth + 1) for one in node.value]
    return True


class Section:
    """A mapping of the file. `finish` reports keys that were not requested before as unknown."""

    def __init__(self, node: yaml.Node, problems: list[Problem], what: str) -> None:
        self.line = _line(node)
        self._what = what
        self._problems = problems
        self._values: dict[str, yaml.Node] = {}
        self._key_lines: dict[str, int] = {}
        self._asked: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            self.problem(f"{what} must be a mapping of names to values", node)
            return
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problem(f"a name in {what} must be text, not a list or a mapping", key)
                continue
            if key.value in self._values:
                self.problem(f"{key.value} appears twice in {what}", key)
            self._values[key.value] = value
            self._key_lines[key.value] = _line(key)

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._values

    def names(self) -> list[str]:
        """Returns all keys, for sections whose keys are chosen by the user."""
        self._asked.update(self._values)
        return list(self._values)

    def line_of(self, key: str) -> int:
        return self._key_lines.get(key, self.line)

    def problem(self, text: str, node: yaml.Node | None = None, *, key: str | None = None) -> None:
        line = _line(node) if node is not None else self.line_of(key) if key is not None else self.line
        self._problems.append(Problem(line, text))

    def section(self, key: str, what: str) -> "Section | None":
        node = self._node(key)
        return Section(node, self._problems, what) if node is not None else None

    def text(self, key: str, default: str | None = None) -> str | None:
        node = self._node(key)
        if node is None:
            return default
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            self.problem(f"{key} must be text", node)
            return default
        return str(node.value)

    def required_text(self, key: str) -> str:
        if key not in self:
            self.problem(f"{self._what} needs {key}")
            return ""
        return self.text(key) or ""

    def whole_number(self, key: str, default: int, *, at_least: int) -> int:
        text = self.text(key)
        if text is None:
            return default
        if not _WHOLE_NUMBER.fullmatch(text.strip()) or int(text) < at_least:
            self.problem(f"{key} must be a whole number of at least {at_least}, not {text!r}", key=key)
            return default
        return int(text)

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns a list of strings; a single value is a list of one."""
        node = self._node(key)
        if node is None:
            return ()
        if isinstance(node, yaml.ScalarNode):
            return (str(node.value),)
        if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            return tuple(str(item.value) for item in node.value)
        self.problem(f"{key} must be a name or a list of names", node)
        return ()

    def mapping(self, key: str) -> Mapping[str, str]:
        """Returns names and strings without checking them: options for other software."""
        section = self.section(key, key)
        if section is None:
            return {}
        values = {name: section.text(name) for name in section.names()}
        return {name: _as_option(value) for name, value in values.items() if value is not None}

    def choice(self, key: str, words: Iterable[str], default: str | None) -> str | None:
        text = self.text(key, default)
        known = [str(word) for word in words]
        if text is None or text in known:
            return text
        self.problem(f"{key} must be one of {', '.join(known)}, not {text!r}{_did_you_mean(text, known)}", key=key)
        return default

    def finish(self) -> None:
        """Reports keys that were not requested."""
        for key in self._values:
            if key not in self._asked:
                hint = _did_you_mean(key, self._asked)
                self.problem(f"{self._what} has no key {key!r}{hint}", key=key)

    def _node(self, key: str) -> yaml.Node | None:
        self._asked.add(key)
        return self._values.get(key)


def lines_of(node: yaml.Node, place: FieldPath = ()) -> dict[FieldPath, int]:
    """Returns the line at which each text of a file begins, and for other nodes the line of the key."""
    lines: dict[FieldPath, int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            inside = (*place, str(key.value))
            lines[inside] = _text_line(value) if isinstance(value, yaml.ScalarNode) else _line(key)
            lines |= lines_of(value, inside)
    return lines


def _text_line(node: yaml.ScalarNode) -> int:
    """Returns the first line of a scalar's text; for a block scalar the line after the bar."""
    return _line(node) + (1 if node.style in ("|", ">") else 0)


def _as_option(text: str) -> str:
    """Converts a YAML boolean to Spark's true and false; YAML's users also write yes and no."""
    known = _BOOLEANS.get(text.lower())
    return text if known is None else str(known).lower()


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = nearest(name, sorted(known))
    return f"; did you mean {close!r}?" if close else f"; known keys: {', '.join(sorted(known))}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
