"""Which old code page bytes are in that are not Unicode: charset-normalizer, kept on a lead."""

from __future__ import annotations

import re

# What is met in practice. Left to all of its hundred code pages the detector finds rarities.
_CANDIDATES = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("koi8_r", "cp866", "cp850", "mac_roman", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]
_DOUBLE_BYTE = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
_LATIN = frozenset({"cp1252", "cp1250", "cp1254", "cp1257", "cp850", "mac_roman"})
_SAMPLE_BYTES = 64 * 1024
_SHORT = 24  # with fewer bytes above ASCII the detector is drawn by chance
_HIGH = re.compile(b"[\x80-\xff]")
# Turkish is taken for its neighbours. These are its letters; five are its own.
_TURKISH = frozenset("çöüâîûÇÖÜ’‘“”–—…€ğışİŞĞ".encode("cp1254"))
_TURKISH_ONLY = frozenset("ğşİŞĞ".encode("cp1254"))
_APART = re.compile(b"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
# Signs of a wrong guess: a symbol or a capital inside a word, a drawn line, a control code.
_AMISS = re.compile(
    r"(?<=[^\W\d_])[‚„†‡ˆ‰‹•˜›¡¢£¤¥¦§¨©ª«¬®¯°±²³´µ¶¸¹º»¼½¾¿×÷“”∂∏∑Ω√∞≈∆≤≥◊](?=[^\W\d_])"
    r"|[a-zß-öø-ÿšœž][À-ÖØ-ÞŠŒŽŸ]|[\u0080-\u009f\u2500-\u259f]|\ufffd"
)


def guess(data: bytes) -> str:
    """The code page by its Python name; every byte sequence gets one, ``cp1252`` in the end."""
    best = _detected(_sample(data))
    high = len(_HIGH.findall(data))
    apart = len(_APART.findall(data)) * 2 > high  # other scripts come in whole words of such bytes
    letters = {byte for byte in set(data) if byte > 0x7F}
    if best in _LATIN and letters <= _TURKISH and letters & _TURKISH_ONLY:
        return "cp1254"
    doubtful = high < _SHORT if best in _LATIN else apart
    if doubtful and _reads_well(data, "cp1252"):
        return "cp1252"
    if best in _LATIN:
        pages = (best, "cp850", "mac_roman")
        return next((page for page in pages if _reads_well(data, page)), best)
    return best or _least_loss(data)


def _reads_well(data: bytes, page: str) -> bool:
    return not _AMISS.search(data.decode(page, "replace"))


def _detected(sample: bytes) -> str:
    """The detector's choice for the whole; for a damaged file, for a half without the damage."""
    from charset_normalizer import from_bytes  # takes a while to load, and few need it

    middle = sample.find(b"\n", len(sample) // 2) + 1
    for part in (sample, sample[:middle], sample[middle:]):
        best = from_bytes(part, cp_isolation=_CANDIDATES).best() if part else None
        if best is not None and best.encoding in _CANDIDATES:
            return best.encoding
    return ""


def _sample(data: bytes) -> bytes:
    """The beginning up to an ASCII character, so that no double-byte character is cut."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    head = data[:_SAMPLE_BYTES]
    cut = max(head.rfind(b"\n"), head.rfind(b" "))
    return head[:cut] if cut > 0 else head


def _least_loss(data: bytes) -> str:
    """For a damaged file: the double-byte code page that loses next to nothing, else cp1252."""
    losses = {page: data.decode(page, "replace").count("\ufffd") for page in _DOUBLE_BYTE}
    page = min(losses, key=losses.__getitem__)
    return page if losses[page] * 100 <= len(_HIGH.findall(data)) else "cp1252"
