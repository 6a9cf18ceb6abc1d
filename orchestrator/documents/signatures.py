"""What binary formats look like: a file is known by its first bytes, whatever its name says."""

from __future__ import annotations

HEAD_BYTES = 4096
"""How much of a file's beginning ``format_of`` needs to name the format."""

_MARKS = (
    (0, b"%PDF-", "a PDF"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF87a", "a GIF image"),
    (0, b"GIF89a", "a GIF image"),
    (0, b"II*\x00", "a TIFF image"),
    (0, b"MM\x00*", "a TIFF image"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"\xcf\xfa\xed\xfe", "a macOS program or library"),
    (0, b"\xce\xfa\xed\xfe", "a macOS program or library"),
    (0, b"\xca\xfe\xba\xbe", "a Java class or macOS program"),
    (0, b"\x00asm", "a WebAssembly module"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (
        0,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office or Outlook file (.doc, .xls, .ppt, .msg)",
    ),
    (0, b"!BDN", "an Outlook mailbox (.pst)"),
    (0, b"ID3", "an MP3 recording"),
    (0, b"OggS", "an Ogg recording"),
    (0, b"fLaC", "a FLAC recording"),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"wOFF", "a font"),
    (0, b"wOF2", "a font"),
    (0, b"\x00\x01\x00\x00\x00", "a font"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, b"MZ", "a Windows program or library"),
    (0, b"RIFF", "a RIFF file"),
    (4, b"ftyp", "an MP4 or HEIC file"),
    (257, b"ustar", "a tar archive"),
)
_RIFF = {b"WEBP": "a WebP image", b"WAVE": "a WAV recording", b"AVI ": "an AVI video"}
# Formats that are zip archives inside, told by names and types among their entries.
_OFFICE = (
    (b"word/", "a Word document (.docx)"),
    (b"xl/", "an Excel workbook (.xlsx)"),
    (b"ppt/", "a PowerPoint file (.pptx)"),
)
_IN_ZIP = (
    (b"mimetypeapplication/epub", "an e-book (.epub)"),
    (b"mimetypeapplication/vnd.oasis.opendocument", "an OpenDocument file"),
    (b"META-INF/", "a Java archive"),
)
_UTF8_MARK = b"\xef\xbb\xbf"
# Signatures that are plain letters also begin honest sentences ("BZh", "ID3 tags are ...").
_WORDS = frozenset(
    {b"BZh", b"ID3", b"PAR1", b"OggS", b"fLaC", b"wOFF", b"wOF2", b"!BDN", b"GIF87a", b"GIF89a"}
    | {b"MZ", b"RIFF", b"ftyp", b"ustar"}
)


def format_of(content: bytes) -> str:
    """The binary format that this content begins like, in words (``"a PDF"``), or ``""``."""
    head = content[:HEAD_BYTES].removeprefix(_UTF8_MARK)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_format(content)
    if head.startswith(b"BM") and head[6:10] == b"\x00\x00\x00\x00":
        return "a BMP image"
    for offset, mark, name in _MARKS:
        if head[offset : offset + len(mark)] == mark and not (mark in _WORDS and _is_text(head)):
            return _RIFF.get(head[8:12], name) if mark == b"RIFF" else name
    return ""


def _zip_format(content: bytes) -> str:
    if b"[Content_Types].xml" in content:
        return next((name for mark, name in _OFFICE if mark in content), "an Office document")
    return next((name for mark, name in _IN_ZIP if mark in content), "a zip archive")


def _is_text(head: bytes) -> bool:
    """Whether nothing in it is foreign to text; a UTF-8 character may be cut at the end."""
    return b"\x00" not in head and "\ufffd" not in head[:-3].decode("utf-8", "replace")
