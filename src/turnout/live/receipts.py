"""Receipts: what a client can show to prove that its answer was counted, and how.

A receipt is a statement, the text of a JSON object, and its Ed25519 signature. Anyone with the
public key can check a receipt, but cannot make one. A client therefore does not depend on anyone in
between. It does not need turnout either: ``openssl pkeyutl -verify -rawin`` checks a statement.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_EXTRA = "receipts need another package: pip install 'turnout[receipts]'."
_MAKE = "make one with 'openssl genpkey -algorithm ed25519 -out FILE'."


class Receipts:
    """Makes the receipts of one server or run.

    Args:
        key: PEM file of an Ed25519 private key; None: receipts are not signed.

    Raises:
        InvalidInput: The file cannot be read, or has another kind of key.
        MissingExtra: A key is given, and ``cryptography`` is not installed.
    """

    def __init__(self, key: str | os.PathLike[str] | None = None) -> None:
        self._key: Any = None
        self.public_key = ""  #: PEM; empty without a key
        if key is None:
            return
        serialization = import_extra("cryptography.hazmat.primitives.serialization", _EXTRA)
        ed25519 = import_extra("cryptography.hazmat.primitives.asymmetric.ed25519", _EXTRA)
        try:
            content = Path(key).read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"receipt_key: {key} cannot be read ({error.strerror}): {_MAKE}",
                field="receipt_key",
            ) from error
        try:
            self._key = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError):  # damaged, or with a password
            self._key = None
        if not isinstance(self._key, ed25519.Ed25519PrivateKey):
            raise InvalidInput(
                f"receipt_key: {key} has no Ed25519 private key without a password: {_MAKE}",
                field="receipt_key",
            )
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public = self._key.public_key().public_bytes(serialization.Encoding.PEM, form)
        self.public_key = public.decode()

    def make(
        self,
        run: str,
        round: int,
        client: Hashable,
        *,
        run_began_at: float,
        status: str,
        is_void: bool,
        seconds: float,
        closed_at: float,
        report: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the receipt of a client for a round.

        Args:
            run: The run or the federation.
            round: The round, counted from 0.
            client: The stable id.
            run_began_at: When the run began or the federation was created, in seconds since 1970.
                It distinguishes the run from others of the same name.
            status: How it ended for the client.
            is_void: Whether the round had too few answers, so that none counts.
            seconds: How long the client took; NaN: unknown.
            closed_at: When the round was closed, in seconds since 1970.
            report: What was reported about the client, in full.
        """
        statement = {
            "kind": "turnout-receipt-1",
            "run": run,
            "run_began_at": float(run_began_at),
            "round": round,
            "client": client,
            "status": status,
            "counted": status == "completed" and not is_void,
            "seconds": None if math.isnan(seconds) else _ms(seconds),
            "closed_at": _ms(closed_at),
        }
        if report is not None:
            statement["report"] = report
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"))
        signature = None
        if self._key is not None:
            signature = base64.b64encode(self._key.sign(text.encode())).decode()
        return {"round": round, "client": client, "statement": text, "signature": signature}


def _ms(seconds: float) -> float:
    """Return seconds with three decimals."""
    return round(float(seconds), 3)


def check_receipt(receipt: Mapping[str, Any], public_key: str) -> dict[str, Any]:
    """Return the statement of a receipt if its signature is right.

    Args:
        receipt: The receipt, as a server returned it or ``receipts.jsonl`` holds it.
        public_key: The public key, as PEM.

    Raises:
        InvalidInput: The signature is missing or wrong, or the key is no Ed25519 key.
    """
    serialization = import_extra("cryptography.hazmat.primitives.serialization", _EXTRA)
    exceptions = import_extra("cryptography.exceptions", _EXTRA)
    try:
        key: Ed25519PublicKey = serialization.load_pem_public_key(public_key.encode())
        statement, signature = receipt["statement"], receipt["signature"]
        key.verify(base64.b64decode(signature, validate=True), statement.encode())
        found: dict[str, Any] = json.loads(statement)
    except exceptions.InvalidSignature as error:
        raise InvalidInput("the signature is of another statement or key.") from error
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise InvalidInput(f"this is no signed receipt, or no Ed25519 key: {error}.") from error
    return found
