"""The schemas say what the specification says, and what the codec does."""

import json
import os
import re
import shutil
from base64 import b64decode
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from stream_ocpdl.errors import DecodeError
from stream_ocpdl.stream import messages
from stream_ocpdl.stream.messages import frame
from stream_ocpdl.stream.topics import Topics
from tests.asyncapi import NoParser, parse
from tests.conftest import REQUIRED

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "schemas"
ASYNCAPI = SCHEMAS / "asyncapi.yaml"

# ── what the specification says ────────────────────────────────────────────────────────────────────────────────

SECTION = re.compile(r"^\*\*([a-z-]+)\*\*", re.MULTILINE)
PREFACE, *PARTS = SECTION.split((ROOT / "docs" / "messages.md").read_text().split("## Other input formats")[0])


def rows(text):
    """The rows of the tables whose first column has names in backticks: those names, and the other cells."""
    for line in text.splitlines():
        if line.startswith("| `"):
            names, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            yield re.findall("`(.+?)`", names), cells


def tables():
    """For each kind its fields: (when it is required, what it is, how many fields share that description)."""
    found = {}
    for kind, part in zip(PARTS[::2], PARTS[1::2], strict=True):
        own = {name: (when, what, len(names)) for names, (when, what) in rows(part) for name in names}
        found[kind] = (found["tensor"] if part.startswith(": all of a tensor's") else {}) | own
    return found


TOPICS = {kind: topic for (kind,), (topic, _) in rows(PREFACE)}
TABLES = tables()
EVERY = {"kind", "crc32"}
"""Fields of every header; no table needs to name them."""


def several(items, least, most, **more):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


COUNT = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
SIZE = COUNT | {"minimum": 1}
NUMBER = "(0|[1-9][0-9]{0,18})"
WORDS = {
    "1 to 16 sizes": several(SIZE, 1, 16),
    "boolean": {"type": "boolean"},
    "count": COUNT,
    "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "names of the modes": several({"type": "string", "minLength": 1, "maxLength": 64}, 1, 16, uniqueItems=True),
    "number from 0 to 1": {"type": "number", "minimum": 0, "maximum": 1},
    "number ≥ 0": {"type": "number", "minimum": 0},
    "position": several(COUNT, 2, 2),
    "run": several(COUNT, 3, 3),
    "size": SIZE,
    "text of 1 to 64 characters": {"type": "string", "minLength": 1, "maxLength": 64},
    "text": {"type": "string", "maxLength": 512},
    "version": {
        "type": "string",
        "pattern": f"^[A-Za-z0-9._-]+/{NUMBER}/{NUMBER}/{NUMBER}$",
        "maxLength": 512,
    },
}
"""The words of the specification for the types of fields."""

WORD = re.compile(rf"({'|'.join(WORDS)})(s?)(?=[:;,]| of |$)")
ANNOTATIONS = {"description", "examples", "default"}


# ── what is in schemas/ ────────────────────────────────────────────────────────────────────────────────────────


def schema(kind):
    return json.loads((SCHEMAS / f"{kind}.schema.json").read_text())


def errors(kind, header):
    return list(Draft202012Validator(schema(kind)).iter_errors(header))


def examples(which):
    """A parameter for each example: its kind, and what is in the file."""
    paths = sorted(SCHEMAS.glob(f"examples/*/{which}/*.json"))
    return [pytest.param(p.parts[-3], json.loads(p.read_text()), id=f"{p.parts[-3]}-{p.stem}") for p in paths]


def message(example):
    """The bytes of an example."""
    payload = example["payload"]
    return frame(example["header"], bytes(payload["zeros"]) if "zeros" in payload else b64decode(payload["base64"]))


def fields(of):
    """Every field and every entry of a pair that a schema describes, at any depth."""
    yield from (of.get("properties") or {}).items()
    yield from enumerate(of.get("prefixItems") or [])
    for below in (*(of.get("properties") or {}).values(), of.get("items")):
        if isinstance(below, dict):
            yield from fields(below)


def test_every_kind_has_a_schema():
    """Specification, schemas, examples and codec know the same kinds."""
    kinds = {path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.schema.json")} - {"settings"}

    assert kinds == set(TOPICS)
    assert {path.name for path in SCHEMAS.glob("examples/*")} == set(TOPICS)
    assert set(TABLES) == set(TOPICS)
    assert set(messages.KINDS) == set(TOPICS)


@pytest.mark.parametrize("kind", TOPICS)
def test_schemas_are_schemas(kind):
    """Each is valid JSON Schema 2020-12, has a name of its own, and describes itself and every field."""
    found = schema(kind)
    Draft202012Validator.check_schema(found)

    assert found["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert found["$id"] == f"https://stream-ocpdl.invalid/schemas/1/{kind}.schema.json"
    assert found["properties"]["kind"]["const"] == kind
    assert found["title"]
    assert found["description"]
    assert found["$comment"].startswith("also checked by readers: ")
    assert [name for name, field in fields(found) if not field.get("description")] == []


@pytest.mark.parametrize("kind", TOPICS)
def test_schemas_have_the_fields_of_the_specification(kind):
    """The tables and the schema name the same fields, and the same of them are required, always or sometimes."""
    found, table = schema(kind), TABLES[kind]
    sometimes = {*found.get("then", {}).get("required", ()), *found.get("dependentRequired", ())}

    assert set(found["properties"]) == set(table) | EVERY
    assert set(found["required"]) == {name for name, (when, *_) in table.items() if when == "required"} | {"kind"}
    assert sometimes == {name for name, (when, *_) in table.items() if when not in ("", "required")}


@pytest.mark.parametrize("kind", TOPICS)
def test_schemas_have_the_types_of_the_specification(kind):
    """A field that the specification calls a count, a hash, positions … is that in the schema, with the same limits."""
    for name, (_, what, sharing) in TABLES[kind].items():
        if word := WORD.match(what):
            wanted = WORDS[word[1]]
            if word[2] and sharing == 1:  # «positions» of one field is an array of them
                wanted = {"type": "array", "items": wanted}
            found = schema(kind)["properties"][name]
            assert {key: found[key] for key in found.keys() - ANNOTATIONS} == wanted, name


def test_the_words_are_found():
    """Every word for a type is used, so that the test above cannot pass by finding none."""
    used = {word[1] for table in TABLES.values() for _, what, _ in table.values() if (word := WORD.match(what))}

    assert used == set(WORDS)


def test_a_draw_has_all_of_a_tensor():
    """The fields that draws share with tensors are described in the same words."""
    tensor, draw = schema("tensor"), schema("draw")

    assert draw["properties"] | {"kind": tensor["properties"]["kind"]} == draw["properties"] | tensor["properties"]
    assert (draw["if"], draw["then"]) == (tensor["if"], tensor["then"])


# ── examples ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("kind", "example"), examples("valid"))
def test_valid_examples_pass(kind, example):
    """What is called valid is valid by the schema."""
    assert errors(kind, example["header"]) == []


@pytest.mark.parametrize(("kind", "example"), examples("invalid"))
def test_invalid_examples_fail(kind, example):
    """What is called invalid breaks one rule of the schema, at the field that it names."""
    (error,) = errors(kind, example["header"])

    if error.absolute_path:
        assert error.absolute_path[0] == example["field"]
    else:
        assert error.message.startswith(f"'{example['field']}' is a ")  # required property, dependency of another


@pytest.mark.parametrize(("kind", "example"), examples("valid"))
def test_the_codec_reads_valid_examples(kind, example):
    """They are whole messages: header and payload fit."""
    assert messages.KINDS[kind].from_bytes(message(example)) is not None


@pytest.mark.parametrize(("kind", "example"), examples("invalid"))
def test_the_codec_refuses_invalid_examples(kind, example):
    """The codec is as strict as the schema, and its reason is one line that names the field."""
    with pytest.raises(DecodeError, match=rf"\b{example['field']}\b") as refusal:
        messages.KINDS[kind].from_bytes(message(example))

    assert "\n" not in str(refusal.value)


# ── the topics ─────────────────────────────────────────────────────────────────────────────────────────────────


def parsed(*paths):
    """What AsyncAPI's parser says; without it a skip, or a failure where nothing may be missing."""
    try:
        return parse(paths)
    except NoParser as reason:
        if os.environ.get(REQUIRED):
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def asyncapi():
    """The document of the topics, with every reference resolved."""
    (said,) = parsed(ASYNCAPI)
    assert said.complaints == []
    return said.document


def test_the_parser_accepts_the_topics(asyncapi):
    """AsyncAPI's own parser has no errors and no warnings, and each topic has the kinds that the specification says."""
    found = {}
    for channel in asyncapi["channels"].values():
        topic = re.sub(r"^\{(\w+)\}", lambda name: "MODEL" if name[1] == "model" else name[1], channel["address"])
        found[topic] = {said["payload"]["properties"]["kind"]["const"] for said in channel["messages"].values()}
    wanted = {topic: {kind for kind in TOPICS if TOPICS[kind] == topic} for topic in TOPICS.values()}
    assert wanted.pop("any but the journal and control") == {"chunk"}

    whole = ("MODEL.journal", "MODEL.control")
    assert found == {topic: kinds if topic in whole else kinds | {"chunk"} for topic, kinds in wanted.items()}


def test_examples_of_the_topics_pass(asyncapi):
    """The examples in the document are those of `examples/`."""
    for said in asyncapi["components"]["messages"].values():
        kind = said["name"]
        known = [json.loads(path.read_text())["header"] for path in SCHEMAS.glob(f"examples/{kind}/valid/*.json")]

        assert said["examples"]
        for example in said["examples"]:
            assert example["payload"] in known, kind


BROKEN = {
    "a parameter that is not declared": ("'{model}.codes'", "'{model}.{shard}.codes'"),
    "a schema that is not there": ("./tensor.schema.json", "./tensors.schema.json"),
    "a number of partitions in words": ("partitions: 2", "partitions: two"),
}


def test_the_parser_refuses_broken_copies(tmp_path):
    """The parser does look: each copy with one mistake is refused."""
    paths = []
    for name, (right, wrong) in BROKEN.items():
        copy = Path(shutil.copytree(SCHEMAS, tmp_path / name)) / ASYNCAPI.name
        assert right in copy.read_text(), name
        copy.write_text(copy.read_text().replace(right, wrong))
        paths.append(copy)

    for name, said in zip(BROKEN, parsed(*paths), strict=True):
        assert said.document is None, name
        assert said.complaints, name


def test_topics_are_made_as_documented(asyncapi):
    """The settings of the topics in the document are those with which the service makes them."""
    made = Topics.of("weather", "input").outputs(3)
    for channel in asyncapi["channels"].values():
        name = channel["address"].replace("{model}", "weather")
        if name not in made:
            continue
        partitions, settings = made.pop(name)
        said = channel["bindings"]["kafka"]
        told = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in settings.items()}

        assert said.get("partitions", 3) == partitions, name
        known = {
            k: ",".join(v) if isinstance(v, list) else str(v) for k, v in said.get("topicConfiguration", {}).items()
        }
        assert {key: known.get(key) for key in told} == told, name
    assert not made
