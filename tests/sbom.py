"""What a release is made of, as CycloneDX has it: every package of requirements/run.lock, with the hashes of its files.

Made from the lock file alone, so that it is the same on every machine; `make reference` writes it.
"""

import re
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "run.lock"
PINNED = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.*?))? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)


def components():
    """The packages, in the order of the file."""
    for name, version, marker, hashes in PINNED.findall(LOCK.read_text()):
        yield {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{version}/#files",
                    "hashes": [{"alg": "SHA-256", "content": one} for one in re.findall(r"sha256:(\w+)", hashes)],
                }
            ],
            **({"properties": [{"name": "stream-ocpdl:marker", "value": marker}]} if marker else {}),
        }


def sbom():
    """All of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    itself = f"pkg:pypi/{project['name']}@{project['version']}"
    found = list(components())
    direct = {re.split(r"[<>=~! ]", word)[0].lower() for word in project["dependencies"]}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, itself + LOCK.read_text())}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": itself,
            }
        },
        "components": found,
        "dependencies": [{"ref": itself, "dependsOn": [one["bom-ref"] for one in found if one["name"] in direct]}],
    }
