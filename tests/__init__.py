"""The tests. `paper.py` is the oracle, `laws.py` what every plug-in must obey."""
