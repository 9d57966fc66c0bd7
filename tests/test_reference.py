"""The schema and the table of the settings are those of the model."""

import json
import re

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from stream_ocpdl import errors
from stream_ocpdl.cli import main
from stream_ocpdl.config.clients import REFUSED
from stream_ocpdl.config.places import all_places, field_at
from stream_ocpdl.config.settings import Settings
from tests.reference import DOCS, ROOT, SCHEMA, generated


@pytest.mark.parametrize("path", generated(), ids=lambda path: path.name)
def test_nothing_is_out_of_date(path):
    """`make reference` would change nothing."""
    assert path.read_text() == generated()[path]


def test_every_setting_is_described():
    """With a sentence, and a row in the table."""
    text = DOCS.read_text()
    for place in all_places():
        assert field_at(place).description.endswith(".")
        assert f"| `{'.'.join(place)}`" in text


def test_the_schema_is_one():
    """Valid JSON Schema 2020-12, which `config --schema` prints."""
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)

    assert json.loads(CliRunner().invoke(main, ["config", "--schema"]).stdout) == schema


def complaints(settings):
    return [error.message for error in Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(settings)]


@pytest.mark.parametrize("name", ["service.json", "service.yaml"])
def test_the_schema_takes_our_examples(name):
    """And what the service saves of them."""
    example = yaml.safe_load((ROOT / "examples" / name).read_text())

    assert complaints(example) == []
    assert complaints(json.loads(Settings(**example).model_dump_json(exclude_defaults=True))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": 1},
        {"problem": {"shape": [2], "rank": "1"}},
        {"problem": {"shape": [2]}},
        {"batching": {"close": "soon"}},
        {"kafka": {"extra": {"a": []}}},
        {"input": {"topic": "t", "format": "xml"}},
        {"threads": 0},
    ],
    ids=str,
)
def test_the_schema_refuses_what_we_refuse(wrong):
    """An editor that knows the schema shows these mistakes."""
    good = {"model": "m", "input": "t", "bootstrap_servers": "x", "problem": {"shape": [2], "rank": 1}}

    assert complaints(good) == []
    assert len(complaints(good | wrong)) == 1


def test_exit_codes_are_documented():
    """Every code that an error has is in the page, and so are those of `validate`."""
    documented = {int(code) for code in re.findall(r"^\| (\d+) +\|", DOCS.read_text(), re.MULTILINE)}
    used = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}

    assert documented == used | {errors.SEMANTICS, errors.TOPICS, errors.IMPATIENT}


def test_refused_settings_of_librdkafka_are_documented():
    """With the same names."""
    text = DOCS.read_text()

    assert [name for name in REFUSED if f"`{name}`" not in text] == []
