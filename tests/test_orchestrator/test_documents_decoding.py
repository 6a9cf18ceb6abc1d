"""Bytes become the text that was written, whichever of the usual encodings it was written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents.codepages import guess
from orchestrator.documents.decoding import Decoded, NotText, decode
from orchestrator.documents.signatures import format_of

ENGLISH = "My invoice is wrong, please check it.\r\nThanks!\r\n"
GERMAN = "Sehr geehrte Damen und Herren, die Gebühr für März ist größer als früher."
FRENCH = "Le client a reçu une facture erronée: été, où, ça, là-bas – 20 €."
RUSSIAN = "Здравствуйте, не работает оплата картой."
CHINESE = "您好,我无法登录我的账户,请帮忙重置密码。\n"
JAPANESE = "ログインできません。パスワードを忘れました。\n"
KOREAN = "안녕하세요. 로그인이 되지 않습니다. 비밀번호를 잊었습니다."


def decoded(data: bytes) -> Decoded:
    result = decode(data)
    assert isinstance(result, Decoded), result
    return result


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, RUSSIAN, CHINESE, JAPANESE, KOREAN, "hi", "é"])
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"),
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
        (b"\xff\xfe\x00\x00", "utf-32-le"),
        (b"\x00\x00\xfe\xff", "utf-32-be"),
    ],
)
def test_unicode_with_or_without_its_mark(text: str, mark: bytes, encoding: str) -> None:
    """F-04: a byte order mark decides, and is not part of the text."""
    data = mark + text.encode(encoding.removesuffix("-sig"))

    assert Decoded(text=text, encoding=encoding) == decoded(data)


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, RUSSIAN, CHINESE, JAPANESE, "Привет мир", "hi"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_unicode_without_a_mark(text: str, encoding: str) -> None:
    """F-04: UTF-16 is known by its structure when it has no mark, in either byte order."""
    assert Decoded(text=text, encoding=encoding) == decoded(text.encode(encoding))


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *(("cp1252", text) for text in (GERMAN, FRENCH, GERMAN * 9, FRENCH * 9)),
        *(
            ("cp1252", text)
            for text in ("naïve", "¿Dónde está?", "It’s “broken” …", "5 m² à 30 °C")
        ),
        ("cp1252", "Anhänge, größer"),
        ("cp1250", "Proszę o zwrot pieniędzy, ponieważ usługa nie działa. Żółw źdźbło."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy. " * 5),
        ("cp1254", "Merhaba, hesabıma giriş yapamıyorum. Şifre değiştirme çalışmıyor."),
        *(("cp1251", text) for text in (RUSSIAN, RUSSIAN * 9, "Счет неверный")),
        *(("koi8_r", text) for text in (RUSSIAN, RUSSIAN * 9)),
        ("cp866", RUSSIAN),
        ("cp1253", "Καλημέρα, δεν μπορώ να συνδεθώ στον λογαριασμό μου."),
        ("cp1255", "שלום, אני לא מצליח להתחבר לחשבון שלי. קיבלתי חיוב כפול על החודש הזה. " * 3),
        ("cp850", "Die Gebühr ist größer als früher, das Gerät läuft nicht"),
        ("mac_roman", "Le client a reçu une facture erronée, été"),
        *(("cp932", JAPANESE), ("euc_jp", JAPANESE), ("iso2022_jp", JAPANESE)),
        *(("gb18030", CHINESE), ("gb18030", CHINESE * 9_000), ("cp949", KOREAN)),
        ("big5", "您好,我無法登入我的帳戶,請幫忙重設密碼。"),
    ],
)
def test_old_code_pages(encoding: str, text: str) -> None:
    """F-02: text from before Unicode reads as it was written."""
    data = text.encode(encoding)

    assert text == decoded(data).text
    assert decoded(data).replaced == 0


@pytest.mark.parametrize(
    ("data", "text", "replaced"),
    [
        pytest.param("ä ö ü ß é".encode() + b" \xff!", "ä ö ü ß é \ufffd!", 1, id="odd byte"),
        pytest.param("ä ö ü ß €".encode()[:-1], "ä ö ü ß \ufffd", 1, id="cut at the end"),
        pytest.param(b"a\x00b" * 1 + b"c" * 100, "a\ufffdb" + "c" * 100, 1, id="odd zero"),
        pytest.param("\ufffd ä".encode(), "\ufffd ä", 0, id="replaced before us"),
        pytest.param(b"\xff\xfeh\x00i\x00!", "hi\ufffd", 1, id="half a unit at the end"),
    ],
)
def test_one_odd_byte_costs_one_character(data: bytes, text: str, replaced: int) -> None:
    """F-02: a damaged file is still read as what it is, and the note counts the damage."""
    result = decoded(data)

    assert (text, replaced) == (result.text, result.replaced)
    assert bool(replaced) is bool(result.note)
    assert str(replaced) in result.note or not replaced


def test_a_damaged_double_byte_file_keeps_its_page() -> None:
    """F-02: one odd byte does not turn a Chinese text into Latin letters."""
    data = (CHINESE * 20).encode("gb18030")
    result = decoded(data[:401] + b"\xff" + data[401:])

    assert result.encoding == "gb18030"
    assert result.text.count("您好") >= 19
    assert 0 < result.replaced <= 3


def test_a_text_with_terminal_colours_is_text() -> None:
    """Escape codes, tabs and page breaks are no sign of a binary file."""
    text = "\x1b[31merror\x1b[0m\tin line 3\x0c\n"

    assert text == decoded(text.encode()).text


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    """Any bytes become text that can be written as UTF-8, or a reason."""
    assert isinstance(format_of(data), str)
    result = decode(data)
    if isinstance(result, NotText):
        assert result.reason
    else:
        assert "\x00" not in result.text
        result.text.encode("utf-8")


@given(st.binary(max_size=300))
def test_every_guess_is_a_code_page(data: bytes) -> None:
    """The last resort always has an answer, and Python knows it."""
    data.decode(guess(data), "replace")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00\ufeff\x1b"), max_size=200))
def test_what_is_written_as_utf_8_is_read_as_utf_8(text: str) -> None:
    """Valid UTF-8 of printable text is never taken for anything else."""
    if not all(character.isprintable() or character in "\t\r\n" for character in text):
        return

    assert text == decoded(text.encode("utf-8")).text
