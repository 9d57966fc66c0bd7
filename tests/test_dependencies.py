"""What the service is made of: locked with hashes, listed in a bill of materials, and nothing else."""

import json
import re
import tomllib

import pytest

from tests.sbom import LOCK, ROOT, sbom

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
BILL = ROOT / "requirements" / "run.cdx.json"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_everything_is_pinned_with_hashes(lock):
    """Each package has one version, and hashes; nothing comes from elsewhere."""
    blocks = re.split(r"\n(?=\S)", lock.read_text().strip())

    assert len(blocks) > 3
    for block in blocks:
        assert re.match(r"[\w.-]+(\[\w+\])?==\S+", block), block[:80]
        assert "--hash=sha256:" in block, block[:80]


def test_the_bill_has_every_package():
    """As many as the lock file, with all of its hashes; and every direct dependency is one of them."""
    text, bill = LOCK.read_text(), json.loads(BILL.read_text())
    direct = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert bill == sbom()
    assert len(bill["components"]) == len(re.findall(r"^\S+==", text, re.MULTILINE))
    told = [one["content"] for part in bill["components"] for one in part["externalReferences"][0]["hashes"]]
    assert told == re.findall(r"sha256:(\w+)", text)
    names = {part["name"] for part in bill["components"] if part["bom-ref"] in bill["dependencies"][0]["dependsOn"]}
    assert names == {re.split(r"[<>= ]", one)[0] for one in direct}


def test_references_are_unique():
    """As the format asks."""
    references = [part["bom-ref"] for part in json.loads(BILL.read_text())["components"]]

    assert len(references) == len(set(references))
