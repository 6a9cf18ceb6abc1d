"""The user's own price file."""

from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest

from budgets import price_file
from budgets.errors import InvalidPriceFile, UnknownPrice
from budgets.prices import PriceBook
from budgets.pricing import cost
from budgets.rates import TOKEN_CLASSES
from budgets.usage import Usage

NOW = datetime(2026, 12, 5, tzinfo=UTC)


def book_of(folder: Path, text: str) -> PriceBook:
    """A book over a price file with this text."""
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return PriceBook(path)


def picos(book: PriceBook, model: str, at: datetime = NOW, **how: object) -> tuple[int, ...]:
    """Pico-dollars per token in the order of the token classes."""
    rates = book.rates(model, at, **how)  # type: ignore[arg-type]
    return tuple(getattr(rates, name) for name in TOKEN_CLASSES)


def test_a_new_model_gets_its_price_and_its_names(tmp_path: Path) -> None:
    """A model that the list lacks is priced by its name, its aliases and dated names of it."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "claude-mythos-5"
        aliases = ["mythos"]
        name = "Mythos 5"
        input = "$10"
        output = 50
        read = "0.25"
        web_search_per_1000 = "12.5"
        context_window = 500000
        cache_minimum = 512
        """,
    )

    expected = (10_000_000, 12_500_000, 20_000_000, 250_000, 50_000_000)
    for name in ("claude-mythos-5", "mythos", "claude-mythos-5-20260601"):
        assert book.resolve(name) == "claude-mythos-5"
        assert expected == picos(book, name)
    assert tuple(pico // 2 for pico in expected) == picos(book, "mythos", tier="batch")
    assert book.rates("mythos", NOW, tier="batch").web_search_nanos == 12_500_000
    assert (book.context_window("mythos"), book.cache_minimum("mythos")) == (500_000, 512)
    line = next(model for model in book.models(NOW) if model.id == "claude-mythos-5")
    assert (
        line.name,
        line.source,
    ) == ("Mythos 5", "prices.toml, [[price]] number 1 (claude-mythos-5)")
    assert line.retired_on is None


def test_what_is_left_out_is_derived_from_the_input_rate(tmp_path: Path) -> None:
    """Writes are 1.25 and 2 times, reads 0.1 times the input rate; odd picos round up."""
    book = book_of(tmp_path, '[[price]]\nmodel = "x"\ninput = "0.000001"\noutput = "3"')

    assert picos(book, "x") == (1, 2, 2, 1, 3_000_000)


def test_an_entry_beats_the_list_on_its_days_only(tmp_path: Path) -> None:
    """First and last day are included, in UTC; around them the list price holds."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "claude-opus-5-5-20260901"
        from = "2026-12-01"
        until = 2026-12-31
        input = "3"
        output = "15"
        """,
    )

    days = {
        datetime(2026, 11, 30, 23, 59, tzinfo=UTC): 4_000_000,
        datetime(2026, 12, 1, tzinfo=UTC): 3_000_000,
        datetime(2026, 12, 31, 23, 59, tzinfo=UTC): 3_000_000,
        datetime(2027, 1, 1, tzinfo=UTC): 4_000_000,
    }
    assert days == {at: book.rates("claude-opus-5-5", at).input for at in days}


def test_a_model_is_declined_outside_the_days_of_its_only_entries(tmp_path: Path) -> None:
    """With no list price behind it, the message names the days that the file has."""
    book = book_of(
        tmp_path,
        '[[price]]\nmodel = "x"\ninput = "1"\noutput = "1"\n'
        'from = "2026-12-01"\nuntil = "2026-12-31"',
    )

    with pytest.raises(UnknownPrice, match="from 2026-12-01 until 2026-12-31"):
        book.rates("x", datetime(2027, 1, 1, tzinfo=UTC))
    assert "x" not in {model.id for model in book.models(datetime(2027, 1, 1, tzinfo=UTC))}


def test_a_discount_applies_to_every_token_price_of_the_list(tmp_path: Path) -> None:
    """Standard, batch, fast and long prompts all get the contract's share; searches don't."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "claude-opus-5-5"
        discount = "0.85"

        [[price]]
        model = "claude-haiku-5-5"
        discount = "0.5"
        web_search_per_1000 = "8"
        """,
    )

    assert picos(book, "claude-opus-5-5") == (3_400_000, 4_250_000, 6_800_000, 170_000, 17_000_000)
    assert book.rates("claude-opus-5-5", NOW, tier="batch").input == 1_700_000
    assert book.rates("claude-opus-5-5", NOW, speed="fast").input == 6_800_000
    assert book.rates("claude-opus-5-5", NOW).web_search_nanos == 10_000_000
    assert book.rates("claude-haiku-5-5", NOW, prompt_tokens=100_001).input == 250_000
    assert book.rates("claude-haiku-5-5", NOW).web_search_nanos == 8_000_000
    assert "x 0.85" in book.rates("claude-opus-5-5", NOW).source


def test_own_tables_for_batch_fast_and_long_prompts(tmp_path: Path) -> None:
    """Each way of running can have rates of its own; a multiplier takes the place of a table."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "x"
        input = "4"
        output = "20"
        batch = { input = "1", output = "2" }
        fast = { input = "8", output = "40" }

        [[price]]
        model = "y"
        input = "4"
        output = "20"
        batch_multiplier = "0.6"
        long_prompt = { over = 200000, input = "8", output = "30" }
        """,
    )

    assert book.rates("x", NOW, tier="batch").input == 1_000_000
    assert book.rates("x", NOW, speed="fast").output == 40_000_000
    assert book.rates("y", NOW, prompt_tokens=200_000).input == 4_000_000
    assert book.rates("y", NOW, prompt_tokens=200_001).input == 8_000_000
    assert book.rates("y", NOW, tier="batch", prompt_tokens=200_001).output == 18_000_000
    with pytest.raises(UnknownPrice, match="'fast'"):
        book.rates("y", NOW, speed="fast")


def test_a_contract_may_keep_fast_where_the_list_has_ended_it(tmp_path: Path) -> None:
    """The user's word counts: an own fast price of Opus 4.8 holds after the list's last day."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "claude-opus-4-8"
        input = "5"
        output = "25"
        fast = { input = "9", output = "45" }
        """,
    )

    assert book.rates("claude-opus-4-8", NOW, speed="fast").input == 9_000_000


def test_a_price_of_zero_is_taken_at_its_word(tmp_path: Path) -> None:
    """A model that the user declares free costs nothing, and that is no error (C-04, H-11)."""
    book = book_of(tmp_path, '[[price]]\nmodel = "free"\ninput = "0"\noutput = "0"')

    assert cost(Usage(model="free", input_tokens=1000, output_tokens=1000), book, NOW) == 0


def test_entries_of_one_model_may_follow_each_other(tmp_path: Path) -> None:
    """A price change is two entries with days that touch, in any order."""
    book = book_of(
        tmp_path,
        """
        [[price]]
        model = "x"
        from = "2026-12-06"
        input = "2"
        output = "2"

        [[price]]
        model = "x"
        until = "2026-12-05"
        input = "1"
        output = "1"
        """,
    )

    assert book.rates("x", datetime(2026, 12, 5, 23, tzinfo=UTC)).input == 1_000_000
    assert book.rates("x", datetime(2026, 12, 6, tzinfo=UTC)).input == 2_000_000


GOOD = 'model = "x"\ninput = "1"\noutput = "2"\n'


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        pytest.param('model = "x"\ninput = 0.1\noutput = "2"', "input: 0.1 is a float", id="float"),
        pytest.param('model = "x"\ninput = "0.0000001"\noutput = "2"', "six decimals", id="finer"),
        pytest.param('model = "x"\ninput = "-1"\noutput = "2"', "not an amount", id="negative"),
        pytest.param('model = "x"\ninput = true\noutput = "2"', "not an amount", id="bool"),
        pytest.param('model = "x"\ninput = "1e3"\noutput = "2"', "not an amount", id="exponent"),
        pytest.param('model = "x"\ninput = "1"', "output: is missing", id="no output"),
        pytest.param('input = "1"\noutput = "2"', "model: is missing", id="no model"),
        pytest.param(GOOD + 'outptu = "3"', "did you mean 'output'", id="typo"),
        pytest.param(GOOD + "colour = 3", "known: .*aliases", id="unknown field"),
        pytest.param(GOOD + 'from = "1 May"', "from: '1 May' is not a day", id="no day"),
        pytest.param(GOOD + "from = 2026-12-01T00:00:00Z", "is not a day", id="instant"),
        pytest.param(
            GOOD + 'from = "2026-12-02"\nuntil = "2026-12-01"', "until: .*before", id="backwards"
        ),
        pytest.param(GOOD + 'discount = "0.5"', "can't stand beside discount", id="both"),
        pytest.param('model = "x"\ndiscount = "0.5"', "has no list price", id="discount on what"),
        pytest.param(
            'model = "claude-opus-5-5"\ndiscount = "15"', "at most 1", id="discount in percent"
        ),
        pytest.param('model = "claude-opus-5-5"\ndiscount = "0"', "above 0", id="discount of all"),
        pytest.param('model = "claude-opus-5-5"\ndiscount = 0.85', "float", id="float discount"),
        pytest.param(GOOD + 'aliases = "x"', "aliases: write a list", id="alias no list"),
        pytest.param(
            GOOD + 'aliases = ["claude-opus-5"]', "name of claude-opus-5 already", id="hijack"
        ),
        pytest.param(GOOD + "context_window = 0", "not a whole number", id="no window"),
        pytest.param(GOOD + "name = 3", "is not a name", id="name"),
        pytest.param(GOOD + "batch = 3", "batch: write a table", id="batch no table"),
        pytest.param(GOOD + 'batch = { input = "1" }', "batch: output: is missing", id="half"),
        pytest.param(
            GOOD + 'fast = { input = 1.5, output = "1" }', "fast: input: 1.5", id="float inside"
        ),
        pytest.param(
            GOOD + 'batch_multiplier = "0.5"\nbatch = { input = "1", output = "1" }',
            "not both",
            id="batch twice",
        ),
        pytest.param(
            GOOD + 'long_prompt = { input = "1", output = "2" }',
            "long_prompt: over: is missing",
            id="no over",
        ),
        pytest.param(
            GOOD + 'long_prompt = { over = 5, input = "1", output = "1" }',
            "can't be cheaper",
            id="cheaper when longer",
        ),
        pytest.param(
            'model = "claude-haiku-5-5"\ninput = "0.1"\noutput = "0.5"',
            "long_prompt: is missing: .*100,000",
            id="forgets the upper tier",
        ),
    ],
)
def test_what_can_not_be_used_is_refused_by_file_entry_and_field(
    tmp_path: Path, entry: str, says: str
) -> None:
    """A wrong entry stops the program at the start, with a message that leads to the line."""
    with pytest.raises(InvalidPriceFile, match=says) as refused:
        book_of(tmp_path, f"[[price]]\n{entry}\n")

    assert str(refused.value).startswith("prices.toml, [[price]] number 1")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", ""),
        ('until = "2026-12-05"', 'from = "2026-12-05"'),
        ('from = "2026-12-01"\nuntil = "2026-12-31"', 'from = "2026-12-10"\nuntil = "2026-12-11"'),
        ('from = "2026-12-01"', 'until = "2027-12-01"'),
    ],
)
def test_overlapping_days_are_refused(tmp_path: Path, first: str, second: str) -> None:
    """Two prices for one day would be a guess, also when the two entries spell the name unlike."""
    rates = 'input = "1"\noutput = "2"'
    text = (
        f'[[price]]\nmodel = "claude-opus-5-5"\n{rates}\n{first}\n'
        f'[[price]]\nmodel = "claude-opus-5-5-20260901"\n{rates}\n{second}\n'
    )

    with pytest.raises(InvalidPriceFile, match="days overlap"):
        book_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "at least one entry headed", id="empty"),
        pytest.param("[price]\nmodel = 'x'", "at least one entry headed", id="one table"),
        pytest.param(
            "[prices]\na = 1\n",
            "prices: is not a known field; did you mean 'price'",
            id="other heading",
        ),
        pytest.param("[[price]\n", "not valid TOML", id="broken"),
        pytest.param("price = [1]", "write a table headed", id="no table"),
    ],
)
def test_a_file_that_is_no_price_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """The message names the file and what was expected."""
    with pytest.raises(InvalidPriceFile, match=says):
        book_of(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A mistyped path never means "list prices then"."""
    with pytest.raises(InvalidPriceFile, match=r"gone\.toml can't be read"):
        PriceBook(tmp_path / "gone.toml")


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named as such rather than half read."""
    path = tmp_path / "prices.toml"
    path.write_bytes('[[price]]\nmodel = "ü"\n'.encode("latin-1"))

    with pytest.raises(InvalidPriceFile, match="not valid TOML"):
        PriceBook(path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "prices.toml"
    path.write_text(f"[[price]]\n{GOOD}", encoding="utf-8-sig")

    assert PriceBook(path).rates("x", NOW).input == 1_000_000


def test_the_example_in_the_module_is_valid(tmp_path: Path) -> None:
    """The format that the module documents is the one that it reads."""
    text = (price_file.__doc__ or "").split("::\n", 1)[1].split("An entry beats", 1)[0]
    book = book_of(tmp_path, dedent(text))

    assert book.rates("claude-opus-5-5", NOW).input == 3_400_000
    assert book.rates("claude-opus-5-5", datetime(2027, 12, 1, tzinfo=UTC)).input == 4_000_000
    assert book.resolve("example-6") == "claude-example-6"
