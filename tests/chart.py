"""What is generated of the Helm chart from values.yaml and its comments: the schema of the values, and the README."""

import json
import re
from pathlib import Path

import yaml

from stream_ocpdl.config.reference import schema as of_settings

CHART = Path(__file__).parents[1] / "helm" / "stream-ocpdl"
KEY = re.compile(r"^( *)(\w+):")
TEXT, NAMED = {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "object"}}


def descriptions():
    """Where a value is, and what its comment says."""
    found, path, told = {}, [], None
    for line in (CHART / "values.yaml").read_text().splitlines():
        comment = line.strip().removeprefix("#").strip() if line.strip().startswith("#") else None
        if comment is not None:
            if comment.startswith("-- "):
                told = comment.removeprefix("-- ")
            elif told is not None:
                told += f" {comment}"
        elif key := KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if told is not None:
                found[tuple(path)] = told
            told = None
    return found


def defaults():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def at(values, path):
    for name in path:
        values = values[name]
    return values


def readme():
    """The chart's page: what README.md.in says, and a table of the values."""
    values = defaults()
    rows = [
        f"| `{'.'.join(path)}` | `{json.dumps(at(values, path), ensure_ascii=False)}` | {told} |"
        for path, told in descriptions().items()
    ]
    table = "\n".join(["| value | default | |", "|---|---|---|", *rows])
    return table + "\n"


def values_schema():
    """Every value has the type of its default, or what is said here; what is not there is a mistake."""
    settings = of_settings()
    definitions = settings.pop("$defs")
    for name in ("$schema", "$id"):
        settings.pop(name)
    told = descriptions()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart stream-ocpdl",
        **derived(defaults(), (), told),
        "allOf": CONDITIONS,
        "$defs": definitions | {"Settings": settings},
    }


def derived(value, path, told):
    """The schema of a value, by its default."""
    own = {"description": told[path]} if path in told else {}
    if path in SPECIAL:
        return own | SPECIAL[path]
    if isinstance(value, dict) and value:
        inner = {name: derived(below, (*path, name), told) for name, below in value.items()}
        more = {} if path else {"global": {"type": "object"}, "autoscaling": refused(NO_AUTOSCALING)}
        return own | {"type": "object", "additionalProperties": False, "properties": inner | more}
    kinds = {bool: {"type": "boolean"}, str: {"type": "string"}, dict: {"type": "object"}, list: NAMED}
    return own | kinds[type(value)]


def refused(why):
    """A value that nothing may have: Helm prints the constant, which is the reason."""
    return {"const": why, "not": {}}


NO_AUTOSCALING = "absent: a shard has one writer, so that more replicas learn nothing more; set `replicas`"
NO_SECRETS = "absent: a secret is in no values; see `existingSecret`"

SPECIAL = {
    ("settings",): {
        "$ref": "#/$defs/Settings",
        "properties": {
            "shards": {"minimum": 1},
            "http": {"properties": {"port": {"type": "integer", "minimum": 1024}}},
            "kafka": {
                "properties": {"sasl_password": refused(NO_SECRETS), "ssl_key_password": refused(NO_SECRETS)},
            },
        },
    },
    ("fullnameOverride",): {"type": "string", "maxLength": 50},
    ("image", "repository"): TEXT,
    ("image", "digest"): {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    ("image", "pullPolicy"): {"enum": ["Always", "IfNotPresent", "Never"]},
    ("replicas",): {"type": "integer", "minimum": 1},
    ("resources",): {"type": "object"},
    ("startup", "budgetSeconds"): {"type": "integer", "minimum": 60},
    ("terminationGracePeriodSeconds",): {"type": ["integer", "null"], "minimum": 30},
    ("service", "type"): {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    ("service", "port"): {"type": "integer", "minimum": 1, "maximum": 65535},
    ("podDisruptionBudget", "maxUnavailable"): {"type": "integer", "minimum": 1},
    ("networkPolicy", "brokerPorts"): {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": 65535},
    },
    ("networkPolicy", "ingressFrom"): NAMED,
    ("podMonitor", "interval"): {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
    ("topics", "partitions"): {"type": "integer", "minimum": 1},
    ("topics", "replicationFactor"): {"type": ["integer", "null"], "minimum": 1},
    ("topics", "retention"): {"type": "string", "pattern": "^([0-9]+[mhd])?$"},
    ("encoders", "replicas"): {"type": "integer", "minimum": 1},
    ("encoders", "partitions"): {"type": "integer", "minimum": 1},
    ("encoders", "resources"): {"type": "object"},
    ("encoders", "keda", "lagThreshold"): {"type": "integer", "minimum": 1},
    ("encoders", "autoscaling", "processorPercent"): {"type": "integer", "minimum": 1, "maximum": 100},
}


def having(*path, **what):
    """Values in which there is something of this kind at a place."""
    inner = what
    for name in reversed(path):
        inner = {"properties": {name: inner}, "required": [name]}
    return inner


SECRET_KEYS = ("saslPassword", "ca", "certificate", "key", "keyPassword")
CONDITIONS = [
    {
        "description": "A password has to come from somewhere.",
        "if": {
            "allOf": [
                having("settings", "kafka", "security_protocol", enum=["sasl_plaintext", "sasl_ssl"]),
                having("settings", "kafka", "sasl_mechanism", enum=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]),
                {"not": having("settings", "kafka", "sasl_password_file", **TEXT)},
            ]
        },
        "then": {"allOf": [having("existingSecret", name, **TEXT) for name in ("name", "saslPassword")]},
    },
    {
        "description": "Keys are those of a Secret.",
        "if": {"anyOf": [having("existingSecret", name, **TEXT) for name in SECRET_KEYS]},
        "then": having("existingSecret", "name", **TEXT),
    },
    {
        "description": "Another Secret has the same keys.",
        "if": having("encoders", "existingSecret", **TEXT),
        "then": having("existingSecret", "name", **TEXT),
    },
    {
        "description": "A certificate has a key.",
        "if": having("existingSecret", "certificate", **TEXT),
        "then": having("existingSecret", "key", **TEXT),
    },
    {
        "description": "A directory of checkpoints is on a claim, for the root is read-only.",
        "if": having("settings", "checkpoints", **{"not": {"const": "topic"}}),
        "then": {
            "allOf": [
                having("settings", "checkpoints", type="string", pattern="^/"),
                having("checkpoints", "existingClaim", **TEXT),
            ]
        },
    },
    {
        "description": "A code is published once: encoders of the same topic take codes over from the learner.",
        "if": {
            "allOf": [
                having("encoders", "enabled", const=True),
                {"not": having("settings", "encoders", "input", **TEXT)},
            ]
        },
        "then": having("settings", "learner", "codes", const=False),
    },
    {
        "description": "And a claim is for a directory.",
        "if": having("checkpoints", "existingClaim", **TEXT),
        "then": having("settings", "checkpoints", type="string", pattern="^/"),
    },
]
