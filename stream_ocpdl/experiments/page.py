"""docs/paper.md: what experiments left behind in a folder, in words, tables and pictures.

Figures and what follows from them are taken from the files. What only eyes can say of a picture is written here, and
holds for the painting and the seeds that it names.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream_ocpdl.errors import ConfigError
from stream_ocpdl.experiments import clips, image, motifs, ncpd, text, weather
from stream_ocpdl.experiments.markdown import place, shown, table
from stream_ocpdl.experiments.races import NEAR, Curve, Mark, compare
from stream_ocpdl.experiments.records import Document, kept

PICTURES = {
    "paper": ("paper.png",),
    "image": ("image-atoms.png", "image-restored.jpg"),
    "video": ("video.jpg",),
    "weather": ("weather.png",),
    "text": ("text.png",),
    "networks": ("networks.png",),
}

INTRODUCTION = """\
# The paper's experiments, run again

*Online nonnegative CP-dictionary learning for Markovian data* on this project's code, with the paper's data or what
is nearest to them. This page is written by `stream-ocpdl bench page`, of what the commands below left behind.
Errors are the same for the same seeds and data; times are those of one machine, which others used as well, and
count by their ratios. [Beside other software](peers.md) says what else there is, and what it has.
"""

DECOMPOSITION = """\
## Decomposition of one tensor

The paper's figure: reconstruction error against CPU time on one thread, R = 5. Online learning sees a fifth of the
slices along the last mode at a time; offline methods see all of it. ALS and MU are Algorithms 6 and 7. A sparse
tensor is met by its entries, by all three alike. “All cells” are the same two methods over the whole array, as the
paper runs them, and so is TensorLy's HALS; where there are more than 30 million cells these are left out. “20news”
is rebuilt from the raw texts, “headlines” are the nearest that can be had to the paper's 203 × 7000 × 700, and
“twitter”, which its authors withhold, is drawn: documents of norm one, with about ten words each."""

MEANT = """\
The paper prints its weights as w_t = c′t^−β/log t with w₁ = c′. For c′ > 1 these are no weights in (0, 1]; here c′
belongs to the radius alone, and weights are t^−β/log t. It says that in all cases (A3) holds. It does not:"""

CLAIMS = """\
**Where the paper's claims hold here.** Online learning comes down faster than ALS and MU, and with a large c′ the
radius costs nothing: so it is on the synthetic tensor and on “twitter”, and on “headlines weeks” until all are
within some hundred-thousandths of each other. On the synthetic tensor exact ALS passes below in the end, by a
thousandth, as one expects of minibatches.

**Where they do not.** On “20news” and “headlines months” ALS that goes over entries is ahead at all times, and MU
at nearly all. There a step takes longer than an iteration over entries: only 26 and 29 slices lie along the last
mode, so that a fifth of them saves little, while B, which a step goes over, is dense. Against methods that go over
all cells, as the paper ran them, online learning is at or below on “headlines months” at every time, and on
“20news” for the first part of the race. On both the automatic norm bound of the words, meant to be loose, is met
from about the tenth step on, and such steps take two to three times as long: without it (β = 0.75, c′ = 1000) as
many steps take half the time or less. A new document is explained less well than those just learned, so its codes are
smaller, and atoms grow to make up for it; left free, words come to about five times the norm that they begin with, and
the bound is four times. The paper finds c′ = 1 too small for one tensor of four, and β without
influence. Here c′ = 1 is too small for every tensor, and c′ = 10 for all but the synthetic one: 5000 words that
begin uniform in [0, 1] are far from the scale of the data. And with equal c′, β = 0.75 comes to a lower error than
β = 1 every time. Five atoms explain little of the texts, so that all errors there are near one.
"""

AUTHORS = """\
### The authors' code

The same races once more, with the code that the authors published (HanbaekLyu/OnlineCPDL, by its path), which knows
whole arrays only. Its steps draw a fifth of the slices with replacement, its columns have norm at most one, loadings
move by one projected gradient step a column, and codes are found by thirty sweeps. All errors here are those with
optimal codes."""

PAINTING = """\
## Patches of a painting

The paper's figure of the café: 24 atoms of patches of 20 × 20 pixels, learned as they are, with their space as one
mode, and as vectors; 400 steps, λ = 1, w_t = 1/t. Beside it the same without a penalty, with our default weights,
and with columns of norm at most one, as the authors' code has them. The error is that of held-out patches with
optimal nonnegative codes."""

WEATHER = """\
## Weather of 36 cities

The paper's figure of the weather: windows of 24 hours that overlap by 4, cities × hours × measurements, in three
groupings of their modes, each in [0, 1]; they come in their order, one a step, w_t = 1/t, λ = 0, once over all. The
paper does not say which hours it took, nor how it scaled them. The error is that of all windows under the last
dictionary, ‖X − X̂‖/‖X‖. The swing is how far the atom that is drawn varies over its hours, as a share of its norm; of
25 atoms it is the one with the largest swing, of those at least a quarter as large as the most used one."""

SEEN_WEATHER = """\
Looked at: the qualities are those that the paper describes. As it is, an atom has one curve, the same in every panel up
to a factor; with hours and measurements as one mode each measurement has its own, the same in all cities up to a factor
(in the atom that is drawn humidity is high while temperature is low); with cities and hours as one mode every city has
its own. But a single atom shows no daily cycle here: windows begin every 20 hours, so at six times of the day in turn,
and a mean over them is nearly flat, whatever the grouping. The cycles are in the dictionaries of 25.
"""

TEXT = """\
## Topics of a year of headlines

Weeks × words, a tensor for the k-th headline of every week, by its entries; default settings. An atom is told by its
most frequent words, its strongest week with the share that it has of the atom, and its spread: about how many weeks it
lasts (1/Σu² of its activity u as shares). Names are those of the file; nothing is known to the learner of dates."""

SEEN_TEXT = """\
What lasts all year, and what does not, come apart without being asked for: courts, police, councils and governments
are spread over the year, while the protests against the war in Iraq, the war, SARS, aid in the drought and New Year's
Eve stand at their dates. Some atoms mix matters of the same weeks (the World Cup beside troops), and several are about
much the same police and governments.
"""

LOOKED_AT = "Looked at (λ = 1, the first split): "


def write(results: Path, out: Path) -> list[str]:
    """Write the page, and put pictures that were drawn beside it; the experiments that it tells of."""
    found = {name: document for name in PICTURES if (document := kept(results, name)) is not None}
    if not found:
        raise ConfigError(f"there is nothing in {results}: stream-ocpdl bench paper --out {results} puts it there")
    theirs = kept(results, "authors")
    parts = [INTRODUCTION, conditions([*found.values(), *([] if theirs is None else [theirs])])]
    if "paper" in found:
        parts += decomposition(found["paper"], results)
    if theirs is not None:
        parts += of_authors(theirs)
    if "image" in found:
        parts += painting(found["image"], results)
    if "video" in found:
        parts += clips.section(found["video"], results)
    if "weather" in found:
        parts += of_days(found["weather"], results)
    if "text" in found:
        parts += of_topics(found["text"], results)
    if "networks" in found:
        parts += motifs.section(found["networks"], results)
    try:
        (out.parent / "pictures").mkdir(parents=True, exist_ok=True)
        for name in found:
            for file in filter(lambda file: (results / file).exists(), PICTURES[name]):
                shutil.copyfile(results / file, out.parent / "pictures" / place(file))
        out.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from error
    return list(found)


def conditions(found: Sequence[Document]) -> str:
    """Each command, and on what it ran."""
    rows = []
    for document in found:
        under = dict(document["conditions"])
        machine, cores = under.pop("cpu"), str(under.pop("cores"))
        command = f"`{document['command']}`" + (" (a quick look, not figures)" if document["quick"] else "")
        rows.append([command, machine, cores, ", ".join(f"{name} {version}" for name, version in under.items())])
    return table(["command", "CPU", "cores used", "versions"], rows)


# --- decomposition ---------------------------------------------------------------------------------------------------


def decomposition(document: Document, results: Path) -> list[str]:
    """Tables of errors and times, and who was ahead."""
    cases = document["cases"]
    head = [case["case"] for case in cases]
    return [
        DECOMPOSITION + "\n",
        *shown(results, "paper.png", "Error against CPU time, a panel for each tensor"),
        f"The last error, mean ± deviation over runs ({_runs(cases)}):\n",
        table(["", *head], _cells(cases, lambda row: f"{row['error']:.5f} ± {row['deviation']:.5f}")),
        f"CPU ms until {NEAR[0]:g} %, and until {NEAR[1]:g} %, of the way from no factors at all (error 1) to the least"
        " error of the case is left, the median; – is never:\n",
        table([f"{NEAR[0]:g} % / {NEAR[1]:g} %", *head], _cells(cases, near)),
        "At how many percent of the times (evenly in the logarithm, while both run) online learning is at or below ALS,"
        " and at or below MU, in the mean:\n",
        table(["ALS / MU", *head], _ahead(cases)),
        *(f"- {verdict(case)}" for case in cases),
        "",
        *([CLAIMS] if all(case["source"] in ncpd.KNOWN for case in cases) and len(cases) == len(ncpd.KNOWN) else []),
        MEANT + "\n",
        *(f"- {line}" for line in assumptions()),
        "",
    ]


def near(row: dict[str, Any]) -> str:
    """Times to come near the best."""
    return " / ".join("–" if ms is None else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}" for ms in row["near"][:2])


def _runs(cases: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{case['case']} {case['repeats']}" for case in cases)


def _names(cases: Sequence[dict[str, Any]]) -> list[str]:
    """All contenders, in the order in which they come."""
    return list(dict.fromkeys(row["contender"] for case in cases for row in case["rows"]))


def _cells(cases: Sequence[dict[str, Any]], cell: Any) -> list[list[str]]:
    by = [{row["contender"]: cell(row) for row in case["rows"]} for case in cases]
    return [[name, *(rows.get(name, "") for rows in by)] for name in _names(cases)]


def runs_of(case: dict[str, Any]) -> dict[str, list[Curve]]:
    """The curves of a case."""
    return {row["contender"]: [[Mark(*mark) for mark in curve] for curve in row["curves"]] for row in case["rows"]}


def _ahead(cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Shares of times at or below ALS and MU."""
    rows = []
    for name in (name for name in _names(cases) if name.startswith("OCPDL")):
        shares = []
        for case in cases:
            found = [compare(runs_of(case), name, peer) for peer in (ncpd.ALS, ncpd.MU)]
            shares.append(" / ".join(f"{100 * one.at_or_below / one.times:.0f}" for one in found))
        rows.append([name, *shares])
    return rows


def verdict(case: dict[str, Any]) -> str:
    """Our default against each peer."""
    behind = [row for row in case["against"] if row["at_or_below"] < row["times"]]
    ahead = [row["peer"] for row in case["against"] if row["at_or_below"] == row["times"]]
    parts = [f"at or below {', '.join(f'“{peer}”' for peer in ahead)} at every time"] if ahead else []
    parts += [
        f"above “{row['peer']}” at {100 * (1 - row['at_or_below'] / row['times']):.0f} % of the times"
        f" ({1e3 * row['above_from']:.0f} to {1e3 * row['above_until']:.0f} ms), by at most {100 * row['worst']:.2g} %"
        for row in behind
    ]
    return f"**{case['case']}** ({case['source']}): our default is {'; '.join(parts)}."


def assumptions() -> list[str]:
    """Which of the paper's settings satisfy (A3)."""
    settings: list[tuple[str, float | None, float | None]] = [
        ("β = 0.75, c′ = 1", 0.75, 1.0),
        ("β = 0.75, c′ = 10, 100, 1000", 0.75, 10.0),
        ("β = 1, every c′", 1.0, 1.0),
        ("β = None", None, None),
    ]
    return [f"{name}: {ncpd.printed(beta, c)}." for name, beta, c in settings] + ["our default, t^−0.76: yes."]


# --- the authors' code ------------------------------------------------------------------------------------------------


def of_authors(document: Document) -> list[str]:
    """What their code comes to beside ours, from a run of its own."""
    cases, head = document["cases"], [case["case"] for case in document["cases"]]
    theirs = {*map(ncpd.authors_name, ncpd.AUTHORS_RADII), ncpd.AUTHORS_ALS}
    shown_ones = [ncpd.OURS, *(name for name in _names(cases) if name in (*ncpd.PEERS, *theirs))]
    files = ", ".join(f"{file} {digest}" for file, digest in document["authors"].items())
    each = [
        row for row in _cells(cases, lambda row: f"{row['error']:.5f} ± {row['deviation']:.5f}") if row[0] in shown_ones
    ]
    took = [row for row in _cells(cases, _each) if row[0] in shown_ones]
    return [
        AUTHORS + "\n",
        f"Runs: {_runs(cases)}; of their files the SHA-256 begins so: {files}.\n",
        table(["last error", *head], each),
        "CPU ms of a step, or of an iteration:\n",
        table(["", *head], took),
        *(f"- {verdict(case)}" for case in cases),
        "",
    ]


def _each(row: dict[str, Any]) -> str:
    """CPU ms of a step."""
    ms = row["ms"] / row["steps"]
    return f"{ms:.2f}" if ms < 1 else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


# --- painting --------------------------------------------------------------------------------------------------------


def painting(document: Document, results: Path) -> list[str]:
    """Table of errors, dictionaries, and the pictures that they give."""
    rows = [
        [
            *(row["shaping"], row["setting"], str(row["steps"]), f"{row['error']:.4f} ± {row['deviation']:.4f}"),
            f"{row['picture']:.4f}" if "picture" in row else "",
        ]
        for row in document["rows"]
    ]
    return [
        PAINTING + "\n",
        f"{document['source']}, {' × '.join(map(str, document['shape']))}; minibatches of {document['batch']} from"
        f" a pool of {document['pool']} patches, {document['splits']} splits:\n",
        table(["", "setting", "steps", "held-out error", "the whole picture"], rows),
        *shown(results, "image-atoms.png", "Three dictionaries: patches as they are, space as one mode, vectors"),
        *shown(results, "image-restored.jpg", "The painting, and what each dictionary makes of it"),
        *([LOOKED_AT + SEEN] if document["source"] == image.PAINTING else []),
        *asked(document),
        *through(document),
    ]


SEEN = """\
as they are, patches give atoms with edges along the axes alone, each of one colour;
with space as one mode the spots and strokes have any form, each still of one colour (one of the 24 is noise: nothing
came to need it); as vectors colours and forms are entangled, blue beside yellow in one atom. That is what the paper
shows. All three give the café, its lamp and its stars again, softened. The paper finds that the first, which takes
least storage, does “adequately”; here, with λ = 1, it is the nearest of the three, and without a penalty the vectors
are.
"""
"""What the pictures show."""


def asked(document: Document) -> list[str]:
    """The figures beside an offline factorisation of the same patches."""
    floors = [floor for floor in document["offline"] if floor is not None]
    if not floors:
        return []
    by = {(row["shaping"], row["setting"], row["steps"]): row["errors"] for row in document["rows"]}
    ours = against(by[image.PLAIN, image.FREE, image.FULL.steps], floors)
    forgetful = against(by[image.PLAIN, image.FORGETFUL, image.FULL.steps], floors)
    return [
        f"With λ = 0 and our default, {image.PLAIN} comes to these held-out errors, split by split, and in parentheses"
        f" scikit-learn's NMF of the same pool, offline and as vectors: {ours}. Which patches are drawn moves both by"
        f" more than that. With w = 0.1, which (A3) does not allow, it is {forgetful}.\n"
    ]


def against(errors: Sequence[float], floors: Sequence[float]) -> str:
    """Errors with those of the offline factorisation, and how many times theirs they are."""
    over = [error / floor for error, floor in zip(errors, floors, strict=True)]
    each = ", ".join(f"{error:.4f} ({floor:.4f})" for error, floor in zip(errors, floors, strict=True))
    return f"{each}: {min(over):.3f} to {max(over):.3f} times the offline error"


def through(document: Document) -> list[str]:
    """What the service made of the same stream."""
    rows = document.get("kafka", [])
    if not rows:
        return []
    took = ", ".join(f"{row['shaping']} in {row['seconds']:.0f} s" for row in rows)
    same = "with the same bits as without it" if all(row["same_bits"] for row in rows) else "WITH OTHER BITS"
    return [f"Streamed through Apache Kafka, one patch a message, the service learns the first split {same}: {took}.\n"]


# --- weather ---------------------------------------------------------------------------------------------------------


def of_days(document: Document, results: Path) -> list[str]:
    """Table of errors, the atoms, and the year with gaps."""
    gaps = document["gaps"]
    rows = [
        [row["grouping"], str(row["rank"]), f"{row['error']:.4f}", f"{row['swing']:.4f}"] for row in document["rows"]
    ]
    return [
        WEATHER + "\n",
        f"{document['source']}, {' × '.join(map(str, document['shape']))}, {document['windows']} windows:\n",
        table(["", "R", "error", "swing"], rows),
        *shown(results, "weather.png", "An atom of each grouping, alone and of 25: a panel for each measurement"),
        *([SEEN_WEATHER] if document["source"] == weather.SMOOTH else []),
        f"The year with gaps ({gaps['source']}, {100 * gaps['missing']:.1f} % missing, {gaps['windows']} windows) goes"
        " the way of missing data, with 25 atoms, in one pass. One in ten of the observed cells of the year is held"
        f" out, drawn {gaps['masks']} times. They are missed by {gaps['error']:.3f} ± {gaps['deviation']:.3f}, in units"
        " of the deviation of a measurement; the mean of the city at that hour of the day, of all that was not held"
        f" out, misses them by {gaps['mean']:.3f}.\n",
    ]


# --- text ------------------------------------------------------------------------------------------------------------


def of_topics(document: Document, results: Path) -> list[str]:
    """Table of atoms, and their weeks."""
    rows = [
        [" ".join(row["words"]), row["peak"], f"{row['peak_share']:.2f}", f"{row['spread']:.0f}"]
        for row in document["rows"]
    ]
    return [
        TEXT + "\n",
        f"{document['source']}, {' × '.join(map(str, document['shape']))}, {document['entries']:.2%} entries;"
        f" {document['steps']} steps of {document['batch']} tensors:\n",
        table(["words", "strongest week", "share", "spread"], rows),
        *shown(results, "text.png", "Atoms by weeks, dark where one is active"),
        *([SEEN_TEXT] if document["source"] == text.HEADLINES.file else []),
    ]
