"""Files, certificate and port, before anything is loaded."""

import datetime
import socket
from pathlib import Path

import pytest

from server.cli import main
from server.config import Config, ModelConfig, ServerConfig
from server.preflight import certificate_problem, file_problems, port_problem


def test_a_model_folder_has_a_config_json(tmp_path: Path) -> None:
    """A folder with config.json passes, an empty one does not, and a hub id is not looked for."""
    config = Config(model=ModelConfig(id=str(tmp_path)))
    (problem,) = file_problems(config)
    assert str(problem) == f"model.id: not a model folder (it has no config.json): {tmp_path}"
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert file_problems(config) == []
    assert file_problems(Config(model=ModelConfig(id="org/m"))) == []


def test_the_llm_of_the_embedded_stack_is_looked_for_too() -> None:
    """A folder given as model.llm is reported under that key."""
    (problem,) = file_problems(Config(model=ModelConfig(llm="/nowhere")))
    assert str(problem) == "model.llm: no such folder: /nowhere"


def test_the_key_file_is_looked_for() -> None:
    """A missing key file is reported."""
    (problem,) = file_problems(Config(server=ServerConfig(api_keys_file="/nowhere")))
    assert str(problem) == "server.api_keys_file: no such file: /nowhere"


def with_certificate(cert: Path, key: Path) -> Config:
    return Config(server=ServerConfig(ssl_certfile=str(cert), ssl_keyfile=str(key)))


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    """Files that hold no certificate give one sentence that names them."""
    cert = tmp_path / "cert.pem"
    cert.write_text("not a certificate", encoding="utf-8")
    problem = certificate_problem(with_certificate(cert, cert))
    assert problem is not None
    assert problem.startswith(f"cannot serve TLS with {cert} and {cert}: ")
    assert certificate_problem(Config()) is None


def test_a_certificate_needs_its_own_readable_key(tmp_path: Path) -> None:
    """A pair passes; a key with a passphrase is refused without asking for it on the terminal."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, secret.public_key(), 1, day, day)
    encodings = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    open_key = secret.private_bytes(*encodings, serialization.NoEncryption())
    locked_key = secret.private_bytes(*encodings, serialization.BestAvailableEncryption(b"pass"))
    cert, good, locked = (tmp_path / name for name in ("cert.pem", "key.pem", "locked.pem"))
    cert.write_bytes(builder.sign(secret, hashes.SHA256()).public_bytes(encodings[0]))
    good.write_bytes(open_key)
    locked.write_bytes(locked_key)
    assert certificate_problem(with_certificate(cert, good)) is None
    assert certificate_problem(with_certificate(cert, locked)) is not None


@pytest.mark.socket
def test_a_taken_port_is_told_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` on a port in use is one line and exit code 1; once it is free there is no problem."""
    monkeypatch.delenv("METRONOME_API_KEYS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--model", "sim", "--port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"metronome: port {port} on 127.0.0.1 is in use; choose another with --port, or 0 for any\n"
    )
    assert port_problem("127.0.0.1", port) is None


@pytest.mark.socket
def test_an_address_of_another_machine_is_told() -> None:
    """An address that is not ours, and a name that is none, are a sentence each."""
    problem = port_problem("192.0.2.1", 0)  # reserved for documentation, RFC 5737
    assert problem is not None
    assert problem.startswith("cannot listen on 192.0.2.1 port 0: ")
    unknown = port_problem("999.1.1.1", 80)
    assert unknown is not None
    assert unknown.startswith("cannot listen on 999.1.1.1 port 80: ")
