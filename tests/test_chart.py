"""The Helm chart: linted, rendered, valid in three versions of Kubernetes; and what is forbidden is refused."""

import json
import re
import shutil
import subprocess
import tomllib
from functools import cache

import pytest
import yaml
from jsonschema import Draft202012Validator

from stream_ocpdl.config.loading import load
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import ConfigError
from tests.chart import CHART, at, defaults, descriptions
from tests.reference import DASHBOARD, ROOT, RULES
from tests.test_alerts import check_command
from tests.tools import go_module, library, tool

VERSIONS = ("1.29", "1.33", "1.37")
EXAMPLES = {"default": None} | {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
FORBIDDEN = sorted((ROOT / "tests" / "helm").glob("*.yaml"))
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
PROMETHEUS = "example/prometheus-operator-crd/monitoring.coreos.com_"
KEDA = "github.com/kedacore/keda/v2@v2.17.2"
CUSTOM = {
    "PodMonitor": (OPERATOR, f"{PROMETHEUS}podmonitors.yaml"),
    "PrometheusRule": (OPERATOR, f"{PROMETHEUS}prometheusrules.yaml"),
    "ScaledObject": (KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml"),
}


def helm(*words):
    command = [tool("helm", "make helm"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def values(path):
    return ["-f", path] if path else []


@cache
def rendered(name, *sets, version=VERSIONS[-1]):
    """All objects, by kind and the part of the name that is theirs."""
    more = [word for one in sets for word in ("--set-json", one)]
    done = helm("template", "weather", CHART, "--kube-version", version, *values(EXAMPLES[name]), *more)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    objects = {(one["kind"], one["metadata"]["name"].removeprefix("weather-stream-ocpdl")): one for one in found}
    assert len(objects) == len(found)
    return objects


def pods(objects):
    """The pods of all kinds of objects: their metadata and spec."""
    for (kind, _), one in objects.items():
        if kind in ("Deployment", "Job"):
            yield one["spec"]["template"]
        elif kind == "Pod":
            yield one


def learner(objects):
    return objects["Deployment", ""]["spec"]["template"]


def settings_of(objects, name=""):
    return objects["ConfigMap", name]["data"]["service.yaml"]


# ── what Helm and Kubernetes say ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", EXAMPLES)
def test_lint_has_nothing_to_say(name):
    """`helm lint --strict`, with the default values and with those of every example."""
    done = helm("lint", "--strict", "--kube-version", VERSIONS[-1], CHART, *values(EXAMPLES[name]))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_object_is_valid(name, version):
    """By the schemas of three versions of Kubernetes, strictly, and custom resources by their own."""
    kubernetes = library("kubernetes_validate")
    for (kind, _), one in rendered(name, version=version).items():
        if kind in CUSTOM:
            own_schema(kind).validate(one)
        else:
            assert kubernetes.validate(one, version, strict=True) == version


def test_what_is_not_valid_is_not():
    """These tests can fail: for a field that is not there, and for one of another type, ours and custom."""
    kubernetes, objects = library("kubernetes_validate"), rendered("production")
    for kind, place in {"Deployment": "spec", "PodMonitor": "spec", "PrometheusRule": "spec"}.items():
        one = json.loads(json.dumps(objects[kind, ""]))
        one[place]["replica"] = 2
        with pytest.raises(Exception, match="replica"):
            own_schema(kind).validate(one) if kind in CUSTOM else kubernetes.validate(one, VERSIONS[0], strict=True)


@cache
def own_schema(kind):
    """The schema of a custom resource, from its definition; what it does not have may not be there."""
    module, file = CUSTOM[kind]
    path = go_module(module) / file
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    return Draft202012Validator(closed(version["schema"]["openAPIV3Schema"]))


def closed(schema):
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema and "apiVersion" not in schema["properties"]:
        inner["additionalProperties"] = False
    return inner


@pytest.mark.parametrize("path", FORBIDDEN, ids=lambda path: path.stem)
def test_what_is_forbidden_is_refused(path):
    """Each of tests/helm, with words that say what is wrong with it."""
    reason = path.read_text().splitlines()[0].removeprefix("# says: ")
    done = helm("template", "weather", CHART, "--kube-version", VERSIONS[-1], "-f", path)

    assert done.returncode != 0
    assert reason in done.stderr
    assert "hunter2" not in done.stderr


# ── encoders, which only code ──────────────────────────────────────────────────────────────────────────────────


def encoding(*sets):
    """The objects of the encoders, where the learner leaves codes to them."""
    words = ["--kube-version", VERSIONS[-1], "--show-only", "templates/encoders.yaml"]
    always = ("encoders.enabled=true", 'settings.learner={"codes": false}')
    more = [word for one in (*always, *sets) for word in ("--set-json", one)]
    done = helm("template", "weather", CHART, *words, *values(EXAMPLES["production"]), *more)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}


SCALING = {
    "fixed": (("encoders.replicas=3",), {"Deployment", "PodDisruptionBudget", "PodMonitor"}),
    "by lag": (("encoders.keda.enabled=true", "encoders.partitions=12"), {"ScaledObject"}),
    "by processors": (("encoders.autoscaling.enabled=true", "encoders.partitions=12"), {"HorizontalPodAutoscaler"}),
}


@pytest.mark.parametrize("name", SCALING)
def test_encoders_are_a_workload_of_their_own(name):
    """Valid in every version, hardened, not selected with the learner, and never more than there are partitions."""
    sets, kinds = SCALING[name]
    objects, kubernetes = encoding(*sets), library("kubernetes_validate")
    for kind, one in objects.items():
        for version in VERSIONS:
            own_schema(kind).validate(one) if kind in CUSTOM else kubernetes.validate(one, version, strict=True)
    pod = objects["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    learners = learner(rendered("production"))

    assert kinds <= set(objects)
    assert container["args"] == ["encode", "--config", "/etc/stream-ocpdl/service.yaml"]
    assert container["securityContext"] == learners["spec"]["containers"][0]["securityContext"]
    assert pod["spec"]["securityContext"] == learners["spec"]["securityContext"]
    selector = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert not selector.items() <= learners["metadata"]["labels"].items()
    assert ("replicas" in objects["Deployment"]["spec"]) == (name == "fixed")
    if name == "by lag":
        (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
        assert objects["ScaledObject"]["spec"]["maxReplicaCount"] == 12
        assert trigger["metadata"]["consumerGroup"] == "weather.encoders"
        assert trigger["metadata"]["topic"] == settings_input(rendered("production"))
    if name == "by processors":
        assert objects["HorizontalPodAutoscaler"]["spec"]["maxReplicas"] == 12


def test_encoders_may_have_an_account_of_their_own():
    """A Secret and variables in place of the learner's, of which nothing is in their pod then; else the learner's."""
    given = 'extraEnv=[{"name": "LEARNERS", "value": "1"}]'
    name = 'encoders.extraEnv=[{"name": "OCPDL_KAFKA__SASL_USERNAME", "value": "encoder"}]'
    own = encoding(given, name, 'encoders.existingSecret="encoder-kafka"')["Deployment"]["spec"]["template"]["spec"]
    shared = encoding(given)["Deployment"]["spec"]["template"]["spec"]

    for pod, secret, variable in ((own, "encoder-kafka", name), (shared, "weather-kafka", given)):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["kafka"]["secret"]["secretName"] == secret
        assert pod["containers"][0]["env"][1:] == json.loads(variable.partition("=")[2])
    assert "weather-kafka" not in json.dumps(own)


def settings_input(objects):
    told = json.loads(settings_of(objects))["input"]
    return told["topic"] if isinstance(told, dict) else told


# ── what the service makes of it ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_service_takes_the_settings(name, tmp_path, monkeypatch):
    """As they are in the ConfigMap, with the environment of the pod, and they make sense."""
    objects = rendered(name)
    (tmp_path / "service.yaml").write_text(settings_of(objects).replace("/run/secrets/kafka", str(tmp_path)))
    for file in re.findall(r"/run/secrets/kafka/([\w.-]+)", settings_of(objects)):
        (tmp_path / file).write_text("what the Secret has")
    (container,) = learner(objects)["spec"]["containers"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "a secret"))
    settings = load(tmp_path / "service.yaml", ()).settings
    try:
        semantics(settings)
    except ConfigError as error:  # the files are read, and are no certificates
        assert re.fullmatch(r"kafka: librdkafka says: ssl.*no certificate or crl found", str(error))  # noqa: PT017

    assert settings.http.host == "0.0.0.0"
    assert {"containerPort": settings.http.port, "name": "http"} in container["ports"]
    if ("ConfigMap", "-topics") in objects:
        assert settings_of(objects, "-topics") == settings_of(objects)


def test_numbers_are_what_was_written():
    """Helm makes floats of all numbers; small and large ones arrive as they are."""
    settings = json.loads(settings_of(rendered("production")))

    assert settings["problem"]["tolerance"] == 1e-8
    assert settings["refusals"]["window"] == 1_000_000
    assert isinstance(settings["refusals"]["window"], int)


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_of_the_secret_are_where_the_settings_say(name):
    """And no secret is in any object."""
    objects = rendered(name)
    kafka = json.loads(settings_of(objects)).get("kafka", {})
    secret = yaml.safe_load(EXAMPLES[name].read_text()).get("existingSecret", {}) if EXAMPLES[name] else {}
    files = {value for value in kafka.values() if str(value).startswith("/run/secrets/kafka/")}
    mounts = {m["mountPath"]: m["name"] for m in learner(objects)["spec"]["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in learner(objects)["spec"]["volumes"]}

    assert files == {f"/run/secrets/kafka/{key}" for what, key in secret.items() if what != "name"}
    if files:
        assert volumes[mounts["/run/secrets/kafka"]]["secret"]["secretName"] == secret["name"]
    assert ("Secret" in {kind for kind, _ in objects}) is False


@pytest.mark.parametrize("name", EXAMPLES)
def test_commands_are_there(name):
    """Of the learner, the job and the test: with the options that they are given."""
    for pod in pods(rendered(name)):
        for container in pod["spec"]["containers"]:
            words = [word.replace("/etc/stream-ocpdl/service.yaml", "README.md") for word in container["args"]]
            check_command(["stream-ocpdl", *words])


def test_new_settings_are_a_new_pod():
    """A change of settings changes the checksum, and one of other values does not."""
    checksums = [
        learner(rendered("default", *more))["metadata"]["annotations"]["checksum/settings"]
        for more in ((), ("replicas=3",), ("settings.threads=3",))
    ]

    assert checksums[0] == checksums[1] != checksums[2]


# ── hardened, watched, and never in its own way ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_is_hardened(name):
    """No root, no rights, no token, no variables of others, nothing to write but what is declared."""
    found = list(pods(rendered(name)))
    assert found
    for pod in found:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]["limits"]) == {"cpu", "memory"}
            caches = {variable["name"]: variable.get("value") for variable in container["env"]}["NUMBA_CACHE_DIR"]
            assert caches in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_start_has_its_time():
    """Until it is ready nobody asks whether it lives; a roll-out waits as long."""
    objects = rendered("mtls")
    (container,) = learner(objects)["spec"]["containers"]
    probe = container["startupProbe"]

    assert probe["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert probe["periodSeconds"] * probe["failureThreshold"] == 7200
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert objects["Deployment", ""]["spec"]["progressDeadlineSeconds"] > 7200


@pytest.mark.parametrize(
    ("sets", "seconds"),
    [
        ((), 150),
        (("settings.kafka.patience_s=100.5",), 231),
        (("terminationGracePeriodSeconds=45",), 45),
    ],
)
def test_an_end_has_its_time(sets, seconds):
    """Longer than a call into the client may hang before it is given up (`Transactions`)."""
    assert learner(rendered("default", *sets))["spec"]["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize("name", EXAMPLES)
def test_selectors_select_the_learner(name):
    """Service, budget and monitor: its pods, and no others. The policy holds for all of ours."""
    objects = rendered(name)
    labels = [pod["metadata"]["labels"].items() for pod in pods(objects)]
    own = learner(objects)["metadata"]["labels"].items()
    selectors = {
        "Service": objects["Service", ""]["spec"]["selector"],
        "Deployment": objects["Deployment", ""]["spec"]["selector"]["matchLabels"],
        "PodDisruptionBudget": objects["PodDisruptionBudget", ""]["spec"]["selector"]["matchLabels"],
    }
    if ("PodMonitor", "") in objects:
        selectors["PodMonitor"] = objects["PodMonitor", ""]["spec"]["selector"]["matchLabels"]
    for selector in selectors.values():
        assert [one for one in labels if selector.items() <= one] == [own]
    if ("NetworkPolicy", "") in objects:
        policy = objects["NetworkPolicy", ""]["spec"]["podSelector"]["matchLabels"]
        assert all(policy.items() <= one for one in labels)


def test_the_network_is_closed_but_for_this():
    """In: the endpoints. Out: names, brokers at their ports, the endpoints for `helm test`, and what is asked for."""

    def ports(rules):
        return [[port["port"] for port in rule["ports"]] for rule in rules]

    spec = rendered("production")["NetworkPolicy", ""]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert ports(spec["ingress"]) == [[9464]]
    assert ports(spec["egress"]) == [[53, 53], [9094], [9464]]
    assert spec["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.0.0.0/16"}}]
    assert ports(rendered("oauth")["NetworkPolicy", ""]["spec"]["egress"]) == [[53, 53], [9095], [9464], [443]]


def test_dashboard_and_alerts_are_those_of_the_project():
    """Byte by byte, with what Helm would take for its own templates."""
    objects = rendered("production")
    board = objects["ConfigMap", "-dashboard"]

    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["stream-ocpdl.json"].rstrip() == DASHBOARD.read_text().rstrip()
    assert objects["PrometheusRule", ""]["spec"] == yaml.safe_load(RULES.read_text())


def test_what_is_off_is_not_there():
    """By default only what every cluster knows."""
    assert {kind for kind, _ in rendered("default")} == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount"),
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("default", "2 processes, of which 1 at most write and the others stand by"),
        ("small", "1 process, and nobody who stands by"),
        ("production", "5 processes, of which 4 at most write and the others stand by"),
    ],
)
def test_notes_tell_what_was_installed(name, said, tmp_path):
    """NOTES.txt is shown by a cluster only: so it is rendered as part of an object."""
    shutil.copytree(CHART, tmp_path / "chart")
    notes = f'{{{{- define "notes" }}}}{(CHART / "templates" / "NOTES.txt").read_text()}{{{{ end -}}}}'
    (tmp_path / "chart" / "templates" / "notes.yaml").write_text(
        notes + 'notes: |\n  {{- include "notes" . | nindent 2 }}\n'
    )
    words = ["--kube-version", VERSIONS[-1], "--show-only", "templates/notes.yaml", *values(EXAMPLES[name])]
    done = helm("template", "weather", tmp_path / "chart", *words)

    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)["notes"]
    assert said in told
    assert ("settings of the example" in told) == (name == "default")
    assert "kubectl -n default rollout status deployment/weather-stream-ocpdl\n" in told


def test_every_value_is_described():
    """By a comment in values.yaml, from which the README is made; and its words end with a full stop."""
    told = descriptions()

    def leaves(value, path=()):
        if path in told or not isinstance(value, dict) or not value:
            yield path
        else:
            for name, below in value.items():
                yield from leaves(below, (*path, name))

    assert [path for path in leaves(defaults()) if path not in told] == []
    assert all(text.endswith(".") and at(defaults(), path) is not Ellipsis for path, text in told.items())


def test_versions_agree():
    """The chart's, the image's, the package's."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == version
    assert re.findall(r"ARG VERSION=(.*)", (ROOT / "Dockerfile").read_text()) == [version]
    assert f"image: stream-ocpdl:{version}\n" in (ROOT / "docker-compose.yaml").read_text()
