"""What the bench needs from outside: compiler, librdkafka, Java, Maven, Kafka. Installs what is missing.

Everything it makes lies under `.cache` and is made once.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.processes import BenchError

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
KAFKA_VERSION = "4.3.0"
SCALA_VERSION = "2.13"
KAFKA_HOME = CACHE / f"kafka-{KAFKA_VERSION}"
_KAFKA_ARTIFACTS = (
    f"org.apache.kafka:kafka_{SCALA_VERSION}:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.slf4j:slf4j-nop:1.7.36",
)
_SPARK_CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_{SCALA_VERSION}:4.2.0",
    f"org.apache.spark:spark-token-provider-kafka-0-10_{SCALA_VERSION}:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
PROGRAMS = {"load": ["-lrdkafka", "-lpthread"], "connections": [], "members": [], "offsets": []}
_RDKAFKA_HEADER = Path("/usr/include/librdkafka/rdkafka.h")
_DOWNLOAD_ATTEMPTS = 4  # a repository that answers 5xx or times out usually does better within a minute
_DOWNLOAD_PAUSE_S = 5.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>bench</artifactId>
  <version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def missing_packages(*, with_java: bool) -> list[str]:
    """Debian's names for what is not here yet."""
    wanted = [("gcc", shutil.which("gcc")), ("libc6-dev", Path("/usr/include/stdio.h").exists())]
    wanted += [("librdkafka-dev", _RDKAFKA_HEADER.exists()), ("wrk", shutil.which("wrk"))]
    wanted += [("etcd-server", shutil.which("etcd"))]
    if with_java:
        wanted += [("default-jre-headless", shutil.which("java")), ("maven", shutil.which("mvn"))]
    return [package for package, found in wanted if not found]


def install_missing(*, with_java: bool) -> None:
    packages = missing_packages(with_java=with_java)
    if not packages:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise BenchError(f"please install first: {' '.join(packages)} (as Debian names them)")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _retried(["apt-get", "update", "-qq"], env=env)
    _retried(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=env)


def program(name: str) -> Path:
    """One of the C clients, compiled when its source is newer than the binary."""
    source, binary = ROOT / "bench" / f"{name}.c", CACHE / "bench" / "bin" / name
    changed = max(path.stat().st_mtime for path in (source, *source.parent.glob("*.h")))
    if not binary.exists() or binary.stat().st_mtime < changed:
        binary.parent.mkdir(parents=True, exist_ok=True)
        _checked(["gcc", "-O2", "-Wall", "-Wextra", "-o", str(binary), str(source), *PROGRAMS[name]])
    return binary


def library(name: str) -> Path:
    """A library to preload, compiled as the clients are."""
    source, binary = ROOT / "bench" / f"{name}.c", CACHE / "bench" / "bin" / f"{name}.so"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        binary.parent.mkdir(parents=True, exist_ok=True)
        _checked(["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(binary), str(source), "-ldl"])
    return binary


def kafka_classpath() -> str:
    """Apache Kafka's jars with all they need."""
    return maven_jars(KAFKA_HOME, _KAFKA_ARTIFACTS)


def maven_jars(home: Path, artifacts: Sequence[str]) -> str:
    """A classpath of the artifacts ("group:name:version") with all they need, fetched once by Maven into `home`."""
    CACHE.mkdir(exist_ok=True)
    own = {f"{name}-{version}.jar" for _, name, version in (artifact.split(":") for artifact in artifacts)}
    with (CACHE / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the interop tests fetch the same jars into the same place
        if not all((home / jar).exists() for jar in own):
            _fetch_jars(home, artifacts, own)
    return f"{home}/*"


def _fetch_jars(home: Path, artifacts: Sequence[str], own: set[str]) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        pom, jars = Path(folder) / "pom.xml", Path(folder) / "jars"
        rows = (_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        pom.write_text(_POM.format(dependencies="".join(rows)))
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        _retried(["mvn", "-q", "-B", "-f", str(pom), *goal])
        home.mkdir(exist_ok=True)
        # Their own jars last: they are what says that everything is there.
        for jar in sorted(jars.iterdir(), key=lambda jar: jar.name in own):
            jar.replace(home / jar.name)


def lone_jars(home: Path, artifacts: Sequence[str]) -> list[Path]:
    """The artifacts themselves without what they ask for, fetched once by Maven into `home`."""
    CACHE.mkdir(exist_ok=True)
    jars = [home / f"{name}-{version}.jar" for _, name, version in (artifact.split(":") for artifact in artifacts)]
    with (CACHE / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for jar, artifact in zip(jars, artifacts, strict=True):
            if not jar.exists():
                copy = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
                _retried(["mvn", "-q", "-B", *copy])
    return jars


def spark_connector() -> str:
    """Spark's own Kafka connector, as `spark.jars` wants it. Its parts are released apart, and what they declare
    does not resolve; these four are seen to work with PySpark 4.3."""
    return ",".join(str(jar) for jar in lone_jars(CACHE / "spark-kafka", _SPARK_CONNECTOR))


def version_line(command: Sequence[str]) -> str:
    """The first line that a program prints about itself, or that it is not there."""
    try:
        done = subprocess.run(list(command), capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return "not installed"
    lines = (done.stdout or done.stderr).splitlines()
    return lines[0].strip() if lines else "unknown"


def _checked(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(list(command), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


def _retried(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
        try:
            _checked(command, env)
            return
        except BenchError:
            if attempt == _DOWNLOAD_ATTEMPTS:
                raise
            time.sleep(_DOWNLOAD_PAUSE_S * attempt)
