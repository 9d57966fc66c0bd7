"""Apache Kafka from Maven's jars, installed once per version in the user's cache.

An installation is a directory with three things:

    libs/       the jars
    template/   a formatted, empty data directory: a node is formatted by copying it and writing
                its identity, which saves a JVM per node and start
    kafka.jsa   the classes of a running broker as a shared archive, which halves the time to start

It is built under a temporary name and renamed when complete: a process that finds it finds all of it, and two
that build it at the same time do not meet. The class path is relative to it, because an archive is valid only
for the class path that it was made with.
"""

import os
import random
import re
import shutil
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.broker.processes import ProcessGroup, tail

POM = Path(__file__).with_name("pom.xml")
_OLDEST_JAVA = 17
_INSTEAD = "or set KAFKA_BOOTSTRAP_SERVERS"
_FETCH_SECONDS = 900.0
_JVM_SECONDS = 60.0
_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class NoBroker(Exception):
    """No broker can be had here. The message says what to install or to set."""


@dataclass(frozen=True)
class Installation:
    """A Java and a directory of jars."""

    java: str
    home: Path

    def command(self, *arguments: str, archive: str = "-XX:SharedArchiveFile") -> list[str]:
        """The command line of a JVM with the jars; to be run in `home`."""
        jars = os.pathsep.join(f"libs/{jar.name}" for jar in sorted((self.home / "libs").iterdir()))
        return [self.java, *_JVM, f"{archive}=kafka.jsa", "-cp", jars, *arguments]

    def format(self, data: Path, node: int, cluster_id: str) -> None:
        """Make `data` the empty data directory of a node, as Kafka's storage tool does."""
        shutil.copytree(self.home / "template", data)
        identity = {"version": 1, "cluster.id": cluster_id, "node.id": node, "directory.id": random_id()}
        write_properties(data / "meta.properties", identity)


def install() -> Installation:
    """The installation of the pom's version; the first time it is fetched."""
    java = find_java()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream_ocpdl"
    home = cache / f"kafka-{kafka_version()}"
    if not home.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with ProcessGroup(f"{home.name}.", cache) as group:
            _build(Installation(java, group.directory), group)
            _publish(group.directory, home)
    return Installation(java, home)


def kafka_version() -> str:
    """The version in the pom: the one place where it is written."""
    version = ElementTree.parse(POM).findtext(".//{*}kafka.version")
    if version is None:
        raise ValueError(f"{POM} has no property kafka.version")
    return version


def find_java() -> str:
    """A Java that is new enough: JAVA_HOME's, else the first in PATH."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise NoBroker(f"Java {_OLDEST_JAVA}+ not found; install a Java runtime, {_INSTEAD}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JVM_SECONDS, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        raise NoBroker(f"{java} is not Java {_OLDEST_JAVA}+ but {said[:60]!r}; install a newer one, {_INSTEAD}")
    return java


def free_ports(count: int) -> list[int]:
    """Ports that are free now, below those that the system gives to outgoing connections.

    A client that keeps connecting to the port of a killed broker could otherwise be given that very port as its
    own, be connected to itself, and keep the broker from coming back.
    """
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            attempt = held.enter_context(socket.socket())
            try:
                attempt.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                continue
            ports.append(attempt.getsockname()[1])
        return ports


def random_id() -> str:
    """A random identifier in Kafka's spelling; without dashes, so that no tool takes it for an option."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


def write_properties(path: Path, values: Mapping[str, object]) -> None:
    """Write a Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))


def _build(kafka: Installation, group: ProcessGroup) -> None:
    """Fetch the jars, format the template, and run a broker on a copy of it to archive its classes."""
    home = kafka.home
    maven = shutil.which("mvn")
    if maven is None:
        raise NoBroker(f"Maven not found: it fetches Kafka once; install Maven, {_INSTEAD}")
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={home / 'libs'}"]
    fetch = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", *options]
    _run(group, fetch, home / "fetch.log", _FETCH_SECONDS)

    broker, controller = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": home / "template",
    }
    properties = home / "build.properties"
    write_properties(properties, settings)
    tool = kafka.command("kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(properties))
    _run(group, tool, home / "format.log", _JVM_SECONDS)

    write_properties(properties, {**settings, "log.dirs": home / "trained"})
    kafka.format(home / "trained", 1, random_id())
    _archive(group, kafka.command("kafka.Kafka", str(properties), archive="-XX:ArchiveClassesAtExit"), broker)
    shutil.rmtree(home / "trained")


def _run(group: ProcessGroup, command: list[str], log: Path, seconds: float) -> None:
    try:
        failed = group.spawn(command, group.directory, log).wait(seconds) != 0
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        raise NoBroker(f"{command[0]} could not install Kafka; see below, {_INSTEAD}\n{tail(log)}")


def _archive(group: ProcessGroup, command: list[str], port: int) -> None:
    """Run a broker until it answers and end it in order, which is when the JVM writes the archive.

    Only speed depends on the archive: a broker that does not start here fails where it is needed, with its log.
    """
    process = group.spawn(command, group.directory, group.directory / "archive.log")
    deadline = time.monotonic() + _JVM_SECONDS
    while not answers(port) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    process.wait(_JVM_SECONDS)


def answers(port: int) -> bool:
    """Whether something listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _publish(built: Path, home: Path) -> None:
    """Give a complete installation its name, unless another process was first."""
    try:
        built.rename(home)
    except OSError:
        if not home.is_dir():
            raise
