"""The checksum: the right one, over any buffer, and light to import."""

import subprocess
import sys

from headrace.records.crc import crc32c


def test_the_check_value_of_crc32c():
    assert crc32c(b"123456789") == 0xE3069283


def test_any_buffer_gives_the_same_checksum():
    data = bytes(range(256)) * 10
    assert crc32c(memoryview(data)[5:]) == crc32c(data[5:]) == crc32c(bytearray(data[5:]))


def test_importing_it_does_not_bring_the_packages_own_metadata_along():
    program = "import sys, headrace.records.crc; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
