"""Which names a topic may have."""

import pytest

from headrace.core.topic import TOPIC_NAME_CHARS_MAX, check_topic_name, unify_collision_chars
from headrace.model.errors import InvalidTopic


@pytest.mark.parametrize("name", ["orders", "a", "A-Z_0.9", "...", "__consumer_offsets", "x" * TOPIC_NAME_CHARS_MAX])
def test_ordinary_names_are_allowed(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "directory"),
        ("..", "directory"),
        ("x" * (TOPIC_NAME_CHARS_MAX + 1), "250 characters"),
        ("a/b", "ASCII alphanumerics"),
        ("a b", "ASCII alphanumerics"),
        ("grün", "ASCII alphanumerics"),
        ("a\0", "ASCII alphanumerics"),
        ("../../etc/passwd", "ASCII alphanumerics"),
    ],
)
def test_names_that_could_not_be_a_folder_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopic, match=reason):
        check_topic_name(name)


def test_dots_and_underscores_are_one_to_a_metric() -> None:
    assert unify_collision_chars("a.b_c") == unify_collision_chars("a_b.c")
    assert unify_collision_chars("a-b") != unify_collision_chars("a_b")
