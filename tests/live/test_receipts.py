"""Receipts can be checked by anybody with the public key, and by tools that know no turnout."""

import base64
import json
import shutil
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from turnout.core.errors import InvalidInput
from turnout.live.receipts import Receipts, check_receipt

PEM = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "receipts.pem"
    path.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM))
    return path


def made(receipts, **changed):
    given = {"status": "completed", "is_void": False, "seconds": 12.34567, "closed_at": 1.8e9}
    given["run_began_at"] = 1.7e9
    return receipts.make("phones", 7, "c1", **given | changed)


def test_a_receipt_says_what_was_counted(key):
    receipts = Receipts(key)
    receipt = made(receipts, report={"client": "c1", "metrics": {"loss": 0.5}})
    assert check_receipt(receipt, receipts.public_key) == {
        "kind": "turnout-receipt-1", "run": "phones", "run_began_at": 1.7e9,
        "round": 7, "client": "c1",
        "status": "completed", "counted": True, "seconds": 12.346, "closed_at": 1.8e9,
        "report": {"client": "c1", "metrics": {"loss": 0.5}},
    }  # fmt: skip
    assert made(receipts) == made(receipts)  # the same at every request
    other = made(receipts, run_began_at=1.7e9 + 1e-3)  # another run of the same name
    assert check_receipt(other, receipts.public_key)["run_began_at"] == 1700000000.001


@pytest.mark.parametrize("changed", [{"status": "late"}, {"status": "silent"}, {"is_void": True}])
def test_what_was_not_counted_says_so(key, changed):
    receipts = Receipts(key)
    receipt = made(receipts, seconds=float("nan"), **changed)
    statement = check_receipt(receipt, receipts.public_key)
    assert (statement["counted"], statement["seconds"]) == (False, None)


def test_a_changed_statement_and_another_key_are_found(key, tmp_path):
    receipts = Receipts(key)
    receipt = made(receipts)
    for changed in (
        {"statement": receipt["statement"].replace('"round":7', '"round":8')},
        {"signature": base64.b64encode(bytes(64)).decode()},
        {"signature": None},
        {"signature": "no base64"},
    ):
        with pytest.raises(InvalidInput, match=r"signature|receipt"):
            check_receipt(receipt | changed, receipts.public_key)
    other = tmp_path / "other.pem"
    other.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM))
    with pytest.raises(InvalidInput, match="another statement or key"):
        check_receipt(receipt, Receipts(other).public_key)
    with pytest.raises(InvalidInput):
        check_receipt(receipt, "no key")


def test_without_a_key_there_is_no_signature():
    receipts = Receipts()
    assert made(receipts)["signature"] is None
    assert receipts.public_key == ""


def test_other_keys_are_refused_with_the_command_that_makes_one(tmp_path):
    path = tmp_path / "key.pem"
    for content in (b"text", rsa.generate_private_key(65537, 2048).private_bytes(*PEM)):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="openssl genpkey -algorithm ed25519") as error:
            Receipts(path)
        assert error.value.field == "receipt_key"
    with pytest.raises(InvalidInput, match="cannot be read"):
        Receipts(tmp_path / "none.pem")


def test_without_the_extra_it_says_what_to_install(key):
    code = (
        "import sys; sys.modules['cryptography.hazmat.primitives.serialization'] = None\n"
        "from turnout.live.receipts import Receipts\n"
        "from turnout.core.errors import MissingExtra\n"
        "Receipts()\n"
        f"try:\n    Receipts({str(key)!r})\n"
        "except MissingExtra as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "pip install 'turnout[receipts]'" in said


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl on this machine")
def test_openssl_makes_the_key_and_checks_the_receipt(tmp_path):
    """As the page says; nothing of turnout is needed to check one."""
    key, statement, signature = (tmp_path / name for name in ("key", "statement", "signature"))
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    receipts = Receipts(key)
    receipt = made(receipts)
    (tmp_path / "public").write_text(receipts.public_key)
    statement.write_text(receipt["statement"])
    signature.write_bytes(base64.b64decode(receipt["signature"]))
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "public", "-rawin"]
    check += ["-in", statement, "-sigfile", signature]
    assert subprocess.run(check, capture_output=True).returncode == 0
    statement.write_text(json.dumps(json.loads(receipt["statement"])))  # other bytes
    assert subprocess.run(check, capture_output=True).returncode != 0
