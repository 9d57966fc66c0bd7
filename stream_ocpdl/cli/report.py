"""`stream-ocpdl report`: a model in one HTML file."""

import json
from dataclasses import replace
from pathlib import Path

import click

from stream_ocpdl.chronicle import LIMIT, coded, curves, dictionaries, scale_of, steps
from stream_ocpdl.cli.options import Reading, check_shard, store_of, with_settings, with_shard
from stream_ocpdl.config.loading import Loaded, load, show
from stream_ocpdl.config.validation import semantics
from stream_ocpdl.errors import ConfigError, DecodeError, LineageError
from stream_ocpdl.fingerprint import build
from stream_ocpdl.page.report import DRAWN, Report, page
from stream_ocpdl.stream.describing import moment
from stream_ocpdl.stream.kafka import reach
from stream_ocpdl.stream.messages import Snapshot, Version
from stream_ocpdl.stream.snapshots import load as load_loadings
from stream_ocpdl.stream.snapshots import published


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@with_settings
@click.option(
    "--version", "wanted", default="latest", show_default=True, help="Which snapshot: as `snapshot show` has it."
)
@with_shard
@click.option(
    "--limit",
    type=click.IntRange(100),
    default=LIMIT,
    show_default=True,
    help="Codes and records of the journal to read: the newest, and some of all times.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="The file.",
)
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def report(
    file: Path | None,
    config: Path | None,
    overrides: tuple[str, ...],
    wanted: str,
    shard: int,
    limit: int,
    out: Path,
    as_json: bool,
) -> None:
    """Write an HTML file about a model.

    Its atoms drawn as what they are, how it converged, what its codes have in common, which assumptions hold. From its
    topics, or from a FILE that `snapshot show --out` wrote. It opens in any browser, and needs no network. Nothing of
    the model is changed, and it may be running meanwhile.

    Example: stream-ocpdl report --config service.yaml --out weather.html
    """
    if file is not None and (config is not None or overrides):
        raise ConfigError("give a FILE, or --config for the topics of a model; not both")
    made = of_file(file) if file is not None else of_topics(load(config, overrides), wanted, shard, limit)
    text = page(made)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    rank = len(made.sizes)
    said = {"out": str(out), "title": made.title, "atoms": rank, "bytes": len(text.encode()), "missing": made.missing}
    if as_json:
        click.echo(json.dumps(said, indent=1))
        return
    click.echo("\n".join([f"{made.title}: {min(rank, DRAWN)} atoms drawn", *made.missing, f"written to {out}"]))


def of_file(path: Path) -> Report:
    """From a snapshot as a message, or loadings alone."""
    if path.suffix == ".npz":
        loadings = load_loadings(path)
        if not loadings or any(U.ndim != 2 or U.size == 0 or U.shape[1] != loadings[0].shape[1] for U in loadings):
            raise ConfigError(f"{path} has no loadings U1 … Un with one column an atom")
        said = ["A file of loadings alone: axes, units, codes and curves are not known."]
        return Report(path.name, loadings, missing=said, facts={"file": str(path), "written by": software()})
    try:
        snapshot = Snapshot.from_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ConfigError(f"{path} is no snapshot: {error}") from error
    return replace(of_snapshot(snapshot), missing=["A snapshot alone: codes and curves are on the topics."])


def of_snapshot(snapshot: Snapshot, time: str = "") -> Report:
    """What a snapshot says of itself."""
    facts = {
        "model": snapshot.version.model,
        "version": f"{snapshot.version} (model/shard/epoch/step)",
        "tensors learned": f"{snapshot.tensors:,}",
        "published": f"{time} by {snapshot.software}" if time else f"by {snapshot.software}",
        "input": snapshot.input,
        "read on at": ", ".join(f"{p}:{offset}" for p, offset in sorted(snapshot.positions.items())) or "–",
        "weights": f"{snapshot.schedule}; that of the last step {snapshot.weight:.3g}",
        "modes": ", ".join(f"{name} ({len(U)})" for name, U in zip(snapshot.modes, snapshot.loadings, strict=True)),
        "report by": software(),
    }
    return Report(
        f"{snapshot.version.model}, step {snapshot.step:,}",
        snapshot.loadings,
        snapshot.layout,
        snapshot.axes,
        snapshot.atoms,
        card=snapshot.card,
        facts=facts,
    )


def of_topics(loaded: Loaded, wanted: str, shard: int, limit: int) -> Report:
    """All that the topics of a model say."""
    settings = loaded.settings
    _, _, connection = semantics(settings)
    reach(connection)
    if wanted.count("/") == 3:
        shard = _version(wanted).shard
    check_shard(settings, shard)
    plan, topics = replace(settings.plan(), shard=shard), settings.topics()
    known = dictionaries(published(connection, topics.snapshots), wanted, shard, Reading("snapshots"))
    assert known.found is not None  # noqa: S101  (or it would have raised)
    snapshot, missing = known.found.snapshot, []
    if (snapshot.rank, tuple(len(U) for U in snapshot.loadings)) != (plan.problem.rank, plan.problem.shape):
        raise LineageError(f"{snapshot.version} has another shape or rank than the settings: they are of another model")
    scale = scale_of(store_of(settings, connection, shard=shard))
    if scale == 0:
        missing.append("No checkpoint tells the scale of the data: the radii are not known.")
    way = steps(connection, topics.journal, plan, scale, limit, Reading("records of the journal"))
    codes = coded(connection, topics.codes, snapshot.rank, shard, limit, way.forgotten, Reading("codes"))
    if codes.newest.count == 0:
        missing.append(f"{topics.codes} has no codes (any more): what the atoms are used for is not known.")
    found = of_snapshot(snapshot, moment(known.found.timestamp) or "")
    facts = {**found.facts, "digest of the state": way.digest or "–", "numeric fingerprint": way.fingerprint or "–"}
    return replace(
        found,
        codes=codes.newest,
        codes_of=f"the {codes.newest.count:,} newest tensors",
        charts=curves(snapshot.modes, known, way, codes),
        events=way.events,
        facts=facts,
        settings=show(loaded),
        missing=missing,
    )


def _version(text: str) -> Version:
    try:
        return Version.parse(text)
    except DecodeError as error:
        raise ConfigError(f"--version is {error}") from None


def software() -> str:
    """What writes this."""
    built = build()
    return f"stream_ocpdl {built['version']}, Python {built['python']}"
