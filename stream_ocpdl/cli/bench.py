"""`stream-ocpdl bench`: the paper's experiments, run again on this machine."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import click

from stream_ocpdl.errors import OcpdlError
from stream_ocpdl.experiments import authors, ncpd, pictures
from stream_ocpdl.experiments import clips as told_of_clips
from stream_ocpdl.experiments import image as painting
from stream_ocpdl.experiments import networks as graphs
from stream_ocpdl.experiments import text as topics
from stream_ocpdl.experiments import video as cortex
from stream_ocpdl.experiments import weather as days
from stream_ocpdl.experiments.page import write
from stream_ocpdl.experiments.races import NEAR
from stream_ocpdl.experiments.records import Document, document, keep, spelled
from stream_ocpdl.experiments.tensors import folder
from stream_ocpdl.experiments.through import reached, streamed
from stream_ocpdl.sizing import status
from stream_ocpdl.stream.messages import CHUNK

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """Run the paper's experiments again: errors, times, pictures.

    They need no settings and no service. Each takes data from a folder (--data, or OCPDL_DATA), and draws a stand-in
    for what is not there; docs/paper.md shows what came out on one machine.

    Example: stream-ocpdl bench paper --quick --only synthetic
    """


def with_data(command: F) -> F:
    """Options of every experiment."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output."),
        click.option(
            "--out", type=click.Path(path_type=Path, file_okay=False), help="A folder for figures and pictures."
        ),
        click.option("--quick", is_flag=True, help="Small and short: for a look, not for figures."),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            envvar="OCPDL_DATA",
            help="A folder with data; OCPDL_DATA if it is not given, and stand-ins without either.",
        ),
    ):
        command = option(command)
    return command


@bench.command()
@with_data
@click.option(
    "--only", multiple=True, type=click.Choice(list(ncpd.LENGTHS)), help="This tensor; repeatable. All without it."
)
@click.option("--repeats", type=click.IntRange(1), help="Runs of every contender, each with a seed of its own.")
@click.option(
    "--authors",
    "theirs",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A checkout of the authors' code, HanbaekLyu/OnlineCPDL, which then takes part; its modules are run.",
)
def paper(
    data: Path | None,
    quick: bool,
    out: Path | None,
    as_json: bool,
    only: tuple[str, ...],
    repeats: int | None,
    theirs: Path | None,
) -> None:
    """Compare online learning with ALS, MU and TensorLy's HALS: error against CPU time on one thread.

    The paper's figure, with its weights and radii and with our default, on the paper's tensors or what is nearest to
    them. Errors are the same for the same seeds; times are this machine's. All of it takes about ten minutes.

    Example: stream-ocpdl bench paper --quick
    """
    data = ready(data, out)
    code = {} if theirs is None else {"authors": authors.told(authors.checkout(theirs))}
    cases = [ncpd.run(name, data, quick, repeats, progress, theirs) for name in only or tuple(ncpd.LENGTHS)]
    options = [("--data", data), ("--quick", quick), ("--only", only), ("--repeats", repeats), ("--authors", theirs)]
    name = "paper" if theirs is None else "authors"  # kept beside one without them, which may have more cases
    found = document(name, spelled("paper", options), quick, cases=cases, **code)
    if out is not None:
        pictures.races(cases, out / f"{name}.png")
    tell(found, out, as_json, lambda: "\n".join(line for case in cases for line in lines(case)))


@bench.command()
@with_data
@click.option("--splits", type=click.IntRange(1), help="How often patches are drawn anew.")
@click.option(
    "--through-kafka",
    "servers",
    metavar="SERVERS",
    help="Stream the patches through this broker, too, and compare what the service learns with what is learned here.",
)
def image(
    data: Path | None, quick: bool, out: Path | None, as_json: bool, splits: int | None, servers: str | None
) -> None:
    """Learn patches of a painting in three shapings: atoms, held-out errors, the picture put together again.

    A patch is learned as 20 × 20 × 3, as 400 × 3, or as a vector of 1200. The data may also be an image. With
    --through-kafka the service learns the same stream from a topic, which is made and removed again.

    Example: stream-ocpdl bench image --quick
    """
    if out is not None:
        pictures.figure_of(1, 1)
    if servers is not None:
        reached(servers)  # both now, and not when all is over
    found = painting.run(data, quick, splits, progress)
    body = found.body | ({} if servers is None else {"kafka": compared(servers, data, quick)})
    options = [("--data", data), ("--quick", quick), ("--splits", splits)]
    command = spelled("image", [*options, ("--through-kafka", servers and "SERVERS")])
    if out is not None:
        pictures.dictionaries(list(found.atoms), list(found.atoms.values()), out / "image-atoms.png")
        titles = ["the picture", *found.restored]
        pictures.paintings(titles, [found.image, *found.restored.values()], out / "image-restored.jpg")
    tell(document("image", command, quick, **body), out, as_json, lambda: "\n".join(told(body)))


@bench.command()
@with_data
@click.option("--clips", type=click.IntRange(1), help="How many clips are learned.")
@click.option(
    "--through-kafka",
    "servers",
    metavar="SERVERS",
    help="Stream the clips through this broker, too, and compare what the service learns with what is learned.",
)
def video(
    data: Path | None, quick: bool, out: Path | None, as_json: bool, clips: int | None, servers: str | None
) -> None:
    """Learn clips of a video: atoms that are a picture and its course over time, at full resolution.

    Clips of 50 frames of the paper's video take 92 MB each, the process below 5 GB, and a step some seconds. The data
    may also be a video. With --through-kafka the service learns the same clips from a topic, in pieces; the broker
    keeps them until the end, which is 18 GB of 200 clips.

    Example: stream-ocpdl bench video --quick
    """
    if out is not None:
        pictures.figure_of(1, 1)
    if servers is not None:
        reached(servers)
    found = cortex.run(data, quick, clips, progress)
    if out is not None:
        pictures.beside_courses(found.pictures, found.courses, out / "video.jpg")
    body = found.body | ({} if servers is None else {"kafka": clips_through(servers, data, quick, found)})
    options = [("--data", data), ("--quick", quick), ("--clips", clips)]
    command = spelled("video", [*options, ("--through-kafka", servers and "SERVERS")])
    tell(document("video", command, quick, **body), out, as_json, lambda: "\n".join(told_of_clips.lines(body)))


@bench.command()
@with_data
def weather(data: Path | None, quick: bool, out: Path | None, as_json: bool) -> None:
    """Learn days of 36 cities in three groupings of their modes, and a year with gaps.

    Example: stream-ocpdl bench weather --quick
    """
    data = ready(data, out)
    found = days.run(data, quick, progress)
    if out is not None:
        shown = [
            (f"{name}, {'R = 1' if rank == 1 else f'one of {rank}'}", days.drawn_of(found.atoms[name, rank]))
            for rank in days.RANKS
            for name in days.GROUPINGS
        ]
        pictures.curves(shown, days.MEASURES, out / "weather.png")
    finish("weather", data, quick, out, as_json, found.body, of_days)


def of_days(body: dict[str, Any]) -> list[str]:
    """The weather for people."""
    gaps = body["gaps"]
    return [
        f"{body['source']}, {' × '.join(map(str, body['shape']))}; {body['windows']} windows of {days.HOURS} h",
        f"{'grouping':32}{'R':>4}{'error':>9}{'swing':>9}",
        *(f"{r['grouping']:32}{r['rank']:4}{r['error']:9.4f}{r['swing']:9.4f}" for r in body["rows"]),
        f"{gaps['source']}, {gaps['missing']:.1%} missing, {gaps['windows']} windows: held-out cells are missed"
        f" by {gaps['error']:.3f} ± {gaps['deviation']:.3f} deviations, by city and hour's mean by {gaps['mean']:.3f}",
    ]


@bench.command()
@with_data
def text(data: Path | None, quick: bool, out: Path | None, as_json: bool) -> None:
    """Learn topics of a year of headlines from sparse tensors: words of each atom, and its weeks.

    Example: stream-ocpdl bench text --quick
    """
    data = ready(data, out)
    body, activity = topics.run(data, quick, progress)
    if out is not None:
        pictures.activities([" ".join(row["words"][:4]) for row in body["rows"]], activity, out / "text.png")
    finish("text", data, quick, out, as_json, body, of_topics)


def of_topics(body: dict[str, Any]) -> list[str]:
    """Topics for people."""
    return [
        f"{body['source']}, {' × '.join(map(str, body['shape']))}; {body['steps']} steps of {body['batch']} tensors",
        f"{'peak':12}{'share':>6}{'spread':>8}  words",
        *(f"{r['peak']:12}{r['peak_share']:6.2f}{r['spread']:8.1f}  {' '.join(r['words'])}" for r in body["rows"]),
    ]


@bench.command()
@with_data
def networks(data: Path | None, quick: bool, out: Path | None, as_json: bool) -> None:
    """Learn motifs of graphs: patches of the adjacency matrix along chains of nodes, and each graph by the others'.

    Example: stream-ocpdl bench networks --quick
    """
    data = ready(data, out)
    found = graphs.run(data, quick, progress)
    if out is not None:
        names = [row["graph"] for row in found.body["graphs"]]
        pictures.motifs(list(graphs.SETTINGS), names, list(found.atoms.values()), out / "networks.png")
    finish("networks", data, quick, out, as_json, found.body, of_graphs)


def of_graphs(body: dict[str, Any]) -> list[str]:
    """Motifs for people."""
    names = [row["graph"] for row in body["graphs"]]
    return [
        f"chains of {body['k']} nodes, {body['rank']} atoms, {body['steps']} steps of {body['batch']} patches,"
        f" {body['repeats']} runs",
        *(
            f"{r['graph']} ({r['source']}): {r['nodes']} nodes, {r['edges']} edges; {r['differ']:.1f} of a chain"
            f" differ, {r['off_chain']:.1%} edges off it, {r['even']:.1%} evenly apart, gathered on {r['gathered']:.0f}"
            f" nodes; the mean patch misses {r['mean']['error']:.4f} ± {r['mean']['deviation']:.4f}"
            for r in body["graphs"]
        ),
        f"{'graph':16}{'':14}{'setting':20}  held-out error",
        *(
            f"{r['graph']:16}{r['shaping']:14}{r['setting']:20}  {r['error']:.4f} ± {r['deviation']:.4f}"
            for r in body["rows"]
        ),
        f"{'dictionary of / patches of':28}{''.join(f'{name:>14}' for name in names)}",
        *(
            f"{name:28}{''.join(f'{error:14.4f}' for error in row)}"
            for name, row in zip(names, body["crossed"], strict=True)
        ),
    ]


@bench.command()
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder that experiments were given with --out.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("paper.md"),
    show_default=True,
    help="Where the page is written; its pictures go to a folder beside it.",
)
def page(results: Path, out: Path) -> None:
    """Write a page, in Markdown, of what experiments left behind.

    Example: stream-ocpdl bench page --results results --out paper.md
    """
    click.echo(f"{out}: {', '.join(write(results, out))}")


def compared(servers: str, data: Path | None, quick: bool) -> list[dict[str, Any]]:
    """Each shaping by the service and by the learner alone, from the same patches in the same order."""
    sizes = painting.QUICK if quick else painting.FULL
    pool = painting.patches(painting.picture(data, quick)[0], sizes.pool, 0, 0)
    rows = []
    for shaping in painting.SHAPINGS:
        layout, problem = painting.problem_of(shaping, painting.PAPER, sizes, 0)
        there = streamed(servers, layout, problem, painting.minibatches(pool, sizes, 0))
        (here,) = painting.learn(shaping, painting.PAPER, sizes, pool, 0)
        same = all(U.tobytes() == V.tobytes() for U, V in zip(here, there.loadings, strict=True))
        rows.append({"shaping": shaping, "seconds": there.seconds, "same_bits": same})
        progress(f"{shaping} through Kafka: {there.seconds:.1f} s")
        if not same:
            raise OcpdlError(f"{shaping}: what the service learned is not what the learner alone did")
    return rows


def clips_through(servers: str, data: Path | None, quick: bool, found: cortex.Found) -> dict[str, Any]:
    """The clips by the service, as float32 and in pieces, each made when it is sent."""
    sizes = cortex.QUICK if quick else cortex.FULL
    frames, _ = cortex.frames_of(data, quick)
    layout, problem = cortex.problem_of(frames, sizes)
    count = found.body["clips"]
    sent = cortex.clips_of(frames, cortex.starts(frames, sizes, count), sizes.length)
    there = streamed(servers, layout, problem, sent, count)
    progress(f"{count} clips through Kafka: {there.seconds:.1f} s")
    if cortex.digest(there.loadings) != found.bits:
        raise OcpdlError("what the service learned of the clips is not what the learner alone did")
    size = 4 * prod(layout.shape)
    told = {"clips": count, "message_bytes": size, "pieces": -(-size // CHUNK), "seconds": there.seconds}
    return told | {"same_bits": True, "peak_bytes": status("VmHWM")}


def told(body: dict[str, Any]) -> list[str]:
    """The image for people."""
    shape = " × ".join(map(str, body["shape"]))
    floors = [floor for floor in body["offline"] if floor is not None]
    return [
        f"{body['source']}, {shape}; {body['rank']} atoms, minibatches of {body['batch']} from {body['pool']} patches,"
        f" {body['splits']} splits; errors of as many held-out patches",
        f"{'shaping':12}  {'setting':20}{'steps':>6}  {'held-out error':>15}  the whole picture",
        *(shaped(row) for row in body["rows"]),
        *([f"offline, NMF of the pool: {sum(floors) / len(floors):.4f}"] if floors else []),
        *(
            f"{row['shaping']} through Kafka: {row['seconds']:.1f} s, the same bits as without"
            for row in body.get("kafka", [])
        ),
    ]


def shaped(row: dict[str, Any]) -> str:
    """A shaping with a setting: the error of held-out patches, and of the picture if it was put together."""
    whole = f"  {row['picture']:.4f}" if "picture" in row else ""
    error = f"{row['error']:.4f} ± {row['deviation']:.4f}"
    return f"{row['shaping']:12}  {row['setting']:20}{row['steps']:6}  {error}{whole}"


def ready(data: Path | None, out: Path | None) -> Path | None:
    """The folder of data; what is missing, also to draw pictures, is said now, and not when all is over."""
    if out is not None:
        pictures.figure_of(1, 1)
    return folder(data)


def finish(
    name: str,
    data: Path | None,
    quick: bool,
    out: Path | None,
    as_json: bool,
    body: dict[str, Any],
    page: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Keep and print an experiment that has no options but those of every one."""
    command = spelled(name, [("--data", data), ("--quick", quick)])
    tell(document(name, command, quick, **body), out, as_json, lambda: "\n".join(page(body)))


def progress(text: str) -> None:
    """Where it is."""
    click.echo(text, err=True)


def tell(found: Document, out: Path | None, as_json: bool, page: Callable[[], str]) -> None:
    """Keep the figures, and print them."""
    if out is not None:
        progress(f"written to {keep(out, found)}")
    click.echo(json.dumps(found, ensure_ascii=False) if as_json else page())


def lines(case: dict[str, Any]) -> list[str]:
    """A tensor for people: a line for each contender, then who was ahead."""
    shape = " × ".join(map(str, case["tensor"]["shape"]))
    near = "".join(f"{f'{percent:g} %':>9}" for percent in NEAR)
    return [
        f"{case['case']} ({case['source']}), {shape}, {case['tensor']['entries']:.2%} entries, {case['repeats']} runs;"
        f" best error {case['best']:.5f}",
        f"  {'':28}{'steps':>6}  {'error':>17}{'ms':>9}{near}  (A3)",
        *(f"  {one(row)}" for row in case["rows"]),
        *(f"  {against(row)}" for row in case["against"]),
        "",
    ]


def one(row: dict[str, Any]) -> str:
    """A contender: last error, CPU ms in all, and until so much of the way to the best is left."""
    near = "".join(f"{'–' if ms is None else f'{ms:.1f}':>9}" for ms in row["near"])
    error = f"{row['error']:.5f} ± {row['deviation']:.5f}"
    return f"{row['contender']:28}{row['steps']:6}  {error:>17}{row['ms']:9.1f}{near}  {row['a3'] or ''}".rstrip()


def against(row: dict[str, Any]) -> str:
    """Our default against a peer."""
    if row["at_or_below"] == row["times"]:
        return f"our default is at or below {row['peer']} at every time"
    return (
        f"our default is above {row['peer']} at {row['times'] - row['at_or_below']} of {row['times']} times, from"
        f" {1e3 * row['above_from']:.1f} to {1e3 * row['above_until']:.1f} ms, by at most {100 * row['worst']:.2g} %"
    )
