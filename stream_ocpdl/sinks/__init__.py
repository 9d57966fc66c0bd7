"""From a sampler to a topic in one line: `DrawSink`, and how PyMC, emcee, NumPyro and CmdStan hand their draws over."""

from stream_ocpdl.sinks.sink import DrawSink

__all__ = ["DrawSink"]
