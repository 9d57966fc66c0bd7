"""The alerts, by Prometheus' own tools: each fires when it should, and none while all is well."""

import json
import re
import shlex
import subprocess

import click
import pytest
import yaml

from stream_ocpdl.cli import main
from stream_ocpdl.observe.alerts import ALERTS
from stream_ocpdl.observe.board import Shard
from stream_ocpdl.observe.catalogue import series
from stream_ocpdl.observe.silence import FORGOTTEN, PATIENCE, Silence
from stream_ocpdl.observe.status import shard_of
from tests.fakes import World, serve
from tests.reference import MANIFEST, ROOT, RULES
from tests.test_pipeline import PACE, inputs, plan
from tests.tools import tool

MINUTES = 400
NAMES = [alert.name for alert in ALERTS]


def constant(value, minutes=MINUTES):
    """A number that stays."""
    return f"{value}+0x{minutes}"


def written(instance="a", **changes):
    """The metrics of a process that writes shard 0 and is well, minute by minute, with changes. None: not there."""
    own = {
        "ocpdl_phase|phase=starting": constant(0),
        "ocpdl_phase|phase=recovering": constant(0),
        "ocpdl_phase|phase=running": constant(1),
        "ocpdl_term_timestamp_seconds": constant(1_700_000_000),
        "ocpdl_batch_size": constant(32),
        "ocpdl_lag_records|partition=0": "0+7x3 " * 100,
        "ocpdl_lag_records|partition=1": constant(3),
        "ocpdl_lag_seconds": constant(0.2),
        "ocpdl_awaited_seconds|partition=0": constant(0),
        "ocpdl_awaited_seconds|partition=1": "0+1x3 " * 100,
        "ocpdl_outputs_total|stream=snapshots": f"0+6x{MINUTES}",
        "ocpdl_steps_total": f"0+60x{MINUTES}",
        "ocpdl_tensors_total": f"0+1920x{MINUTES}",
        "ocpdl_dead_letters_total|error=DecodeError": f"0+2x{MINUTES}",
        "ocpdl_dead_letters_total|error=NumericError": constant(0),
        "ocpdl_unsaved_seconds": "0+60x30 " * 13,
        "ocpdl_recoveries_total|standby=cold": constant(1),
        "ocpdl_epoch": constant(2),
        "ocpdl_energy": constant(10),
        "ocpdl_surrogate_loss": f"8-0.01x{MINUTES}",
        "ocpdl_prequential_loss": f"8-0.01x{MINUTES}",
        "ocpdl_changes_total|change=structure": constant(0),
        "ocpdl_changes_total|change=scale": constant(2),
        "ocpdl_radius_active_total|mode=0": f"0+20x{MINUTES}",
        "ocpdl_chains|state=active": constant(4),
        "ocpdl_chains|state=silent": constant(0),
        "ocpdl_assumption|assumption=(A3)|standing=holds": constant(1),
        "ocpdl_assumption|assumption=(A1)|standing=holds": constant(0),
        "ocpdl_assumption|assumption=(A1)|standing=open": constant(1),
    }
    changed = own | changes
    return [line(name, values, instance, shard="0") for name, values in changed.items() if values is not None]


def coding(instance="c", **changes):
    """The same of an encoder that is well; its partials are of 64 tensors."""
    own = {
        "ocpdl_encoder_role|role=encoder": constant(1),
        "ocpdl_encoder_role|role=standby": constant(0),
        "ocpdl_encoder_batch_size": constant(64),
        "ocpdl_encoder_tensors_total": f"0+1920x{MINUTES}",
        "ocpdl_encoder_lag_records|partition=0": "0+70x3 " * 100,
        "ocpdl_encoder_lag_records|partition=1": constant(64),
        "ocpdl_encoder_waiting_partitions": constant(0),
        "ocpdl_encoder_dictionary_age_seconds|shard=0": constant(1.5),
    }
    changed = own | changes
    return [line(name, values, instance) for name, values in changed.items() if values is not None]


def line(name, values, instance="a", **labels):
    """A series as promtool has it."""
    name, *more = name.split("|")
    labels = {"model": "m", "instance": instance} | labels | dict(pair.split("=") for pair in more)
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{told}}}", "values": values}


SHARDS = [line("ocpdl_shards", constant(1)), line("ocpdl_shards", constant(1), "b")]
"""Of a process that writes and of a standby."""


def late(values, minutes):
    """The same, some minutes later."""
    return f"_x{minutes} {values}"


def delayed(lines, minutes):
    return [{**one, "values": late(one["values"], minutes)} for one in lines]


def ended(lines, minutes):
    """Series that end: a process that is gone."""
    return [{**one, "values": f"{one['values'].split('x')[0].split(' ')[0]}x{minutes} stale"} for one in lines]


ROUNDS = {"ocpdl_round_partials": constant(2)}
"""Of a learner that has partials."""

FLEET = [*SHARDS, *written(**ROUNDS), *coding()]
"""It, and an encoder that makes them."""

WELL = {
    "all is well": FLEET,
    "nobody but encoders": coding(ocpdl_encoder_batch_size=constant(1)),
    "a learner that needs no encoders": [*SHARDS, *written()],
    "encoders start": [
        *SHARDS,
        *written(**ROUNDS),
        *coding(
            **{
                "ocpdl_encoder_role|role=encoder": "0+0x6 1+0x300",
                "ocpdl_encoder_waiting_partitions": "0+0x6 2+0x3 0+0x300",
                "ocpdl_encoder_lag_records|partition=0": late("30000-3000x10 0+0x300", 9),
                "ocpdl_encoder_lag_records|partition=1": late("30000-3000x10 0+0x300", 9),
                "ocpdl_encoder_tensors_total": "0+0x9 0+6000x300",
                "ocpdl_encoder_dictionary_age_seconds|shard=0": late(constant(2, 300), 9),
            }
        ),
    ],
    "nothing comes at night, and a round is not complete": [
        *SHARDS,
        *written(
            **ROUNDS,
            **{
                "ocpdl_steps_total": "0+60x30 1800+0x300",
                "ocpdl_tensors_total": "0+1920x30 57600+0x300",
                "ocpdl_dead_letters_total|error=DecodeError": constant(0),
                "ocpdl_outputs_total|stream=snapshots": "0+6x30 180+0x300",
                "ocpdl_lag_seconds": "0+0x30 0+60x300",
                "ocpdl_awaited_seconds|partition=1": "0+0x30 0+60x300",
                "ocpdl_radius_active_total|mode=0": constant(0),
            },
        ),
        *coding(
            **{
                "ocpdl_encoder_tensors_total": "0+1920x30 57600+0x300",
                "ocpdl_encoder_lag_records|partition=0": constant(0),
                "ocpdl_encoder_lag_records|partition=1": constant(64),
                "ocpdl_encoder_dictionary_age_seconds|shard=0": "1+0x30 0+60x300",
            }
        ),
    ],
    "it starts": [
        *SHARDS,
        *delayed(written(ocpdl_epoch=late(constant(2), 2), ocpdl_steps_total=late("0+60x300", 2)), 8),
    ],
    "a standby takes over": [*SHARDS, *ended(written(), 30), *delayed(written("b"), 31)],
    "it replays for an hour": [
        *SHARDS,
        *written(
            **{
                "ocpdl_phase|phase=recovering": "1+0x60 0+0x300",
                "ocpdl_phase|phase=running": "0+0x60 1+0x300",
                "ocpdl_lag_records|partition=0": late("40000-200x200", 61),
                "ocpdl_lag_records|partition=1": late("40000-200x200", 61),
                "ocpdl_lag_seconds": late("4000-20x200", 61),
                "ocpdl_steps_total": "0+0x60 0+60x300",
                "ocpdl_epoch": late(constant(2, 300), 61),
                "ocpdl_energy": late(constant(10, 300), 61),
                "ocpdl_surrogate_loss": late(constant(8, 300), 61),
                "ocpdl_prequential_loss": late(constant(8, 300), 61),
                "ocpdl_recoveries_total|standby=cold": late(constant(1, 300), 61),
            }
        ),
    ],
    "nothing comes, and some wait for a full minibatch": [
        *SHARDS,
        *written(
            **{
                "ocpdl_steps_total": constant(0),
                "ocpdl_tensors_total": constant(0),
                "ocpdl_dead_letters_total|error=DecodeError": constant(0),
                "ocpdl_lag_records|partition=0": constant(20),
                "ocpdl_lag_seconds": f"0+60x{MINUTES}",
                "ocpdl_radius_active_total|mode=0": constant(0),
            }
        ),
    ],
    "a record a minute": [
        *SHARDS,
        *written(**{"ocpdl_lag_records|partition=0": "0+1x31 " * 12, "ocpdl_lag_seconds": "0+60x31 " * 12}),
    ],
    "the loss is that of rounding": [
        *SHARDS,
        *written(ocpdl_prequential_loss="1e-12+0x120 5e-12+0x200"),
    ],
}

ILL = {
    "OcpdlNobodyWrites": ([*SHARDS, *ended(written(), 20)], 60, {}, "1"),
    "OcpdlStalled": (
        [
            *SHARDS,
            *written(**{"ocpdl_lag_records|partition=0": constant(500), "ocpdl_steps_total": "0+60x20 1200+0x300"}),
        ],
        60,
        {"shard": "0"},
        "503",
    ),
    "OcpdlLagGrowing": (
        [*SHARDS, *written(**{"ocpdl_lag_records|partition=0": "0+600x400", "ocpdl_lag_seconds": "0+10x400"})],
        60,
        {"shard": "0"},
        "10",
    ),
    "OcpdlDeadLetters": (
        [*SHARDS, *written(**{"ocpdl_dead_letters_total|error=DataError": "0+0x30 0+1920x300"})],
        60,
        {"shard": "0"},
        "50.03%",
    ),
    "OcpdlCheckpointStale": (
        [*SHARDS, *written(ocpdl_unsaved_seconds="0+60x400")],
        380,
        {"shard": "0"},
        "6h 20m 0s",
    ),
    "OcpdlRecoveryLooping": (
        [*SHARDS, *written(ocpdl_term_timestamp_seconds="1 1 2 2 _ 3 4 _ _ 5 6 7")],
        11,
        {"shard": "0"},
        "6",
    ),
    "OcpdlEpochChanged": ([*SHARDS, *written(ocpdl_epoch="2+0x60 _x5 3+0x200")], 80, {"shard": "0"}, ""),
    "OcpdlLossNotFinite": ([*SHARDS, *written(ocpdl_surrogate_loss="8 8 NaN NaN NaN")], 3, {"shard": "0"}, ""),
    "OcpdlLossDiverging": (
        [*SHARDS, *written(ocpdl_prequential_loss="1+0x100 1+0.05x200")],
        220,
        {"shard": "0"},
        "",
    ),
    "OcpdlStructureChanged": (
        [*SHARDS, *written(**{"ocpdl_changes_total|change=structure": "0+0x60 1+0x300"})],
        70,
        {"shard": "0"},
        "",
    ),
    "OcpdlScaleChanged": (
        [*SHARDS, *written(**{"ocpdl_changes_total|change=scale": "2+0x60 3+0x300"})],
        70,
        {"shard": "0"},
        "",
    ),
    "OcpdlRadiusAlwaysActive": (
        [*SHARDS, *written(**{"ocpdl_radius_active_total|mode=0": "0+60x400"})],
        150,
        {"shard": "0", "mode": "0"},
        "100%",
    ),
    "OcpdlChainStuck": (
        [*SHARDS, *written(**{"ocpdl_chains|state=silent": "0+0x30 2+0x300"})],
        60,
        {"shard": "0"},
        "2",
    ),
    "OcpdlAssumptionLost": (
        [*SHARDS, *written(**{"ocpdl_assumption|assumption=(A3)|standing=holds": "1+0x30 0+0x300"})],
        60,
        {"shard": "0", "assumption": "(A3)"},
        "",
    ),
    "OcpdlPartitionAwaited": (
        [
            *SHARDS,
            *written(**{"ocpdl_awaited_seconds|partition=1": "0+0x30 0+60x300"}),
            *coding(**{"ocpdl_encoder_lag_records|partition=0": "0+0x30 0+600x300"}),
        ],
        60,
        {"shard": "0", "partition": "1"},
        "29m 0s",
    ),
    "OcpdlNobodyEncodes": ([*SHARDS, *written(**ROUNDS), *ended(coding(), 20)], 60, {}, ""),
    "OcpdlEncodersStalled": (
        [
            *SHARDS,
            *written(),
            *coding(
                **{
                    "ocpdl_encoder_lag_records|partition=0": constant(500),
                    "ocpdl_encoder_tensors_total": "0+1920x20 38400+0x300",
                }
            ),
        ],
        60,
        {},
        "500",
    ),
    "OcpdlEncodersWaiting": (
        [*SHARDS, *written(), *coding(ocpdl_encoder_waiting_partitions="0+0x20 2+0x300")],
        60,
        {},
        "2",
    ),
    "OcpdlEncodersLagGrowing": (
        [
            *SHARDS,
            *written(),
            *coding(
                **{
                    "ocpdl_encoder_lag_records|partition=0": "20000+600x400",
                    "ocpdl_encoder_lag_records|partition=1": constant(0),
                }
            ),
        ],
        60,
        {},
        "10",
    ),
    "OcpdlDictionaryOld": (
        [
            *SHARDS,
            *written(),
            *coding(),
            *coding("d", **{"ocpdl_encoder_dictionary_age_seconds|shard=0": "0+0x20 0+60x300"}),
        ],
        60,
        {"shard": "0"},
        "39m 0s",
    ),
}
"""Series, the minute at which the alert fires, its labels, and the value that its summary tells."""

MORE = {
    "a loop inside of one process": (
        "OcpdlRecoveryLooping",
        [*SHARDS, *written(**{"ocpdl_recoveries_total|standby=cold": "1+0x40 2+1x20"})],
        50,
        {"shard": "0"},
        "10",
    ),
    "a tensor that cannot be learned": (
        "OcpdlLossNotFinite",
        [*SHARDS, *written(**{"ocpdl_dead_letters_total|error=NumericError": "0+0x5 1+0x300"})],
        8,
        {"shard": "0"},
        "",
    ),
    "a loss that is infinite": (
        "OcpdlLossNotFinite",
        [*SHARDS, *written(ocpdl_prequential_loss="8 8 Inf Inf Inf")],
        3,
        {"shard": "0"},
        "",
    ),
    "a partition without tensors, and minibatches that take one of each in turn": (
        "OcpdlPartitionAwaited",
        [
            *SHARDS,
            *written(
                **{
                    "ocpdl_awaited_seconds|partition=1": "0+0x30 0+60x300",
                    "ocpdl_lag_records|partition=0": constant(500),
                }
            ),
        ],
        60,
        {"shard": "0", "partition": "1"},
        "29m 0s",
    ),
    "encoders that answer, and are all standbys": (
        "OcpdlNobodyEncodes",
        coding(**{"ocpdl_encoder_role|role=encoder": constant(0), "ocpdl_encoder_role|role=standby": constant(1)}),
        30,
        {},
        "",
    ),
    "a learner of partials alone": ("OcpdlNobodyEncodes", [*SHARDS, *written(**ROUNDS)], 30, {}, ""),
    "one shard of two": (
        "OcpdlNobodyWrites",
        [line("ocpdl_shards", constant(2)), *written()],
        60,
        {},
        "1",
    ),
}


def summary(name, labels, value):
    """What Prometheus is to make of the template."""
    (alert,) = (alert for alert in ALERTS if alert.name == name)
    text = re.sub(r"{{ \$value[^}]*}}", value, alert.summary)
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: ({"model": "m"} | labels)[found[1]], text)


def fires(name, lines, minute, labels, value):
    """A test of promtool in which one alert fires."""
    (alert,) = (alert for alert in ALERTS if alert.name == name)
    expected = {
        "exp_labels": {"model": "m", "severity": alert.severity} | labels,
        "exp_annotations": {"summary": summary(name, labels, value), "runbook": alert.runbook},
    }
    asked = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected]}]
    return {"interval": "1m", "input_series": lines, "alert_rule_test": asked}


def silent(lines):
    """A test in which none does, at any time of more than three hours."""
    asked = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for minute in (1, 5, 12, 20, 35, 50, 70, 95, 130, 200)
        for name in NAMES
    ]
    return {"interval": "1m", "input_series": lines, "alert_rule_test": asked}


def run(tmp_path, tests):
    told = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(told, allow_unicode=True))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_promtool_takes_the_rules():
    """`promtool check rules`, with nothing to say."""
    done = subprocess.run(
        [tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_fires(tmp_path):
    """When it should, with the labels and the words that it should have."""
    tests = [fires(name, *case) for name, case in ILL.items()] + [fires(*case) for case in MORE.values()]

    assert sorted(ILL) == sorted(NAMES)
    code, told = run(tmp_path, tests)
    assert code == 0, told


def test_no_alert_fires_while_all_is_well(tmp_path):
    """Nor while a service starts, is taken over, replays, has nothing to do, or little."""
    code, told = run(tmp_path, [silent(lines) for lines in WELL.values()])
    assert code == 0, told


def test_these_tests_can_fail(tmp_path):
    """A test in which nothing is expected to fire fails if something does."""
    lines, minute, *_ = ILL["OcpdlStalled"]
    asked = [{"eval_time": f"{minute}m", "alertname": "OcpdlStalled", "exp_alerts": []}]

    assert run(tmp_path, [{"interval": "1m", "input_series": lines, "alert_rule_test": asked}])[0] == 1


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_alerts_ask_for_what_there_is(alert):
    """Every metric is in the catalogue, and in the series of these tests: or it would be silent for a wrong reason."""
    named = set(re.findall(r"ocpdl_\w+", alert.expression))
    healthy = {re.match(r"\w+", one["series"])[0] for one in WELL["all is well"]}

    assert named
    assert named <= set(series())
    assert named <= healthy


HEADINGS = ("What it means", "What to look at", "What to do", "When to ignore it")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_a_runbook(alert):
    """With the four questions answered, and commands that there are."""
    page = (ROOT / alert.runbook).read_text()

    assert page.startswith(f"# {alert.name}\n")
    assert tuple(re.findall(r"^## (.*)$", page, re.MULTILINE)) == HEADINGS
    assert f"**{alert.severity}**" in page
    named = {name.removesuffix("_bucket") for name in re.findall(r"ocpdl_[a-z_]+", page)}
    assert named <= {name.removesuffix("_bucket") for name in series()}
    assert list(commands(page))
    for line in commands(page):
        check_command(line)


def commands(page):
    """The commands of ours in a page: lines of code, and those in the text."""
    quoted = re.findall(r"`(stream-ocpdl [^`]*)`", page.replace("\n", " "))
    lines = [line.strip() for line in page.splitlines() if line.startswith("    stream-ocpdl ")]
    return (shlex.split(line, comments=True) for line in [*quoted, *lines])


def check_command(words):
    """There is such a command, and it has these options and takes so many arguments."""
    command, words = main, words[1:]
    while isinstance(command, click.Group):
        command, words = command.get_command(click.Context(command), words[0]), words[1:]
    with command.make_context("", list(words)) as context:
        assert not context.args


def test_there_is_no_other_runbook():
    """A page without an alert is of the past."""
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}

    assert pages == set(NAMES)


def test_the_operator_has_the_same_rules():
    """A PrometheusRule has the groups of the rules file."""
    manifest = yaml.safe_load(MANIFEST.read_text())

    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"] == yaml.safe_load(RULES.read_text())


def test_nothing_is_told_of_a_model_before_it_is_known():
    """Step and epoch of a model that is still being recovered are not zero: an alert would see them jump."""
    told = []

    class Seen(Shard):
        def phase(self, name):
            self.doing = name
            told.append((name, self.known))

    serve(World(inputs()), plan(), PACE, watch=Seen(plan()))

    assert told == [("fencing", False), ("recovering", False), ("running", True)]


def test_steps_that_no_checkpoint_has():
    """They grow with each step and each that is replayed; a checkpoint has them all."""
    world, clock = World(inputs()), [0.0]
    shard = Shard(plan(), now=lambda: clock[0])
    pipeline, _ = serve(world, plan(), PACE, watch=shard)
    again = Shard(plan(), now=lambda: clock[0])
    world.checkpoints = []
    serve(world, plan(), PACE, watch=again)

    assert shard.unsaved == again.unsaved == pipeline.progress.state.t > 10
    clock[0] = 60.0
    assert shard.now() - shard.unsaved_since == 60.0
    shard.saved(shard.t, 1)
    assert (shard.unsaved, shard.unsaved_since) == (0, None)


def look(silence, **draws):
    return {labels[0]: number for labels, number in silence.look({key: (n, ()) for key, n in draws.items()})}


def test_a_chain_that_falls_silent():
    """By the draws of the others; one that goes on again is active, one that stays silent has ended."""
    silence = Silence()
    assert look(silence, a=5, b=5, c=7) == {}
    assert look(silence, a=6, b=6, c=8) == {"active": 3, "silent": 0}
    assert look(silence, a=6, b=6 + PATIENCE - 1, c=8 + PATIENCE - 1) == {"active": 3, "silent": 0}
    assert look(silence, a=6, b=6 + PATIENCE, c=8 + PATIENCE) == {"active": 2, "silent": 1}
    assert look(silence, a=7, b=6 + PATIENCE, c=8 + PATIENCE) == {"active": 3, "silent": 0}
    assert look(silence, a=7, b=6 + 2 * FORGOTTEN, c=8 + 2 * FORGOTTEN) == {"active": 2, "silent": 0}
    assert look(silence, b=6 + 2 * FORGOTTEN, c=8 + 2 * FORGOTTEN) == {"active": 2, "silent": 0}


def test_a_new_chain_is_known_once_it_advances():
    """Whether the first draw that is seen is its first or its last, nobody can say."""
    silence = Silence()
    look(silence, a=1)
    look(silence, a=2)

    assert look(silence, a=2 + 100 * PATIENCE, b=9) == {"active": 1, "silent": 0}


def test_status_is_still_json():
    """With the numbers of chains in it."""
    shard = Shard(plan())
    shard.chains = {"a": (1, ())}

    assert json.loads(json.dumps(shard_of(shard)))["chains"] == {}
