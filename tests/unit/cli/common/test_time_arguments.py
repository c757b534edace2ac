"""Times as people write them."""

import pytest
import typer

from headrace.cli.common.time_arguments import parse_time_ms, show_time


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2026-05-01T12:00:00+00:00", 1_777_636_800_000),
        ("2026-05-01T12:00:00Z", 1_777_636_800_000),
        ("15m", 1_000_000 - 900_000),
        ("500ms", 1_000_000 - 500),
        ("0s", 1_000_000),
    ],
)
def test_times_are_read(text, milliseconds):
    assert parse_time_ms(text, now_ms=1_000_000) == milliseconds


@pytest.mark.parametrize("text", ["", "m", "yesterday", "-5m", "1.5h"])
def test_other_words_are_no_times(text):
    with pytest.raises(typer.BadParameter, match="is not a time"):
        parse_time_ms(text, now_ms=0)


def test_shown_times_read_back():
    assert parse_time_ms(show_time(1_700_000_000_123)) == 1_700_000_000_123
    assert show_time(-1) == "-"
    assert show_time(2**62) == str(2**62), "a producer may write any number"
