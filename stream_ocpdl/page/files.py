"""The files that pages are made of. Nothing is fetched from anywhere else."""

from importlib.resources import files


def static(name: str) -> str:
    """A script or a style of ours."""
    return files("stream_ocpdl.page").joinpath("static", name).read_text(encoding="utf-8")


def plotly() -> str:
    """The library that draws curves, as the package of that name carries it."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
