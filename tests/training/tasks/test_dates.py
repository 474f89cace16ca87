"""Dates: none held out is learned from, every locale is written, and each can be read back."""

from __future__ import annotations

import datetime

import pytest

from headloom.errors import InputError
from headloom.training.sections import DatesConfig
from headloom.training.tasks.dates import LOCALES, STYLES, dates_task, write_date
from headloom.training.tasks.pairs import PairsTask


def task(**changes: int) -> PairsTask:
    sizes = {"train_examples": 3000, "test_examples": 200, **changes}
    return dates_task(DatesConfig(**sizes), 1, None)


@pytest.fixture(scope="module")
def drawn() -> PairsTask:
    return task()


def test_no_held_out_date_is_learned_in_any_language(drawn: PairsTask) -> None:
    dates = {split: {target for _, target in pairs} for split, pairs in drawn.texts.items()}
    assert not dates["train"] & dates["valid"]
    assert not dates["train"] & dates["test"]
    assert not dates["valid"] & dates["test"]
    assert [len(drawn.texts[split]) for split in ("train", "valid", "test")] == [3000, 200, 200]
    # Not even where there are few dates.
    few = task(first_year=2000, last_year=2000, test_examples=1000)
    dates = {split: {target for _, target in pairs} for split, pairs in few.texts.items()}
    assert all(dates.values())
    assert not dates["train"] & (dates["valid"] | dates["test"])


@pytest.mark.parametrize("style", list(STYLES))
def test_no_two_dates_are_written_alike(style: str) -> None:
    """Two digits of the year tell a hundred years apart; no month or day hides in another's."""
    first = datetime.date(1950, 1, 1)
    dates = {datetime.date(year, 6, 15) for year in range(1950, 2050)}
    dates |= {datetime.date(1999, month, day) for month in range(1, 13) for day in (1, 2, 11, 12)}
    dates |= {first + datetime.timedelta(days=day) for day in range(31)}
    for locale in LOCALES:
        texts = {write_date(date, locale, style) for date in dates}
        assert len(texts) == len(dates), locale


@pytest.mark.parametrize(
    ("locale", "style", "expected"),
    [
        ("de", "full", "de: Sonntag, 17. März 2024"),
        ("en", "short", "en: 3/17/24"),
        ("en_GB", "short", "en_GB: 17/03/2024"),
        ("ja", "long", "ja: 2024年3月17日"),
    ],
)
def test_as_people_write_them(locale: str, style: str, expected: str) -> None:
    assert write_date(datetime.date(2024, 3, 17), locale, style) == expected


@pytest.mark.parametrize(("first", "last"), [(1950, 2050), (2000, 1999)])
def test_years_that_two_digits_cannot_tell_apart(first: int, last: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 100 years"):
        task(first_year=first, last_year=last)


def test_each_held_out_date_is_drawn_once() -> None:
    task = dates_task(DatesConfig(train_examples=10), 1, None)
    held_out = [{target for _, target in task.texts[split]} for split in ("valid", "test")]
    assert [len(dates) for dates in held_out] == [1000, 1000]
    assert not held_out[0] & held_out[1]
