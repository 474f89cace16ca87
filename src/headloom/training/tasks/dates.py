"""Dates written in the words and orders of 48 languages, to ISO 8601.

    de: Sonntag, 17. März 2024     ->  2024-03-17
    en: 3/17/24                    ->  2024-03-17
    ja: 2024年3月17日               ->  2024-03-17

Words and orders are Babel's real CLDR locale data. The code of the locale comes first: without it
3/4/24 could be in March or in April.
"""

from __future__ import annotations

import datetime
import random

from headloom.errors import InputError
from headloom.training.data import DataDescription
from headloom.training.sections import DatesConfig
from headloom.training.tasks.pairs import PairsTask, TextPairs
from headloom.training.text import Vocabulary

#: The locales of the task.
LOCALES = (
    *("ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "en_GB", "es", "et", "eu"),
    *("fa", "fi", "fr", "ga", "he", "hi", "hr", "hu", "hy", "id", "is", "it", "ja", "ka", "ko"),
    *("lt", "lv", "ms", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "sw", "ta"),
    *("th", "tr", "uk", "vi", "zh", "zh_Hant"),
)

#: CLDR's lengths of a date, and how often each is drawn: in digits (with two digits of the year
#: in many locales), with a short month, with the whole month, with the weekday too.
STYLES = {"short": 0.2, "medium": 0.2, "long": 0.3, "full": 0.3}


def write_date(date: datetime.date, locale: str, style: str) -> str:
    """Format a date in the language of a locale, preceded by the locale's code.

    >>> write_date(datetime.date(2024, 3, 17), "de", "full")
    'de: Sonntag, 17. März 2024'
    """
    from babel.dates import format_date

    # CLDR puts narrow and no-break spaces where a typist puts a space.
    text = " ".join(format_date(date, style, locale=locale).split())
    return f"{locale}: {text}"


def _draw(
    dates: list[datetime.date], count: int, numbers: random.Random, *, each_once: bool = False
) -> TextPairs:
    """Draw pairs of random dates; each_once: use every date before any is repeated."""
    styles, shares = list(STYLES), list(STYLES.values())
    pairs = []
    for index in range(count):
        date = dates[index % len(dates)] if each_once else numbers.choice(dates)
        locale = numbers.choice(LOCALES)
        style = numbers.choices(styles, shares)[0]
        pairs.append((write_date(date, locale, style), date.isoformat()))
    return pairs


def dates_task(config: DatesConfig, seed: int, data: DataDescription | None = None) -> PairsTask:
    """Make the task and draw its pairs.

    No date of the validation and test pairs occurs among the training pairs, in any language.
    """
    if not 0 <= config.last_year - config.first_year < 100:
        raise InputError(
            f"task.first_year {config.first_year} to task.last_year {config.last_year}: expected "
            "1 to 100 years, since many locales write two digits of the year."
        )
    numbers = random.Random(seed)
    first = datetime.date(config.first_year, 1, 1).toordinal()
    last = datetime.date(config.last_year, 12, 31).toordinal()
    dates = [datetime.date.fromordinal(day) for day in range(first, last + 1)]
    numbers.shuffle(dates)
    held_out = min(2 * config.test_examples, len(dates) // 2)
    half = held_out // 2
    test, valid, rest = dates[:half], dates[half:held_out], dates[held_out:]
    train_pairs = _draw(rest, config.train_examples, numbers)
    valid_pairs = _draw(valid, config.test_examples, numbers, each_once=True)
    test_pairs = _draw(test, config.test_examples, numbers, each_once=True)
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        vocabulary = Vocabulary.of_characters(text for pair in train_pairs for text in pair)
    return PairsTask(vocabulary, seed, train_pairs, valid_pairs, test_pairs)
