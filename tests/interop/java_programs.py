"""Our own small Java programs in `java/`, compiled against Kafka's jars and run in a JVM of their own."""

import hashlib
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bench.tools import CACHE, KAFKA_VERSION, maven_jars
from tests.interop.background import Background

SOURCES = Path(__file__).parent / "java"
# Kafka Streams brings the clients with it; nothing of the broker is on this classpath.
HOME = CACHE / f"kafka-streams-{KAFKA_VERSION}"
ARTIFACTS = (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", "org.slf4j:slf4j-nop:1.7.36")


def start(program: str, *arguments: str) -> Background:
    """`java <program> <arguments>`, to be used as a context."""
    return Background(f"{_classes()}:{maven_jars(HOME, ARTIFACTS)}", program, *arguments)


@cache
def _classes() -> Path:
    """All programs, compiled into a folder that is named after what they say: never stale, never compiled twice."""
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    wanted = CACHE / "java" / digest
    if not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wanted.parent) as folder:
            made = Path(folder) / "classes"
            command = ["javac", "-Xlint:all", "-Werror", "-cp", maven_jars(HOME, ARTIFACTS), "-d", str(made)]
            done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made.rename(wanted)
    return wanted
