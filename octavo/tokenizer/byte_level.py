"""The alphabet of byte-level BPE: every byte has a printable character, and vocabularies are spelled in those.

Source: the encoder of GPT-2. A byte that is already a printable, non-space Latin-1 character stands for itself; the
other 68 bytes are, in order, the characters from U+0100 on.
"""

from __future__ import annotations


def _alphabet() -> dict[int, str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


CHAR_OF_BYTE = _alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in CHAR_OF_BYTE.items()}


def spelled_bytes(token: str) -> bytes:
    """The bytes a vocabulary entry stands for; one that leaves the alphabet stands for its own UTF-8."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()
