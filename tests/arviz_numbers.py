"""Writes golden/arviz.json: what ArviZ says of the windows of test_chains. `python -m tests.arviz_numbers`, where it is
installed; it is no dependency of the tests, for it would bring pandas, xarray and matplotlib with it.
"""

import json

from tests.test_chains import GOLDEN, cases


def main() -> None:
    """All windows."""
    import arviz
    from arviz.stats.diagnostics import _ess_bulk, _ess_tail, _rhat_rank

    values = {name: [float(f(draws)) for f in (_rhat_rank, _ess_bulk, _ess_tail)] for name, draws in cases().items()}
    GOLDEN.write_text(json.dumps({"arviz": arviz.__version__, "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
