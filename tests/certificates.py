"""Certificates for tests, created by the openssl command: an authority, and the certificates that it signs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_REQUEST = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, PEM files."""

    cert: Path
    key: Path


class Authority:
    """An authority that signs certificates; its own certificate is the file `cert`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command found on this machine")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        own = self._files(name)
        self.cert, self._key = own.cert, own.key
        _openssl(*_REQUEST, "-subj", f"/CN={name}", *_out(own))

    def sign(self, name: str) -> Certificate:
        """Return a certificate for 127.0.0.1 and localhost, valid for servers and clients."""
        signed = self._files(name)
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        signer = ("-CA", str(self.cert), "-CAkey", str(self._key), "-addext", "basicConstraints=critical,CA:FALSE")
        _openssl(*_REQUEST, "-subj", f"/CN={name}", "-addext", names, *signer, *_out(signed))
        return signed

    def _files(self, name: str) -> Certificate:
        return Certificate(self._directory / f"{name}.crt", self._directory / f"{name}.key")


def _out(files: Certificate) -> tuple[str, ...]:
    return ("-keyout", str(files.key), "-out", str(files.cert))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
