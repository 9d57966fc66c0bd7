"""Writes what is generated from the settings: `python -m tests.reference`, or `make reference`."""

import json
from pathlib import Path

from stream_ocpdl.config.reference import schema, table

ROOT = Path(__file__).parents[1]
SCHEMA, DOCS = ROOT / "schemas" / "settings.schema.json", ROOT / "docs" / "settings.md"
BEGIN, END = "<!-- begin: make reference -->\n", "<!-- end -->\n"


def generated():
    """Files, and what has to be in them."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        DOCS: f"{before}{BEGIN}{table()}{END}{after}",
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
