"""Certificates for tests, made by openssl: an authority, and what it signs."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

CONFIG = """\
[ca]
default_ca = ours
[ours]
database = index
new_certs_dir = .
default_md = sha256
policy = names
rand_serial = yes
unique_subject = no
[names]
commonName = supplied
"""
DAY = timedelta(days=1)


class Authority:
    """Signs certificates, in a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._home = directory / name
        self._home.mkdir()
        (self._home / "ca.conf").write_text(CONFIG)
        (self._home / "index").touch()
        self.certificate = self._home / "ca.pem"
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=keyCertSign", "-keyout", "ca.key", "-out", "ca.pem"),
        )

    def sign(self, name: str, hosts: str = "", until: timedelta = DAY, password: str | None = None) -> tuple[str, str]:
        """The paths of a certificate for a name, valid for hosts such as IP:127.0.0.1, and of its key.

        `until` may lie in the past.
        """
        cert, key = f"{name}.pem", f"{name}.key"
        make = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
        locked = () if password is None else ("-aes256", "-pass", f"pass:{password}")
        unlocked = () if password is None else ("-passin", f"pass:{password}")
        self._openssl(*make, *locked)
        self._openssl("req", "-new", "-key", key, *unlocked, "-subj", f"/CN={name}", "-out", "request")
        (self._home / "extensions").write_text(f"subjectAltName={hosts}\n" if hosts else "basicConstraints=CA:FALSE\n")
        now = datetime.now(UTC)
        begin, end = (f"{when:%Y%m%d%H%M%SZ}" for when in (now - 30 * DAY, now + until))
        self._openssl(
            *("ca", "-batch", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key", "-notext"),
            *("-startdate", begin, "-enddate", end, "-extfile", "extensions", "-in", "request", "-out", cert),
        )
        return str(self._home / cert), str(self._home / key)

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(["openssl", *words], cwd=self._home, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openssl {' '.join(words)}: {done.stderr}")
