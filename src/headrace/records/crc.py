"""CRC32C in hardware, without what its package drags in.

`import crc32c` reads the package's own version through importlib.metadata and email, which took 34 ms beside an
interpreter start of 70 ms (68 beside 99 on busy cores); the extension inside takes under 2 ms. So that is loaded by
itself, and the package as a whole only where the extension is not found under its present name.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol

_EXTENSION = "_crc32c"


class Checksum(Protocol):
    def __call__(self, data: bytes | bytearray | memoryview, before: int = 0, /) -> int:
        """The checksum of `data`, or of bytes whose checksum is `before` and `data` behind them."""


def _load() -> Checksum:
    package = find_spec("crc32c")
    locations = package.submodule_search_locations if package else None
    extension = PathFinder.find_spec(_EXTENSION, locations) if locations else None
    if extension is None or extension.loader is None:
        from crc32c import crc32c as checksum
    else:
        module = module_from_spec(extension)
        extension.loader.exec_module(module)
        checksum = module.crc32c
    return checksum


crc32c: Checksum = _load()
