"""Regular expressions from untrusted clients, matched by RE2: its time is linear in the length of the input."""

from collections.abc import Callable
from functools import lru_cache

from headrace.core.group.errors import InvalidRegex

# Topic names have at most 249 characters; an expression that lists more than a few of them is a list.
REGEX_CHARS_MAX = 4096
# Memory limit of a compiled expression: bounds ((a{100}){100}){100} and the like.
REGEX_BYTES_MAX = 1024 * 1024
# If more expressions are in use at once, they are compiled repeatedly.
COMPILED_MAX = 256


@lru_cache(maxsize=COMPILED_MAX)
def matcher(regex: str) -> Callable[[str], bool]:
    """Returns a function that matches a whole name. Raises InvalidRegex for expressions that RE2 rejects."""
    # Most groups name their topics, and a broker should start without loading it.
    import re2  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if len(regex) > REGEX_CHARS_MAX:
        raise InvalidRegex(f"an expression of {len(regex)} characters; at most {REGEX_CHARS_MAX} are read")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = REGEX_BYTES_MAX
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        raise InvalidRegex(f"{regex!r} is not an expression of RE2: {_text(error)}") from None
    return lambda name: pattern.fullmatch(name) is not None


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
