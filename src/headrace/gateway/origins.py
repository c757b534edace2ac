"""Which web pages may send: none but our own.

A browser lets any page post plain text to localhost, without asking; it only hides the answer. So a request that
changes something and says that it comes from a page is refused unless the page was served from this very address.
Programs other than browsers send no Origin and never notice.
"""

from urllib.parse import urlsplit

from headrace.gateway.bodies import Scope, header
from headrace.gateway.problems import Problem

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def check_origin(scope: Scope) -> None:
    origin = header(scope, b"origin")
    site = header(scope, b"sec-fetch-site")
    if origin is None and site in (None, b"none", b"same-origin"):
        return
    if origin is not None and _is_ours(origin.decode("latin-1"), scope):
        return
    raise Problem(403, "requests from other web pages are not taken; there is no cross-origin access (CORS)")


def _is_ours(origin: str, scope: Scope) -> bool:
    """The page's address is the one that the request was sent to, and that is not somebody's name for loopback."""
    host = (header(scope, b"host") or b"").decode("latin-1")
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        if page.netloc.lower() != here.netloc.lower():
            return False
        served_at = scope.get("server") or ("", 0)
        return here.hostname in _LOOPBACK_NAMES or not str(served_at[0]).startswith(("127.", "::1"))
    except ValueError:
        return False
