"""What a key accepts, what it says when it refuses, and that its canonical text reads back as the same value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.definition import (
    BOOLEAN,
    DOUBLE,
    DOUBLE_MAX,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    PASSWORD,
    SHORT,
    STRING,
    ConfigDef,
    OneOf,
    Range,
    ReplicaPairs,
    nearest,
    render,
)
from headrace.model.errors import ErrorCode, InvalidConfig

COUNT = ConfigDef("count", INT, 1, "", Range(0, 10, also=-1))
CODEC = ConfigDef("codec", STRING, "lz4", "", OneOf(("lz4", "zstd", "gzip")))
POLICY = ConfigDef("policy", LIST, ("delete",), "", OneOf(("compact", "delete")))
REPLICAS = ConfigDef("replicas", LIST, (), "", ReplicaPairs())
SECRET = ConfigDef("secret", PASSWORD, None, "", OneOf(("a",)))


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False), (" True ", True)])
def test_booleans_are_true_or_false_in_any_case(text, value):
    assert ConfigDef("on", BOOLEAN, False, "").parse(text) is value


@pytest.mark.parametrize("text", ["", "yes", "1", "truee"])
def test_other_words_are_no_booleans(text):
    with pytest.raises(InvalidConfig, match="true or false"):
        ConfigDef("on", BOOLEAN, False, "").parse(text)


@pytest.mark.parametrize("text", ["", "-", "1.0", "1_000", "0x10", "ten", "١", "9" * 5000, "--1"])
def test_only_plain_digits_are_whole_numbers(text):
    with pytest.raises(InvalidConfig, match="whole number"):
        ConfigDef("n", LONG, 0, "").parse(text)


@pytest.mark.parametrize(("type_", "bits"), [(SHORT, 16), (INT, 32), (LONG, 64)])
def test_whole_numbers_stay_within_their_type(type_, bits):
    definition = ConfigDef("n", type_, 0, "")
    highest, lowest = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    assert definition.parse(str(highest)) == highest
    assert definition.parse(str(lowest)) == lowest
    for outside in (highest + 1, lowest - 1):
        with pytest.raises(InvalidConfig, match="whole number from"):
            definition.parse(str(outside))


def test_a_range_accepts_its_ends_and_the_number_beside_it():
    assert [COUNT.parse(text) for text in ("0", "10", "-1")] == [0, 10, -1]
    for text in ("11", "-2"):
        with pytest.raises(InvalidConfig, match="from 0 to 10, or -1"):
            COUNT.parse(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", ""])
def test_fractions_are_finite_numbers(text):
    with pytest.raises(InvalidConfig):
        ConfigDef("ratio", DOUBLE, 0.5, "").parse(text)


def test_a_wrong_word_is_answered_with_the_nearest_right_one():
    with pytest.raises(InvalidConfig, match="one of lz4, zstd, gzip") as refused:
        CODEC.parse("zsdt")
    assert "did you mean zstd?" in str(refused.value)
    assert refused.value.code == ErrorCode.INVALID_CONFIG


def test_lists_are_trimmed_and_say_nothing_twice():
    assert POLICY.parse(" compact , delete,compact") == ("compact", "delete")
    assert POLICY.parse("") == ()
    with pytest.raises(InvalidConfig, match="did you mean compact"):
        POLICY.parse("delete,compct")


@pytest.mark.parametrize("text", ["*", "", "0:1", "0:1,12:3"])
def test_replica_lists_are_pairs_or_a_star(text):
    assert render(REPLICAS.parse(text)) == text


@pytest.mark.parametrize("text", ["1", "a:b", "1:", "*,1:2"])
def test_other_replica_lists_are_refused(text):
    with pytest.raises(InvalidConfig, match="partition:broker"):
        REPLICAS.parse(text)


def test_a_refused_password_is_not_repeated():
    with pytest.raises(InvalidConfig) as refused:
        SECRET.parse("hunter2")
    assert "hunter2" not in str(refused.value)


def test_the_largest_double_is_written_as_java_writes_it():
    assert render(DOUBLE_MAX) == "1.7976931348623157E308"
    assert ConfigDef("rate", DOUBLE, 0.0, "").parse("1.7976931348623157E308") == DOUBLE_MAX


VALUES = {
    BOOLEAN: st.booleans(),
    INT: st.integers(-(2**31), 2**31 - 1),
    LONG: st.integers(-LONG_MAX - 1, LONG_MAX),
    DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    LIST: st.lists(st.from_regex(r"[a-z.:*]+", fullmatch=True), unique=True).map(tuple),
    STRING: st.text().map(str.strip),
}


@given(st.data(), st.sampled_from(list(VALUES)))
def test_the_canonical_text_of_a_value_reads_back_as_that_value(data, type_):
    value = data.draw(VALUES[type_])
    definition = ConfigDef("key", type_, None, "")
    assert definition.parse(render(value)) == value
    assert render(definition.parse(render(value))) == render(value)


@given(st.text(max_size=30), st.sampled_from(list(VALUES)))
def test_no_text_does_anything_but_parse_or_be_refused(text, type_):
    try:
        value = ConfigDef("key", type_, None, "").parse(text)
    except InvalidConfig:
        return
    assert render(value) is not None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("retention_ms", "retention.ms"),
        ("Retention.MS", "retention.ms"),
        ("retension.ms", "retention.ms"),
        ("segmentbytes", "segment.bytes"),
        ("zzz", None),
    ],
)
def test_nearest_forgives_spelling_but_does_not_guess_wildly(written, meant):
    assert nearest(written, ["retention.ms", "retention.bytes", "segment.bytes"]) == meant
