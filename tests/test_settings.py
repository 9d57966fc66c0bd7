"""Settings: where they come from, what is wrong with them, and that secrets stay secret."""

import json
import logging
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stream_ocpdl import Ball, Box, Columns, NonnegativeBall, NonnegativeColumns, Problem, Simplex
from stream_ocpdl.cli import main
from stream_ocpdl.config.clients import HIDDEN, REFUSED
from stream_ocpdl.config.loading import load, parse, show
from stream_ocpdl.config.places import all_places, variable
from stream_ocpdl.config.settings import Settings
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import SEMANTICS, ConfigError
from stream_ocpdl.logs import written
from stream_ocpdl.ocpdl.spelling import name_of, named

ROOT = Path(__file__).parents[1]
GOOD = {"model": "m", "input": "t", "bootstrap_servers": "x:1", "problem": {"shape": [2, 2], "rank": 1}}
PASSWORD, RAW = "correct horse", "battery staple"
SECRETS = {
    "OCPDL_KAFKA__SASL_PASSWORD": PASSWORD,
    "OCPDL_KAFKA__EXTRA__SASL_OAUTHBEARER_CLIENT_SECRET": RAW,
}
SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "service"}


@pytest.fixture
def file(tmp_path):
    """A file of settings that differs from a good one."""

    def write(**changes):
        path = tmp_path / "service.yaml"
        path.write_text(yaml.safe_dump(GOOD | changes))
        return path

    return write


def said(*args, **options):
    """All the lines that a mistake is answered with."""
    with pytest.raises(ConfigError) as error:
        load(*args, **{"environment": {}, **options})
    return str(error.value).splitlines()


# ── sources ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_later_sources_win(file):
    """Default < file < environment < --set, each setting by itself."""
    path = file(problem={"shape": [2, 2], "rank": 2, "seed": 2, "sparsity": 0.2})
    variables = {"OCPDL_PROBLEM__RANK": "3", "OCPDL_PROBLEM__SEED": "3"}
    problem = load(path, ["problem.rank=4"], variables).settings.problem

    assert (problem.rank, problem.seed, problem.sparsity, problem.ridge) == (4, 3, 0.2, 0.0)


def test_origins(file):
    """It is known where each setting was given last; defaults were given nowhere."""
    origins = load(path := file(threads=1), ["problem.rank=4"], {"OCPDL_THREADS": "2"}).origins

    assert origins[("model",)] == origins[("input", "topic")] == str(path)
    assert origins[("threads",)] == "OCPDL_THREADS"
    assert origins[("problem", "rank")] == "--set problem.rank"
    assert ("checkpoints",) not in origins


def test_without_a_file():
    """The environment is enough."""
    variables = {
        "OCPDL_MODEL": "m",
        "OCPDL_INPUT": "t",
        "OCPDL_BOOTSTRAP_SERVERS": "x:1",
        "OCPDL_PROBLEM": "{shape: [2, 2], rank: 1}",
    }

    assert load(None, (), variables).settings == Settings(**GOOD)


def test_values_are_yaml_and_texts_are_texts(file):
    """A list is written as YAML; a name or a password of digits stays a text; 1e-8 is a number, as in JSON."""
    variables = {
        "OCPDL_MODEL": "007",
        "OCPDL_AXES": "[a, b]",
        "OCPDL_KAFKA__SASL_PASSWORD": "0123",
        "OCPDL_KAFKA__EXTRA__SSL_KEYSTORE_PASSWORD": "null",
    }
    overrides = ["problem.tolerance=1e-8", "problem.shape=[3, 4]", "problem.radius=null", "kafka.ssl_ca=null"]
    settings = load(file(), overrides, variables).settings

    assert settings.model == "007"
    assert settings.axes == ["a", "b"]
    assert settings.kafka.secrets() == ["0123", "null"]
    assert (settings.problem.tolerance, settings.problem.shape, settings.problem.radius) == (1e-8, [3, 4], None)
    assert settings.kafka.ssl_ca is None


def test_librdkafkas_names_have_dots(file):
    """On the command line as they are, in the environment with underscores."""
    variables = {"OCPDL_KAFKA__EXTRA__FETCH_MIN_BYTES": "5"}
    extra = load(file(), ["kafka.extra.linger.ms=7"], variables).settings.kafka.extra

    assert extra == {"fetch.min.bytes": 5, "linger.ms": 7}
    assert load(file(), ["kafka.extra={linger.ms: 7}"], {}).settings.kafka.extra == {"linger.ms": 7}
    lines = said(file(), ["kafka.extra={sasl.oauthbearer.client.secret: hush}"])
    assert any("is a secret, and can be seen here" in line for line in lines)
    assert "hush" not in str(lines)


def test_the_name_of_a_topic_is_an_input(file):
    """An environment may add the format to a topic that a file only names."""
    assert load(file(), (), {"OCPDL_INPUT__FORMAT": "json"}).settings.input.model_dump() == {
        "topic": "t",
        "format": "json",
        "dtype": None,
    }


def test_variables_of_others_do_not_matter(file):
    """Kubernetes sets OCPDL_PORT for a service called ocpdl; the tests set OCPDL_REQUIRE_BROKER."""
    others = {"OCPDL_SERVICE_HOST": "10.0.0.1", "OCPDL_PORT": "tcp://…", "OCPDL_REQUIRE_BROKER": "1", "PATH": "/bin"}

    assert load(file(), (), others).settings == Settings(**GOOD)


def test_the_program_does_not_read_the_environment(monkeypatch):
    """Settings made in Python are what was given, and nothing else."""
    monkeypatch.setenv("OCPDL_THREADS", "7")

    assert Settings(**GOOD).threads is None


def test_save_and_load(tmp_path):
    """What is saved is read back, as by earlier releases in JSON."""
    settings = Settings(**GOOD, batching={"size": 5}, kafka={"extra": {"linger.ms": 3}}, axes=["a", "b"])
    settings.save(tmp_path / "service.json")

    assert json.loads((tmp_path / "service.json").read_text())["problem"] == GOOD["problem"]
    assert load(tmp_path / "service.json", (), {}).settings == settings


def test_a_plan_has_the_bits_that_it_had():
    """The lineage of a model, which its journal holds, does not depend on how its defaults were written down."""
    plain, spelled = (
        Settings(**GOOD | {"problem": GOOD["problem"] | more, "batching": {"size": 5}}).plan()
        for more in ({}, {"sparsity": 0, "radius": "auto", "batch_size": 5, "per": "tensor"})
    )

    assert plain.lineage() == spelled.lineage()
    assert plain.problem.shape == (2, 2)


@pytest.mark.parametrize("name", ["service.json", "service.yaml"])
def test_examples_make_sense(name):
    """What we show can be run."""
    plan, _, connection = semantics(load(ROOT / "examples" / name, (), {}).settings)

    assert plan.model == "weather"
    assert connection.bootstrap_servers == "localhost:9092"


# ── mistakes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_at_once(file):
    """All mistakes of all sources are said, a line each, with where they were made."""
    path = file(problem={"shape": [2, "b"], "ranks": 1})
    path.write_text(path.read_text().replace("bootstrap_servers: x:1\n", ""))
    lines = said(
        path, ["threads=0", "batching.close=soon"], environment={"OCPDL_MODLE": "x", "OCPDL_LOG__LEVEL": "loud"}
    )

    assert sorted(lines) == sorted(
        [
            "OCPDL_MODLE: modle is not a setting; did you mean model?",
            f"{path}: problem.ranks is not a setting; did you mean problem.rank?",
            "bootstrap_servers is missing; put it into the file, or set OCPDL_BOOTSTRAP_SERVERS or"
            " --set bootstrap_servers=…",
            f"{path}: problem.shape[1] must be a whole number, not 'b'",
            "--set threads: threads must be at least 1, not 0",
            "--set batching.close: batching.close must be 'full' or 'linger', not 'soon'",
            "OCPDL_LOG__LEVEL: log.level must be 'debug', 'info', 'warning' or 'error', not 'loud'",
        ]
    )


WRONG = {
    "rank=2": "--set rank: rank is not a setting; did you mean problem.rank?",
    "qqq=2": "--set qqq: qqq is not a setting; there are model, input, ",
    "problem.rank=true": "--set problem.rank: problem.rank must be a whole number, not True",
    "problem.rank.x=1": "--set problem.rank.x: problem.rank must be a whole number, not an object",
    "problem.radius=far": "--set problem.radius: problem.radius must be a number or 'auto', not 'far'",
    "problem=5": "--set problem: problem must be an object with settings, not 5",
    "problem.shape=[": "--set problem.shape is not YAML: ",
    "model": "--set model: it must be like --set problem.rank=5",
    "input.topic=": "--set input.topic: input.topic must be a text that is not empty, not ''",
    "kafka.patience_s=0": "--set kafka.patience_s: kafka.patience_s must be greater than 0",
    "kafka.patience_s=7200": "--set kafka.patience_s: kafka.patience_s must be at most 3000",
    "kafka.patience_s=.inf": "--set kafka.patience_s: kafka.patience_s must be at most 3000",
    "http.port=99999": "--set http.port: http.port must be at most 65535",
    "input.topic=a topic": "--set input.topic: input.topic must be a name of letters, digits and . _ -, not 'a topic'",
    "kafka.extra.a=[]": "--set kafka.extra.a: kafka.extra.a must be true or false or a number or a text, not []",
    "axes=[1, b]": "--set axes: axes[0] must be a text, not 1",
}


@pytest.mark.parametrize(("override", "line"), WRONG.items(), ids=WRONG)
def test_one_mistake_is_one_line(file, override, line):
    """It names the place, what was given and what is wanted."""
    (found,) = said(file(), [override])

    assert found.startswith(line)


TEXTS = {
    "a: [": "is not YAML: line 1, column 5: ",
    "model: a\nmodel: b\n": "is not YAML: line 1, column 1: model is given twice",
    "5": "must hold an object with the settings",
    "": "must hold an object with the settings",
    "\udcff": "is not YAML: it is not UTF-8",
}


@pytest.mark.parametrize(("text", "line"), TEXTS.items(), ids=["open", "twice", "number", "empty", "latin"])
def test_files_that_are_none(tmp_path, text, line):
    """What cannot be read is said with the line."""
    path = tmp_path / "service.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))

    assert said(path)[0].startswith(f"{path} {line}")


VARIABLES = {
    "OCPDL_PROBLEM": ("{", "OCPDL_PROBLEM is not YAML: line 1, column 2: "),
    "OCPDL_AXES": ("[a", "OCPDL_AXES is not YAML: line 1, column 3: "),
    "OCPDL_PROBLEM__SHAPE": ("4,3", "OCPDL_PROBLEM__SHAPE: problem.shape must be a list, not '4,3'"),
    "OCPDL_THREADS__X": ("1", "OCPDL_THREADS__X: threads.x is not a setting; threads is one, with nothing below it"),
    "OCPDL_QQQ__X": ("1", "OCPDL_QQQ__X: qqq.x is not a setting; there are model, input, "),
    "OCPDL_KAFKA__EXTRA": ("5", "OCPDL_KAFKA__EXTRA: kafka.extra must be an object with settings, not 5"),
}


@pytest.mark.parametrize(("name", "value", "line"), [(name, *rest) for name, rest in VARIABLES.items()], ids=VARIABLES)
def test_variables_that_are_wrong(file, name, value, line):
    """They are told as those of a file are."""
    (found,) = said(file(), environment={name: value})

    assert found.startswith(line)


@pytest.mark.parametrize("key", ["_env_file", "_cli_parse_args", "self"])
def test_keys_that_no_setting_can_have(file, key):
    """Whatever stands in a file is a setting, or the mistake of one; nothing else can be switched with it."""
    (line,) = said(path := file(**{key: True}))

    assert line.startswith(f"{path}: {key} is not a setting; ")


def test_a_number_as_a_key(tmp_path):
    """A key of YAML need not be a text."""
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(GOOD) + "7: 8\n")

    assert said(path)[0].startswith(f"{path}: 7 is not a setting; ")


def test_an_empty_section(file):
    """A section of which everything is commented out is the default."""
    assert load(file(kafka=None, batching=None), (), {}).settings == Settings(**GOOD)


@pytest.mark.parametrize("name", [pattern.replace("*", "x") for pattern in REFUSED])
def test_exactly_once_cannot_be_switched_off(file, name):
    """Whatever decides delivery is refused, with the reason."""
    lines = said(file(kafka={"extra": {name: "x"}}))

    assert any(f"kafka.extra may not have {name}: " in line for line in lines)


def test_times_of_the_group(file):
    """They may be given, one or all, and are looked at together with those that are not."""

    def check(**extra):
        given = {name.replace("_", "."): value for name, value in extra.items()}
        semantics(load(file(kafka={"extra": given}), (), {}).settings)

    check(session_timeout_ms=8000)
    check(max_poll_interval_ms=20_000)
    for wrong in ("soon", -1, 10**12):
        with pytest.raises(ConfigError, match=r"session\.timeout\.ms"):
            check(session_timeout_ms=wrong)
    with pytest.raises(ConfigError, match=r"max\.poll\.interval\.ms"):
        check(max_poll_interval_ms=2000)


def test_what_librdkafka_does_not_know(file):
    """A name or a value that librdkafka does not take is a mistake of the operator, found before anything is begun."""
    settings = load(file(kafka={"extra": {"linger.mss": 5}}), (), {}).settings

    with pytest.raises(ConfigError, match=r'librdkafka says: No such configuration property: "linger.mss"'):
        semantics(settings)


SECURITY = {
    "a password for nobody": (
        {"sasl_username": "u"},
        ["kafka.sasl_username has no effect with kafka.security_protocol"],
    ),
    "certificates for nobody": ({"ssl_ca": "/"}, ["kafka.ssl_ca has no effect", "kafka.ssl_ca: / cannot be read"]),
    "nobody": ({"security_protocol": "sasl_ssl"}, ["kafka.sasl_mechanism is missing"]),
    "no password": (SASL, ["kafka.sasl_password is missing, and PLAIN needs it: set OCPDL_KAFKA__SASL_PASSWORD"]),
    "no name": (SASL | {"sasl_username": None, "sasl_password": "p"}, ["kafka.sasl_username is missing"]),
    "no file": (
        SASL | {"sasl_password_file": "/nowhere"},
        ["kafka.sasl_password_file: /nowhere cannot be read: No such"],
    ),
    "empty file": (SASL | {"sasl_password_file": "/dev/null"}, ["kafka.sasl_password_file: /dev/null is empty"]),
    "two": (
        SASL | {"sasl_password": "p", "sasl_password_file": "/f"},
        ["kafka.sasl_password and kafka.sasl_password_file"],
    ),
}


@pytest.mark.parametrize(("kafka", "wanted"), SECURITY.values(), ids=SECURITY)
def test_security_that_makes_no_sense(kafka, wanted):
    """Each is told before a broker is asked."""
    with pytest.raises(ConfigError) as error:
        Settings(**GOOD, kafka=kafka).kafka.options()

    lines = str(error.value).splitlines()
    assert [line[: len(want)] for line, want in zip(lines, wanted, strict=True)] == wanted


def test_security_as_librdkafka_spells_it(tmp_path):
    """Passwords come from their files, less the end of the line; the operator's own settings go with them."""
    (tmp_path / "password").write_text(f" {PASSWORD} \n")
    kafka = SASL | {"sasl_password_file": str(tmp_path / "password"), "extra": {"linger.ms": 3}}

    assert Settings(**GOOD, kafka=kafka).kafka.options() == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "service",
        "sasl.password": f" {PASSWORD} ",
        "linger.ms": 3,
    }


# ── secrets ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_secrets_are_nowhere(file, tmp_path, monkeypatch, capfd):
    """Not in what commands print, what is saved, what is logged, nor in any text of any object."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    path = file(kafka=SASL)
    seen = []
    for command in (
        ["config"],
        ["config", "--set", "problem.ranks=1"],
        ["validate"],
        ["validate", "--connect", "--set", "kafka.patience_s=0.5"],
        ["topics", "check", "--set", "kafka.patience_s=0.5"],
        ["run", "--set", "kafka.patience_s=0.5", "--set", "bootstrap_servers=127.0.0.1:1"],
    ):
        result = CliRunner().invoke(main, [*command, "--config", str(path)])
        seen += [result.output, result.stderr, repr(result.exception), repr(result.exc_info)]
    loaded = load(path)
    loaded.settings.save(tmp_path / "saved")
    _, _, connection = semantics(loaded.settings)
    with written("plain", secrets=loaded.settings.kafka.secrets()):
        logging.getLogger("x").warning("%s %r", RAW, PASSWORD, extra={"topic": PASSWORD})
    seen += [(tmp_path / "saved").read_text(), repr(loaded), str(loaded.settings), show(loaded), repr(connection)]
    seen += [loaded.settings.model_dump_json(), str(loaded.settings.model_dump()), *capfd.readouterr()]

    assert "# sasl_password: set, and not shown  (from OCPDL_KAFKA__SASL_PASSWORD)" in seen[0]
    assert "# sasl.oauthbearer.client.secret: set, and not shown" in seen[0]
    assert connection.options["sasl.password"] == PASSWORD
    assert [text for text in seen if PASSWORD in text or RAW in text] == []


@pytest.mark.parametrize("name", [pattern.replace("*", "x") for pattern in HIDDEN])
def test_secrets_of_librdkafka(name):
    """What looks like a secret is one."""
    assert PASSWORD not in repr(Settings(**GOOD, kafka={"extra": {name: PASSWORD}}))


def test_secrets_do_not_belong_into_files_and_command_lines(file):
    """A secret that others can see is refused, and the line does not repeat it."""
    path = file(kafka={"sasl_password": PASSWORD})
    lines = said(path, [f"kafka.ssl_key_password={PASSWORD}", f"kafka.extra.ssl.keystore.password={RAW}"])

    assert lines == [
        f"{path}: kafka.sasl_password is a secret, and can be seen here; set OCPDL_KAFKA__SASL_PASSWORD"
        " in the environment, or kafka.sasl_password_file",
        "--set kafka.ssl_key_password: kafka.ssl_key_password is a secret, and can be seen here;"
        " set OCPDL_KAFKA__SSL_KEY_PASSWORD in the environment, or kafka.ssl_key_password_file",
        "--set kafka.extra.ssl.keystore.password: kafka.extra.ssl.keystore.password is a secret, and can be seen here;"
        " set OCPDL_KAFKA__EXTRA__SSL_KEYSTORE_PASSWORD in the environment",
    ]


def test_a_secret_in_a_complaint_is_not_shown(file, tmp_path, monkeypatch):
    """Neither one of the wrong type, nor one in the place of its section; nor does the name of a file open a door."""
    assert [line for line in said(file(kafka={"sasl_password": 271828})) if "271828" in line] == []
    assert [line for line in said(file(kafka="271828")) if "271828" in line] == []
    monkeypatch.chdir(tmp_path)
    assert "is a secret" in said(file(kafka={"sasl_password": PASSWORD}).rename("OCPDL_KAFKA__X"))[0]


# ── what is in force ───────────────────────────────────────────────────────────────────────────────────────────


def test_config_prints_a_file(file, tmp_path):
    """What `config` prints has every setting but the secrets, says where each was given, and can be read again."""
    path = file(axes=["ä", "b: #"], kafka={"extra": {"linger.ms": 3}})
    result = CliRunner().invoke(main, ["config", "--config", str(path), "--set", "problem.rank=3"])
    (tmp_path / "printed").write_text(result.stdout)

    assert result.exit_code == 0
    assert "  rank: 3  # --set problem.rank\n" in result.stdout
    assert f"model: m  # {path}\n" in result.stdout
    assert "  seed: 0\n" in result.stdout
    assert all(f"{place[-1]}:" in result.stdout for place in all_places())
    assert load(tmp_path / "printed", (), {}).settings == load(path, ["problem.rank=3"], {}).settings


def test_layers(file):
    """`validate` goes as far as it can, a line each, and ends with the code of the layer that fails."""

    def validate(*overrides, **changes):
        options = [part for override in overrides for part in ("--set", override)]
        result = CliRunner().invoke(main, ["validate", "--config", str(file(**changes)), *options])
        return result.stdout.splitlines(), result.exit_code

    assert validate() == (["syntax: ok", "semantics: ok"], 0)
    lines, code = validate("problem.rank=x", "threads=x")
    assert (lines[0], len(lines), code) == ("syntax: 2 errors", 3, 2)
    lines, code = validate("problem.rank=0", "batching.size=0", "kafka.extra.x=1", "pace.checkpoint_every=0")
    assert lines == [
        "syntax: ok",
        "semantics: 4 errors",
        "  batching.size must be a whole number, at least 1, not 0",
        "  problem.rank must be a whole number, at least 1, not 0",
        "  pace.checkpoint_every must be a whole number, at least 1, not 0",
        '  kafka: librdkafka says: No such configuration property: "x"',
    ]
    assert code == SEMANTICS == 7


def test_names_in_the_environment():
    """Each setting has one, and no two have the same."""
    names = [variable(place) for place in all_places()]

    assert len(set(names)) == len(names)
    assert variable(("problem", "rank")) == "OCPDL_PROBLEM__RANK"


def test_yaml_and_json_agree():
    """JSON is YAML, with all its numbers."""
    text = '{"a": [1, 2.5, 1e-8, -3E+4, 1.5e3], "b": null, "c": true, "d": "x: y"}'

    assert parse(text, "") == json.loads(text)


# ── sets ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sets_by_name(file):
    """A list in a file, a text with commas in the environment or after --set: the same problem; `show` keeps it."""
    names = ["nonnegative", "box 0 1", "simplex", "nonnegative columns 2"]
    problem = {"shape": [2, 2, 2, 2], "rank": 1, "codes": "signed", "code_bound": 2}
    whole = load(file(problem=problem | {"constraints": names}), environment={})
    others = [
        load(file(problem=problem), [f"problem.constraints={', '.join(names)}"], {}),
        load(file(problem=problem), environment={"OCPDL_PROBLEM__CONSTRAINTS": f"[{', '.join(names)}]"}),
    ]
    again = yaml.safe_load(show(whole))["problem"]["constraints"]
    wanted = Problem(
        shape=(2, 2, 2, 2),
        rank=1,
        constraints=("nonnegative", Box(0.0, 1.0), Simplex(), NonnegativeColumns(2.0)),
        codes="signed",
        code_bound=2.0,
    )

    assert again == names
    assert all(loaded.settings.plan().problem == wanted for loaded in (whole, *others))
    assert load(file(), environment={}).settings.plan().problem == Problem(shape=(2, 2), rank=1)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ("cube 1", "problem.constraints must be auto, nonnegative, signed, box L U"),
        ("box 1", "problem.constraints must be"),
        ("box 1 0", "problem.constraints: a box needs a lower bound below the upper one, not 1.0 and 0.0"),
        ("simplex -1", "problem.constraints: the total of a simplex must be positive, not -1.0"),
        ("", "problem.constraints must be"),
        (["simplex"], "problem.constraints must be one for each mode"),
        (["simplex", "ball nan"], "problem.constraints must be"),
    ],
)
def test_sets_that_make_no_sense(file, constraints, message):
    """One line, with the place of the setting."""
    loaded = load(file(problem={"shape": [2, 2], "rank": 1, "constraints": constraints}), environment={})
    with pytest.raises(ConfigError, match=message) as error:
        loaded.settings.plan()

    assert len(str(error.value).splitlines()) == 1


def test_every_set_has_a_name():
    """What `name_of` writes, `named` reads."""
    sets = ["auto", "signed", Box(-1, 2), Box(0.0, float("inf")), Simplex(3), Ball(2), Columns(), NonnegativeBall(0.1)]

    assert [named(name_of(C)) for C in sets] == sets
