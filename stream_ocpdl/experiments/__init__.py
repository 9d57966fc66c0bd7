"""The paper's experiments, run again: data and their stand-ins, races by CPU time, pictures, and the page of them."""
