"""The dashboard: as Grafana wants it, and every expression asked of a real Prometheus that scraped a real run."""

import json
import re
import socket
import subprocess
from contextlib import contextmanager, suppress
from itertools import combinations

import httpx
import numpy as np
import pytest
import yaml

from stream_ocpdl.observe.alerts import ALERTS
from stream_ocpdl.observe.catalogue import series
from stream_ocpdl.observe.dashboard import ROWS
from stream_ocpdl.stream import kafka
from stream_ocpdl.stream.messages import Draw, Tensor
from tests.reference import DASHBOARD, RULES
from tests.test_kafka import PARTITIONS, eventually, model, process  # noqa: F401  (fixtures)
from tests.test_workers import SIZE, Life, Workers
from tests.tools import tool

BOARD = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
UNITS = {"short", "s", "ops", "percentunit", "Bps", "bytes", "bool_yes_no"}


def expressions():
    """Every expression of the dashboard, of panels and annotations."""
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (annotation["expr"] for annotation in BOARD["annotations"]["list"])


def test_the_rows():
    """Health, flow, convergence, chains, dictionary, encoders; each with its panels behind it."""
    titles = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]

    assert titles == ["Health", "Flow", "Convergence", "Chains", "Dictionary", "Encoders"]
    assert len(PANELS) == sum(len(panels) for _, panels in ROWS) > 25


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_how_to_read_it(panel):
    """In one line, then the label of the paper; with a source, a unit that Grafana knows, and expressions."""
    reading, _, paper = panel["description"].partition("\n\n")

    assert re.fullmatch(r"[A-Z0-9].{15,}\.", reading)
    assert not paper or re.fullmatch(
        r"Paper: ((eq|lem|lemma|thm|prop|algorithm|assumption|section|subsection):.*)", paper
    )
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["type"] in ("timeseries", "stat", "table", "state-timeline")
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for target in panel["targets"]:
        assert target["instant"] != target["range"]
        assert target["legendFormat"]


def test_convergence_is_about_the_paper():
    """Every panel of the rows about the model names what it shows."""
    for title, panels in ROWS:
        if title in ("Convergence", "Chains"):
            assert all(panel.shows != "operation" for panel in panels)


def test_panels_do_not_lie_on_each_other():
    """Each has a number and a place of its own, inside of the grid."""
    places = [panel["gridPos"] for panel in BOARD["panels"]]

    assert len({panel["id"] for panel in BOARD["panels"]}) == len(places)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


def test_variables():
    """Data source, model, shards: all that expressions use, and no other."""
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__rate_interval", "__all"}

    assert names == ["datasource", "model", "shard"]
    assert used == set(names)


@pytest.mark.parametrize("expression", list(expressions()))
def test_expressions_ask_for_what_there_is(expression):
    """Metrics of the catalogue, by labels that these have; of the chosen model."""
    named = set(re.findall(r"ocpdl_\w+", expression))
    labels = {label for name in named & set(series()) for label in series()[name]} | {"version", "fingerprint"}
    by = {label for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in group.split(", ")}
    matched = set(re.findall(r'(\w+)=~?"', expression))

    assert named
    assert named <= set(series())
    assert by | matched <= labels
    assert 'model="$model"' in expression or named == {"ocpdl_build_info"}


# ── on a real Prometheus ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def prometheus(directory, *targets):
    """A Prometheus that scrapes addresses every second and has our rules; its client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        here = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"job_name": "ocpdl", "static_configs": [{"targets": [target.removeprefix("http://") for target in targets]}]}
    told = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(told | {"rule_files": [str(RULES)]}))
    command = [tool("prometheus"), f"--config.file={directory / 'prometheus.yaml'}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={here}"]
    with (
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stderr=log, stdout=log) as life,
        httpx.Client(base_url=f"http://{here}") as client,
    ):
        try:

            def ready():
                with suppress(httpx.HTTPError):
                    return client.get("/-/ready").status_code == 200

            assert eventually(ready, 60), (directory / "prometheus.log").read_text()
            yield client
        finally:
            life.terminate()
            life.wait(30)


def asked(client, expression):
    """What Prometheus answers to an expression at this moment."""
    answer = client.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    return answer["data"]["result"]


def chosen(expression, name):
    """With the values of the variables."""
    return expression.replace("$model", name).replace("$shard", ".*").replace("$__rate_interval", "20s")


def values(client, name):
    """What Grafana lets people choose from, for each variable: label_values(series, label) is no PromQL."""
    for variable in BOARD["templating"]["list"][1:]:
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        path, query = f"/api/v1/label/{label}/values", {"match[]": chosen(series, name)}
        yield client.get(path, params=query).json()["data"]


def whole(expression):
    """An alert's expression that says 0 where it is silent, so that one sees what it asks for; of a run that lasts
    seconds there is nothing two hours ago, and nothing that lasts minutes.
    """
    said = re.sub(r" (>=|>|==|!=|<) ", r" \1 bool ", expression).replace(" offset 2h", "")
    return re.sub(r":\w+\]", ":1s]", said)


def draws(model, turn):  # noqa: F811
    """Twenty draws of each of two chains, with something that is no tensor among them."""
    random = np.random.default_rng(turn)
    values = [
        (p, Draw(Tensor(random.random((4, 3))), "run", p, 20 * turn + k).to_bytes())
        for k in range(20)
        for p in PARTITIONS
    ]
    kafka.produce(model.connection, model.topics.input, [*values, (0, b"nonsense")])


@pytest.mark.broker
def test_every_expression_has_an_answer(model, tmp_path):  # noqa: F811
    """Of the dashboard and of the alerts, from a Prometheus that scraped a service on Kafka; no alert fires."""
    model.set(pace={"commit_interval_ms": 20, "checkpoint_every": 4}, digest_every=2, refusals={"consecutive": None})
    wanted = [chosen(expression, model.name) for expression in expressions() if not of_encoders(expression)]
    wanted += [whole(alert.expression) for alert in ALERTS if not of_encoders(alert.expression)]
    silent = chosen(BOARD["annotations"]["list"][0]["expr"], model.name)  # a line where an epoch begins: none did
    wanted[wanted.index(silent)] = whole(silent)
    with process(model, tmp_path) as life:
        with prometheus(tmp_path, address((tmp_path / "log").read_text)) as client:
            turns = iter(range(1000))

            def answered():
                draws(model, next(turns))
                wanted[:] = [expression for expression in wanted if not asked(client, expression)]
                return not wanted

            assert eventually(answered, 180), wanted
            assert list(values(client, model.name)) == [[model.name], ["0"]]
            assert firing(client) == set()
        life.terminate()
        assert life.wait(60) == 0


def address(said):
    """Where a process can be asked, once it has said so."""
    assert eventually(lambda: "endpoints at " in said(), 120)
    line = next(line for line in said().splitlines() if "endpoints at" in line)
    return json.loads(line)["event"].rpartition(" ")[2]


def firing(client):
    """The alerts that do; all rules can be evaluated."""
    groups = client.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(ALERTS)
    assert {rule.get("lastError", "") for rule in rules} == {""}
    return {rule["name"] for rule in rules if rule["state"] == "firing"}


def of_encoders(expression):
    """Whether it asks for something that only encoders have, or a learner that they work for."""
    return re.search(r"ocpdl_(encoder|partials|round)_", expression) is not None


@pytest.mark.broker
def test_every_expression_of_encoders_has_an_answer(broker, tmp_path):
    """The same of a learner of partials and an encoder; a partition that falls silent is named."""
    model = Workers(broker, http={"port": 0})  # noqa: F811
    model.create()
    wanted = [chosen(expression, model.name) for expression in expressions() if of_encoders(expression)]
    wanted += [whole(alert.expression) for alert in ALERTS if of_encoders(alert.expression)]
    lives = [Life(model, tmp_path, command) for command in ("run", "encode")]
    try:
        with prometheus(tmp_path, *(address(lambda life=life: life.text) for life in lives)) as client:

            def answered():
                model.feed(1, model.fed)
                wanted[:] = [expression for expression in wanted if not asked(client, expression)]
                return not wanted

            assert len(wanted) > 15
            assert eventually(answered, 180), wanted
            assert firing(client) == set()
            held_up = f'ocpdl_awaited_seconds{{model="{model.name}"}} > 1'
            kafka.produce(model.connection, model.topics.input, [(p, value(p)) for p in (0, 2, 3) for _ in range(SIZE)])
            assert eventually(lambda: asked(client, held_up), 60)
            assert {found["metric"]["partition"] for found in asked(client, held_up)} == {"1"}
        for life in lives:
            life.end()
    finally:
        for life in lives:
            life.kill()
        kafka.delete_topics(model.connection, [model.settings.topic, *model.settings.made().outputs(1)])


def value(seed):
    """A tensor of those workers."""
    return Tensor(np.random.default_rng(seed).random((8, 6))).to_bytes()
