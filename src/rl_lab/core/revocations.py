"""Certificates that are not accepted any more: a file of serial numbers beside the authority's certificate."""

from __future__ import annotations

from pathlib import Path

from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError

REVOKED_NAME = "revoked.txt"  # lines SERIAL NAME, the serial in hexadecimal


class Revocations:
    """Knows which serial numbers are revoked; a changed file counts from the next question on.

    Args:
        directory: Of the authority's certificate.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / REVOKED_NAME
        self._stamp: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self._refresh()

    def __contains__(self, serial: int) -> bool:
        """Return whether the certificate with this serial number is revoked; raises ConfigError for a damaged file."""
        self._refresh()
        return serial in self._serials

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
            if (stamp := (found.st_mtime_ns, found.st_size)) != self._stamp:
                lines = self._path.read_text().splitlines()
                self._serials = frozenset(int(line.split()[0], 16) for line in lines if line.strip())
                self._stamp = stamp
        except FileNotFoundError:  # nobody was ever revoked, or all were taken back
            self._serials, self._stamp = frozenset(), None
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read ({reason(error)})") from error
        except ValueError as error:
            raise ConfigError(f"{self._path} is damaged: lines are SERIAL NAME, the serial in hexadecimal") from error
