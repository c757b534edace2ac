"""Certificates that cannot be used: the error names the setting and the file, on both ways to etcd."""

import http.client
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from headrace.app.etcd import bootstrap
from headrace.app.etcd.bootstrap import ask_members
from headrace.config.etcd_address import EtcdAddress
from headrace.config.settings import EtcdSettings, Settings
from headrace.metadata.etcd.tls import tls_context
from headrace.model.errors import InvalidConfig

FILES = ("ca_file", "cert_file", "key_file")
URL = "https://127.0.0.1:1"


async def both_ways(message: str, **files: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        tls_context(EtcdAddress(endpoints=("127.0.0.1:1",), **files))
    with pytest.raises(InvalidConfig, match=message):
        await ask_members(URL, Settings(etcd=EtcdSettings(**files)))


@pytest.mark.parametrize("name", FILES)
async def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    await both_ways(f"cannot read {tmp_path}/none.pem: No such file", **{name: f"{tmp_path}/none.pem"})


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
async def test_file_without_certificate_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.pem"
    path.write_text("no certificate")
    await both_ways(f"etcd.{name}: {path} cannot be used", **{name: str(path)})


async def test_failed_handshake_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def request(self, *_: str) -> None:
            raise ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")

        def close(self) -> None: ...

    monkeypatch.setattr(http.client, "HTTPSConnection", Refusing)
    monkeypatch.setattr(bootstrap, "_logged", {})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await ask_members(URL, Settings(etcd=EtcdSettings())) == []
    (record,) = caplog.records
    assert URL in record.getMessage()
    assert "self-signed certificate" in record.getMessage()
