"""Whatever a pipeline's file holds, it is a pipeline or is refused with its line."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import InvalidPipelineError
from headrace.pipeline.parser import parse_pipeline
from headrace.pipeline.yaml_nodes import DEPTH_MAX, FILE_CHARACTERS_MAX

TOTALS = """\
pipeline: totals
sources:
  orders:
    topic: [orders, more]
    format: json
    schema: id bigint, at timestamp
    watermark: at 10 seconds
    reject: {negative: id < 0}
    options: {a: yes}
sql: select * from orders
sink: {topic: totals, key: id}
trigger: 1 second
stalled_after_triggers: 30
"""
LAUGHS = "a0: &a0 {x: y}\n" + "".join(
    f"a{level}: &a{level} {{{', '.join(f'k{one}: *a{level - 1}' for one in range(10))}}}\n" for level in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("pipeline: p\nsql: a\x07b\n", 2, "the character 0x0007"),
        ("pipeline: p\n\x00", 2, "the character 0x0000"),
        ("pipeline: p\nsql: \ud800\n", 2, "the character 0xd800"),
        ("pipeline: p\n? [a, b]\n: c\n", 2, "must be text, not a list"),
        ("pipeline: p\nsources:\n  ? {a: b}\n  : {topic: t}\n", 3, "must be text, not a list"),
        ("pipeline: p\nsources: &s {x: *s}\n", 0, "with its aliases"),
        (LAUGHS, 0, "with its aliases"),
        ("a: " + "[" * 5000, 1, f"more than {DEPTH_MAX} levels"),
        ("#" * (FILE_CHARACTERS_MAX + 1), 0, "characters; a pipeline's file has"),
        (TOTALS.replace("30", "³"), 13, "a whole number"),
        (TOTALS.replace("30", "9" * 5000), 13, "a whole number"),
        (TOTALS.replace("1 second", "9" * 5000 + " seconds"), 12, "trigger must be an interval"),
    ],
)
def test_file_beyond_limits_is_refused_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(InvalidPipelineError) as refused:
        parse_pipeline(text)
    assert any(one.line == line and said in one.text for one in refused.value.problems), str(refused.value)


def test_alias_within_limits_is_read() -> None:
    text = TOTALS.replace("orders:\n", "orders: &o\n", 1).replace("sql:", "  again: *o\nsql:")
    assert [one.topics for one in parse_pipeline(text).sources] == [("orders", "more")] * 2


PIECES = [
    *"[]{}&*!|>'\"%@`:?-,# \n\t",
    "\x00",
    "\x85",
    "\ufeff",
    "\ud800",
    "&a",
    "*a",
    "? ",
    "<<: ",
    "---\n",
    "30",
    "³",
    "~",
]


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_changed_file_is_read_or_refused(dice: random.Random, changes: int) -> None:
    text = TOTALS
    for _ in range(changes):
        at = dice.randrange(len(text))
        text = text[:at] + dice.choice(PIECES) + text[at + dice.choice((0, 0, 1, 8)) :]
    with suppress(InvalidPipelineError):
        parse_pipeline(text)
