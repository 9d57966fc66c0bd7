"""What the README and the pages for operators say to type is typed: in the order of the page, against a real broker.

```console blocks are one shell script, ```yaml blocks the files of settings, ```python blocks without prompts are run
after the commands above them. (Those with prompts are doctests, which pytest runs by itself.)
"""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from stream_ocpdl.config.settings import Settings
from stream_ocpdl.stream.kafka import Connection, delete_topics
from stream_ocpdl.stream.topics import Topics
from tests.test_top import free_port

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {
    "README.md": ("weather", "service.yaml", "9464"),
    "docs/recovery.md": ("drill", "drill.yaml", "9465"),
}
"""Which model a page speaks of, in which file of settings, at which port."""

ASK = "exec 3<> /dev/tcp/127.0.0.1/9464 && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q"
SEEN = {
    "stream-ocpdl run --config service.yaml &": f"({ASK} 'ocpdl_phase.*running.* 1' <&3)",
    "stream-ocpdl produce sampler --config service.yaml --count 500     # tensors with a known dictionary, for a try": (
        f"({ASK} 'ocpdl_seen_tensors.* 600' <&3)"
    ),
}
"""What people wait for with their own eyes before they type on."""


def blocks(page, *kinds):
    """The blocks of these kinds, in order."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [(kind, text) for kind, text in found if kind in kinds and ">>> " not in text]


def typed(text):
    """The commands of a block; `make` has nothing to do in a test."""
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith("make ")]


def script(page):
    """All that a page says to run, as one shell script that ends with the first command that fails."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
    for kind, text in blocks(page, "console", "python"):
        if kind == "console":
            for line in typed(text):
                lines += [f"echo {shlex.quote('$ ' + line)}", line]
                lines += [f"until {SEEN[line]} > /dev/null 2>&1; do sleep 0.2; done"] if line in SEEN else []
        else:
            lines += [f"{shlex.quote(sys.executable)} - <<'EOF'\n{text}EOF"]
    return "\n".join(lines) + "\n"


def test_what_is_waited_for_is_there():
    """Or nobody would wait."""
    assert set(SEEN) <= {line for _, text in blocks("README.md", "console") for line in typed(text)}


@pytest.mark.parametrize("page", PAGES)
def test_files_of_settings_are_valid(page):
    """The schema takes them as they stand."""
    found = [Settings(**yaml.safe_load(text)) for _, text in blocks(page, "yaml")]

    assert [settings.model for settings in found] == [PAGES[page][0]]


@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works(page, broker, tmp_path):
    """One after the other, as somebody would type them."""
    model, file, port = PAGES[page]
    ((_, settings),) = blocks(page, "yaml")
    here = {"localhost:9092": broker, port: str(free_port())}
    text = script(page)
    for said, meant in here.items():
        text, settings = text.replace(said, meant), settings.replace(said, meant)
    (tmp_path / file).write_text(settings)
    (tmp_path / "stream-ocpdl").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m stream_ocpdl "$@"\n')
    (tmp_path / "stream-ocpdl").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "OCPDL_HTTP__PORT": here[port],
    }
    try:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
    finally:
        topics = Topics.of(model, f"{model}.tensors")
        delete_topics(Connection(broker), [topics.input, *topics.outputs(1)])

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr


ALL = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])


@pytest.mark.parametrize("page", ALL)
def test_nothing_is_said_twice(page):
    """No line of text, heading, or beginning of a paragraph is on a page twice, as after a merge that went wrong."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if len(line) > 60 or line.startswith("#")]
    said = Counter(lines + re.findall(r"^\*\*[^*]+\*\*", text, re.MULTILINE))

    assert [words for words, count in said.items() if count > 1] == []


@pytest.mark.parametrize("page", ALL)
def test_settings_are_spelled_as_in_their_file(page):
    """In YAML: no key of a setting stands in quotes."""
    names = "|".join([*Settings.model_fields, "topic", "format", "close", "order", "rank", "missing"])

    assert not re.findall(rf'`[^`\n]*"(?:{names})":[^`\n]*`', (ROOT / page).read_text())


@pytest.mark.parametrize("page", ALL)
def test_links_lead_somewhere(page):
    """To files that are there, and to headings that are in them."""
    path = ROOT / page
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
        file = (path.parent / target) if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"
