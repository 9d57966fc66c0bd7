"""Writes what is generated from settings and metrics: `python -m tests.reference`, or `make reference`."""

import json
from pathlib import Path

from stream_ocpdl.config.reference import schema, table
from stream_ocpdl.observe.catalogue import reference

ROOT = Path(__file__).parents[1]
SCHEMA, DOCS = ROOT / "schemas" / "settings.schema.json", ROOT / "docs" / "settings.md"
METRICS = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- begin: make reference -->\n", "<!-- end -->\n"


def generated():
    """Files, and what has to be in them."""
    return {
        SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        DOCS: within(DOCS, table()),
        METRICS: within(METRICS, reference()),
    }


def within(page, text):
    """A page with this text between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
