"""Writes what is generated from settings, metrics, alerts, panels: `python -m tests.reference`, or `make reference`."""

import json
from pathlib import Path

import yaml

from stream_ocpdl.config.reference import schema, table
from stream_ocpdl.observe import alerts
from stream_ocpdl.observe.catalogue import reference
from stream_ocpdl.observe.dashboard import dashboard
from tests import chart
from tests.sbom import sbom

ROOT = Path(__file__).parents[1]
SCHEMA, DOCS = ROOT / "schemas" / "settings.schema.json", ROOT / "docs" / "settings.md"
METRICS = ROOT / "docs" / "metrics.md"
CHART = chart.CHART
VALUES, PAGE = CHART / "values.schema.json", CHART / "README.md"
RULES, MANIFEST = CHART / "alerts" / "rules.yaml", CHART / "alerts" / "prometheusrule.yaml"
DASHBOARD = CHART / "dashboards" / "stream-ocpdl.json"
RUNBOOKS = ROOT / "docs" / "runbooks" / "README.md"
BILL = ROOT / "requirements" / "run.cdx.json"
BEGIN, END = "<!-- begin: make reference -->\n", "<!-- end -->\n"


def generated():
    """Files, and what has to be in them."""
    return {
        SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        DOCS: within(DOCS, table()),
        METRICS: within(METRICS, reference()),
        RULES: in_yaml(alerts.rules()),
        MANIFEST: in_yaml(alerts.manifest()),
        DASHBOARD: json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n",
        RUNBOOKS: within(RUNBOOKS, alerts.table()),
        VALUES: json.dumps(chart.values_schema(), indent=2, ensure_ascii=False) + "\n",
        BILL: json.dumps(sbom(), indent=2) + "\n",
        PAGE: within(PAGE, chart.readme()),
    }


class Dumper(yaml.SafeDumper):
    """Text of several lines stays so."""


Dumper.add_representer(
    str, lambda dump, text: dump.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def in_yaml(data):
    """Data as YAML that people can read."""
    head = "# Made by `make reference` from stream_ocpdl/observe/alerts.py.\n"
    return head + yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=200)


def within(page, text):
    """A page with this text between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
