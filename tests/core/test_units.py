"""Numbers with units: how they are written in messages and read from arguments."""

import pytest

from paceline.core import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.count(12345), "12,345"),
        (units.plural(1, "epoch"), "1 epoch"),
        (units.plural(0, "epoch"), "0 epochs"),
        (units.plural(1200, "step"), "1,200 steps"),
        (units.percent(0.9417), "94.17%"),
        (units.number(0.1), "0.1"),
        (units.number(3e-05), "3e-05"),
        (units.number(0.1 * 3), "0.3"),
        (units.rate(12345.6), "12,346"),
        (units.rate(99.96), "100"),
        (units.rate(3.14159), "3.14"),
        (units.duration(0.416), "0.42s"),
        (units.duration(12.34), "12.3s"),
        (units.duration(245), "4m 05s"),
        (units.duration(11220), "3h 07m"),
        (units.duration(86400 * 12 + 4 * 3600), "12d 04h"),
        (units.duration(86400 * 365 * 1200.5), "1,200 years"),
        (units.size(0), "0 B"),
        (units.size(1536), "1.54 kB"),
        (units.size(2e6), "2 MB"),
        (units.size(3.2e12), "3.2 TB"),
    ],
)
def test_numbers_read_as_people_write_them(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.999, "10.0s"), (59.99, "1m 00s"), (59.94, "59.9s"), (3599.9, "1h 00m")]
)
def test_a_duration_at_the_edge_of_a_unit_is_rounded_into_the_next(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(999, "999 B"), (999.9, "1 kB"), (999_999, "1 MB")])
def test_a_size_at_the_edge_of_a_unit_is_rounded_into_the_next(num_bytes, text):
    assert units.size(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (units.parse_number("25.6M"), 25.6e6),
        (units.parse_number("25MiB"), 25 * 2**20),
        (units.parse_number("1,281,167"), 1_281_167),
        (units.parse_seconds("50us"), 50e-6),
        (units.parse_seconds("1.2 ms"), 1.2e-3),
        (units.parse_seconds("0.345"), 0.345),
        (units.parse_rate("10gbit"), 1.25e9),
        (units.parse_rate("25Gb/s"), 3.125e9),
        (units.parse_rate("100 mbit"), 12.5e6),
        (units.parse_rate("12GB/s"), 12e9),
    ],
)
def test_amounts_are_read_as_people_write_them(value, expected):
    assert value == pytest.approx(expected)


@pytest.mark.parametrize("read", [units.parse_number, units.parse_seconds, units.parse_rate])
@pytest.mark.parametrize("text", ["", "much", "-1", "5 parsec", "1.2.3"])
def test_an_invalid_amount_is_refused_with_an_example(read, text):
    with pytest.raises(ValueError, match=r"expected a .* such as"):
        read(text)


def test_a_bit_rate_reads_as_links_are_sold():
    assert units.bit_rate(1.25e9) == "10 Gbit/s"
    assert units.bit_rate(11.95e6) == "95.6 Mbit/s"
    assert units.bit_rate(10) == "80 bit/s"


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([3], "rank 3"), ([2, 0], "ranks 0,2"), (range(8), "ranks 0,1,2,3,4,5,6,7"), ({5, 1}, "ranks 1,5")],
)
def test_ranks_are_named_in_order(ranks, expected):
    assert units.ranks_text(ranks) == expected


def test_only_the_first_of_many_ranks_are_named():
    assert units.ranks_text(range(100), most=3) == "ranks 0,1,2,…"
    assert units.ranks_text(range(3), most=3) == "ranks 0,1,2"


def test_control_characters_are_shown_instead_of_sent():
    assert units.escape_controls("a\x1b[31mb\nc\r\u202e") == "a\\x1b[31mb\nc\\r\\u202e"
    assert units.escape_controls("größer · 🙂") == "größer · 🙂"
    assert units.table(["run"], [["a\x1b[2J\nb"]]).splitlines()[2] == "a\\x1b[2J\\nb"
