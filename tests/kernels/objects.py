"""What an ELF object refers to and does not define."""

from __future__ import annotations

import struct


def undefined(code: bytes) -> set[str]:
    """Return the undefined symbols of a 64-bit little-endian ELF object."""
    assert code[:6] == b"\x7fELF\x02\x01"
    start, size, count = (struct.unpack_from("<Q", code, 0x28)[0], *struct.unpack_from("<HH", code, 0x3A))
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * i) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != 2:
            continue
        names = sections[link][4]
        for at in range(offset + entry, offset + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if section == 0:
                found.add(code[names + name : code.index(b"\0", names + name)].decode())
    return found - {""}
