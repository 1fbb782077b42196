"""Certificates for tests of MALT_TLS: an authority, and the folders that it gives out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"


def _openssl(command: str) -> None:
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True)


class Authority:
    """It keeps its own key in `directory`, in which the folders are too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        self._key, self.certificate = directory / "ca-key.pem", directory / "ca.pem"
        _openssl(
            f"req -x509 {_NEW_KEY} -keyout {self._key} -out {self.certificate} -subj /CN=ca -days 2"
        )

    def issue(self, name: str, days: int = 2) -> str:
        """A folder as MALT_TLS wants it; days below 0: of a certificate that has run out."""
        folder = self._directory / name
        folder.mkdir()
        key, request = folder / "key.pem", folder / "request.pem"
        _openssl(f"req {_NEW_KEY} -keyout {key} -out {request} -subj /CN=rank")
        _openssl(
            f"x509 -req -in {request} -CA {self.certificate} -CAkey {self._key} -days {days} "
            f"-CAcreateserial -out {folder / 'cert.pem'}"
        )
        shutil.copy(self.certificate, folder / "ca.pem")
        return str(folder)
