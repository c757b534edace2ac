"""`String.hashCode` as Java's own documentation defines it: s[0]·31^(n-1) + … + s[n-1], in 32 bits, over UTF-16 units.

The numbers were computed by a JVM; clients and brokers everywhere find their coordinator by them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.coordinator import java_string_hash, partition_for

INT_MIN = -(2**31)

FROM_JAVA = {
    "": 0,
    "a": 97,
    "hello": 99162322,
    "my-group": -1906497762,
    "console-consumer-4711": 836489572,
    "the quick brown fox": 1302335171,
    "polygenelubricants": INT_MIN,  # the best known of the names that have no absolute value
    "GydZG_": INT_MIN,
    "grüße": 98768023,
    "日本語": 25921943,
    "🦀": 1772802,  # two units, a surrogate pair
    "a🦀z": 57846711,
    "\ud83e": 55358,  # half a pair is a unit like any other
    "\udd80\ud83e": 1813182,
    "\uffff": 65535,
    "a\0b": 93315,
}


@pytest.mark.parametrize(("name", "value"), FROM_JAVA.items(), ids=map(ascii, FROM_JAVA))
def test_rule_32_the_hash_is_javas(name: str, value: int) -> None:
    assert java_string_hash(name) == value


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("my-group", 12),  # of a negative hash
        ("console-consumer-4711", 22),
        ("polygenelubricants", 0),
        ("GydZG_", 0),
    ],
)
def test_rule_32_the_coordinators_partition_is_the_absolute_hash_modulo_the_count(name: str, partition: int) -> None:
    """The lowest number is its own negative in Java: there it counts as 0, not as 2^31, which would be 48 of 50."""
    assert partition_for(name, 50) == partition


@given(st.text(st.characters(), max_size=40), st.integers(1, 1_000))
def test_rule_32_every_name_has_a_partition(name: str, partitions: int) -> None:
    """By the definition's own sum, with numbers of any size, cut to 32 bits at the end."""
    units = name.encode("utf-16-be", "surrogatepass")
    digits = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    total = sum(digit * 31 ** (len(digits) - 1 - place) for place, digit in enumerate(digits))
    signed = (total + 2**31) % 2**32 - 2**31
    assert java_string_hash(name) == signed
    assert partition_for(name, partitions) == (0 if signed == INT_MIN else abs(signed)) % partitions
