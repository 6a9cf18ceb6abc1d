"""Files as people send them, made on the fly: PDF, Word, e-mail and web pages, sound and broken."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument'
    '.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="rId1" Target="word/document.xml" Type="http://schemas.openxmlformats.org/'
    'officeDocument/2006/relationships/officeDocument"/></Relationships>'
)
_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        stream = f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{one}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF"
    return out + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def locked_pdf(password: str, *pages: str) -> bytes:
    """A PDF that is encrypted; with an empty password everybody can read it."""
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(*pages))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def docx(*paragraphs: str, body: str | None = None) -> bytes:
    """A Word document."""
    inner = body or "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_entry("[Content_Types].xml"), _TYPES)
        archive.writestr(_entry("_rels/.rels"), _RELATIONS)
        archive.writestr(
            _entry("word/document.xml"),
            f'<?xml version="1.0"?><w:document {_WORD}><w:body>{inner}</w:body></w:document>',
        )
    return out.getvalue()


def zipped(*names: str) -> bytes:
    """A zip archive of small files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(_entry(name), "text")
    return out.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """Without the time of day: the same document is the same bytes in every process."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def mail(body: str, *, html: bool = False, attached: Sequence[bytes] = ()) -> bytes:
    """An e-mail; ``attached`` are e-mails, too."""
    from email.message import EmailMessage
    from email.parser import BytesParser
    from email.policy import default

    message = EmailMessage()
    message["From"] = "Ada <ada@example.com>"
    message["To"] = "support@example.com"
    message["Subject"] = "Grüße"
    message["Message-ID"] = "<1@example.com>"
    message.set_content(body, subtype="html" if html else "plain")
    for one in attached:
        message.add_attachment(BytesParser(policy=default).parsebytes(one))
    return message.as_bytes()


def page(body: str, *, charset: str = "utf-8") -> bytes:
    """A web page that says its charset."""
    head = f'<meta charset="{charset}"><title>Title</title><style>p {{}}</style>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>{body}</body></html>".encode(charset)
