"""The drill on a broker of its own, or the one that KAFKA_BOOTSTRAP_SERVERS names: `make drill`."""

import os
import subprocess
import sys

from tests.broker.cluster import obtain


def main() -> int:
    with obtain() as broker:
        print(f"Apache Kafka at {broker.bootstrap_servers}, from {broker.origin}", flush=True)
        words = ["-m", "stream_ocpdl", "drill", "--bootstrap-servers", broker.bootstrap_servers]
        return subprocess.run([sys.executable, *words], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
