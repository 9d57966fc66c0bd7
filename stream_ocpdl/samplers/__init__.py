"""Samplers that come with the package: chains whose draws are tensors, the same for the same seed.

A sampler is two functions, from random numbers to a place and from a place to the next (`chain.Sampler`); a `Chain`
walks, and can be left and taken up again at any draw. Kernels take their random numbers as arrays, so that they are
functions, and call only each other in one file: Numba's cache sees when they change.
"""

from stream_ocpdl.samplers.chain import Chain, Place, Sampler
from stream_ocpdl.samplers.ising import Ising
from stream_ocpdl.samplers.markov import Markov
from stream_ocpdl.samplers.metropolis import Metropolis
from stream_ocpdl.samplers.motif import Graph, Motif

__all__ = ["Chain", "Graph", "Ising", "Markov", "Metropolis", "Motif", "Place", "Sampler"]
