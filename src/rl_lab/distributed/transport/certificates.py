"""The lab's certificate authority: who may connect, and as what. An extra: `pip install 'rl-lab[human]'`.

A certificate says one name and one role. Purposes keep roles apart in TLS itself: with an actor's certificate
nobody can pose as the learner.
"""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    from rl_lab.core.errors import UsageError

    raise UsageError(f"certificates need {error.name}: pip install 'rl-lab[human]'") from error

from rl_lab.core.durable import reason
from rl_lab.core.errors import UsageError, check_choice
from rl_lab.core.identity import find_identity
from rl_lab.core.revocations import REVOKED_NAME, Revocations
from rl_lab.distributed.transport.security import CA_NAME, LEARNER_NAME, ROLES, KeyFiles, identity_uri

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CLOCK_SKEW = datetime.timedelta(minutes=5)


def create_authority(directory: Path, days: int) -> Path:
    """Make the lab's authority, `ca.pem` and its key, and return the certificate's path."""
    certificate, key = directory / f"{CA_NAME}.pem", directory / f"{CA_NAME}.key"
    _refuse_existing(certificate, key)
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "RL Lab authority")])
    usage = _key_usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, private, days)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    )
    _write(certificate, key, builder.sign(private, hashes.SHA256()), private)
    return certificate


def issue(directory: Path, name: str, role: str, days: float) -> Path:
    """Make a certificate and key for `name` in `role`, and return the certificate's path."""
    check_choice("--role", role, ROLES)
    if not _NAME.fullmatch(name) or name == CA_NAME:
        raise UsageError(
            f"{name!r} cannot name a certificate: letters, digits, - and _, at most 63, and not {CA_NAME!r}"
        )
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    _refuse_existing(certificate, key)
    authority, authority_key = _read_authority(directory)
    private = ec.generate_private_key(ec.SECP256R1())
    is_learner = role == "learner"
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity_uri(name, role))]
    if is_learner:
        names.append(x509.DNSName(LEARNER_NAME))
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if is_learner else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), private, days)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True, key_cert_sign=False, crl_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    _write(certificate, key, builder.sign(authority_key, hashes.SHA256()), private)
    return certificate


def revoke(directory: Path, name: str) -> Path:
    """Let no learner accept a certificate any more, and return the list that says so; learners read a copy of it."""
    path, listed = directory / f"{name}.pem", directory / REVOKED_NAME
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        if found.serial_number in Revocations(directory):
            raise UsageError(f"{path} is revoked already")
        with open(listed, "a+") as file:
            file.seek(0)
            before = file.read()
            start = "\n" if before and not before.endswith("\n") else ""  # as an editor may have left it
            file.write(f"{start}{found.serial_number:x} {name}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be opened: {reason(error)}") from error
    except ValueError as error:
        raise UsageError(str(error) if isinstance(error, UsageError) else f"{path} is no certificate") from error
    return listed


def check_own(keys: KeyFiles, path: Path, role: str, name: str | None) -> None:
    """Raise UsageError where a certificate cannot be one's own: of another role, name or lab, or out of date."""
    try:
        own, authority = (x509.load_pem_x509_certificate(pem) for pem in (keys.certificate, keys.authority))
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        identity = find_identity(names.get_values_for_type(x509.UniformResourceIdentifier))
    except (ValueError, x509.ExtensionNotFound) as error:
        raise UsageError(f"certificate {path}: it was not made by lab certs ({error})") from error
    if identity is None or identity.role != role:
        found = "says no role" if identity is None else f"is of role {identity.role}, not {role}"
        raise UsageError(f"certificate {path}: it {found}; make one with lab certs issue NAME --role {role}")
    if name is not None and identity.name != name:
        raise UsageError(f"certificate {path}: it is {identity.name}'s, and transport.actor is {name}")
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise UsageError(f"certificate {path}: the authority beside it, {CA_NAME}.pem, is of another lab") from error
    _check_key(keys.key, own, path)
    if not own.not_valid_before_utc <= datetime.datetime.now(datetime.UTC) < own.not_valid_after_utc:
        dates = f"{own.not_valid_before_utc:%Y-%m-%d %H:%M} to {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise UsageError(f"certificate {path}: it is valid from {dates}, and now it is not; is the clock right?")


def _check_key(pem: bytes, own: x509.Certificate, path: Path) -> None:
    key = f"certificate {path}: {path.stem}.key beside it"
    try:
        public = serialization.load_pem_private_key(pem, password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{key} cannot be read; make both with lab certs issue") from error
    if public != own.public_key():
        raise UsageError(f"{key} is another certificate's")


def _builder(name: x509.Name, private: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, digital_signature: bool, key_cert_sign: bool, crl_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _read_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((directory / f"{CA_NAME}.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / f"{CA_NAME}.key").read_bytes(), password=None)
    except OSError as error:
        raise UsageError(f"{directory} has no authority ({reason(error)}): lab certs init --dir {directory}") from error
    except ValueError as error:
        raise UsageError(f"the authority in {directory} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"the authority in {directory} was not made by lab certs init")
    return certificate, key


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UsageError(f"{path} exists and is not overwritten; delete it or name another")


def _write(certificate: Path, key: Path, made: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        certificate.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, data, mode in (
            (key, secret, 0o600),
            (certificate, made.public_bytes(serialization.Encoding.PEM), 0o644),
        ):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as file:
                file.write(data)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {reason(error)}") from error
