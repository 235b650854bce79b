"""English-German sentence pairs about dates, times, numbers and prices.

The training text of the quick start. It is generated, so it needs no
download, yet it has what makes translation hard: words change places
("twenty-four" is four-and-twenty, verbs wait for the end of the sentence),
articles and adjectives agree in gender, case and number, and "half past
three" is half of four. Each English sentence has exactly one German
translation, so a model can be scored by exact match.

`python examples/quickstart/corpus.py 10` prints ten pairs.
"""

import calendar
import itertools
import math
import random
import string
import sys
from types import SimpleNamespace

# 1. Numbers, years and times.

ENGLISH_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
ENGLISH_ORDINALS = dict(
    ending.split(":")
    for ending in "one:first two:second three:third five:fifth eight:eighth "
    "nine:ninth twelve:twelfth y:ieth".split()
)
GERMAN_SMALL = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf "
    "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
).split()
GERMAN_TENS = (
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
).split()
GERMAN_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
CLOCK = {
    0: ("{this} o'clock", "{this} Uhr"),
    5: ("five past {this}", "fünf nach {this}"),
    10: ("ten past {this}", "zehn nach {this}"),
    15: ("a quarter past {this}", "Viertel nach {this}"),
    20: ("twenty past {this}", "zwanzig nach {this}"),
    25: ("twenty-five past {this}", "fünf vor halb {next}"),
    30: ("half past {this}", "halb {next}"),
    35: ("twenty-five to {next}", "fünf nach halb {next}"),
    40: ("twenty to {next}", "zwanzig vor {next}"),
    45: ("a quarter to {next}", "Viertel vor {next}"),
    50: ("ten to {next}", "zehn vor {next}"),
    55: ("five to {next}", "fünf vor {next}"),
}


def _check_range(smallest, largest, **arguments):
    for name, value in arguments.items():
        if not smallest <= value <= largest:
            raise ValueError(
                f"`{name}` must be between {smallest} and {largest}. "
                f"Received: {name}={value}."
            )


def number_in_english(number: int) -> str:
    """Spells a number from 0 to 999,999 in British English.

    >>> number_in_english(24), number_in_english(1_101)
    ('twenty-four', 'one thousand one hundred and one')
    """
    _check_range(0, 999_999, number=number)
    if number < 20:
        return ENGLISH_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        ending = f"-{ENGLISH_SMALL[ones]}" if ones else ""
        return ENGLISH_TENS[tens - 2] + ending
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, unit)
    link = " and" if 0 < rest < 100 else ""
    ending = f"{link} {number_in_english(rest)}" if rest else ""
    return f"{number_in_english(count)} {name}{ending}"


def number_in_german(number: int) -> str:
    """Spells a number from 0 to 999,999 in German.

    It always has "ein" before "hundert" and "tausend", where German may drop
    it, so that 100 and 200 follow one rule.

    >>> number_in_german(24), number_in_german(1_101)
    ('vierundzwanzig', 'eintausendeinhunderteins')
    """
    _check_range(0, 999_999, number=number)
    if number < 20:
        return GERMAN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        start = f"{_before_a_noun(ones)}und" if ones else ""
        return start + GERMAN_TENS[tens - 2]
    unit, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, rest = divmod(number, unit)
    ending = number_in_german(rest) if rest else ""
    return f"{_before_a_noun(count)}{name}{ending}"


def _before_a_noun(number):
    # "eins" loses its s when more follows: ein Uhr, einundzwanzig, einhundert.
    spelled = number_in_german(number)
    return spelled[:-1] if spelled.endswith("eins") else spelled


def ordinal_in_english(number: int) -> str:
    """Spells an ordinal number from 1 to 999,999.

    >>> ordinal_in_english(3), ordinal_in_english(20), ordinal_in_english(21)
    ('third', 'twentieth', 'twenty-first')
    """
    _check_range(1, 999_999, number=number)
    spelled = number_in_english(number)
    for ending, ordinal in ENGLISH_ORDINALS.items():
        if spelled.endswith(ending):
            return spelled.removesuffix(ending) + ordinal
    return f"{spelled}th"


def ordinal_in_german(number: int, ending: str = "e") -> str:
    """Spells an ordinal number with the ending of its gender and case.

    >>> ordinal_in_german(3), ordinal_in_german(21, ending="en")
    ('dritte', 'einundzwanzigsten')
    """
    _check_range(1, 999_999, number=number)
    last = number % 100
    if last in GERMAN_ORDINALS:
        start = number_in_german(number - last) if number > last else ""
        return start + GERMAN_ORDINALS[last] + ending
    suffix = "t" if 0 < last < 20 else "st"
    return number_in_german(number) + suffix + ending


def year_in_german(year: int) -> str:
    """Spells a year from 1 to 9999; 1100 to 1999 are counted in hundreds.

    >>> year_in_german(1987), year_in_german(2026)
    ('neunzehnhundertsiebenundachtzig', 'zweitausendsechsundzwanzig')
    """
    _check_range(1, 9999, year=year)
    if not 1100 <= year < 2000:
        return number_in_german(year)
    ending = number_in_german(year % 100) if year % 100 else ""
    return f"{number_in_german(year // 100)}hundert{ending}"


def time_in_english(hour: int, minute: int) -> str:
    """Tells the time on the 12-hour clock, in steps of five minutes.

    >>> time_in_english(15, 30), time_in_english(5, 50), time_in_english(12, 0)
    ('half past three', 'ten to six', 'noon')
    """
    this, following = _clock_hours(hour, minute)
    if minute == 0 and this == 12:
        return "noon" if hour else "midnight"
    return CLOCK[minute][0].format(
        this=number_in_english(this), next=number_in_english(following)
    )


def time_in_german(hour: int, minute: int) -> str:
    """Tells the time as `time_in_english` does, in words to follow "um".

    >>> time_in_german(15, 30), time_in_german(5, 50), time_in_german(13, 0)
    ('halb vier', 'zehn vor sechs', 'ein Uhr')
    """
    this, following = _clock_hours(hour, minute)
    if minute == 0 and this == 12:
        return "zwölf Uhr mittags" if hour else "Mitternacht"
    spell = number_in_german if minute else _before_a_noun
    return CLOCK[minute][1].format(
        this=spell(this), next=number_in_german(following)
    )


def _clock_hours(hour, minute):
    _check_range(0, 23, hour=hour)
    if minute not in CLOCK:
        raise ValueError(
            "`minute` must be a multiple of 5 from 0 to 55. "
            f"Received: minute={minute}."
        )
    return (hour - 1) % 12 + 1, hour % 12 + 1


# 2. Words: what the gaps of the sentences are filled with.

# (English, German)
PAIRS = {
    "city": """Athens = Athen, Berlin = Berlin, Cologne = Köln, Geneva = Genf,
        Copenhagen = Kopenhagen, Hamburg = Hamburg, Lisbon = Lissabon,
        London = London, Milan = Mailand, Munich = München, Paris = Paris,
        Prague = Prag, Rome = Rom, Vienna = Wien, Warsaw = Warschau,
        Zurich = Zürich""",
    "colour": "red = rote, green = grüne, yellow = gelbe, brown = braune",
    "compared": "cheaper = billiger, more expensive = teurer",
    "crowd": """people = Menschen, children = Kinder, women = Frauen,
        men = Männer, tourists = Touristen, guests = Gäste""",
    "day": """yesterday was = gestern war, today is = heute ist,
        tomorrow is = morgen ist""",
    "drink": """water = Wasser, milk = Milch, tea = Tee, coffee = Kaffee,
        juice = Saft, cocoa = Kakao""",
    "food": """flour = Mehl, sugar = Zucker, rice = Reis, salt = Salz,
        butter = Butter, cheese = Käse""",
    "operation": """plus = plus, minus = minus, times = mal,
        divided by = geteilt durch""",
    "quality": "small = kleine, big = große, old = alte, beautiful = schöne",
    "street": """Garden Street = Gartenstraße, Church Street = Kirchstraße,
        Station Street = Bahnhofstraße, Market Street = Marktstraße,
        Forest Street = Waldstraße, Castle Street = Schlossstraße""",
    "surface": """on the bed = auf dem Bett, on the carpet = auf dem Teppich,
        on the chair = auf dem Stuhl, on the sofa = auf dem Sofa,
        on the stairs = auf der Treppe, on the table = auf dem Tisch,
        in the box = in der Kiste, in the cupboard = im Schrank,
        in the drawer = in der Schublade, under the tree = unter dem Baum""",
    "weekday": """Monday = Montag, Tuesday = Dienstag, Wednesday = Mittwoch,
        Thursday = Donnerstag, Friday = Freitag, Saturday = Samstag,
        Sunday = Sonntag""",
}
MONTHS = """January = Januar, February = Februar, March = März, April = April,
    May = Mai, June = Juni, July = Juli, August = August,
    September = September, October = Oktober, November = November,
    December = Dezember"""
OWNERS = "my = mein, your = dein, his = sein, her = ihr, our = unser"
NAMES = """Anna Ben Clara David Emil Emma Greta Jakob Julia Laura Martin Nina
    Oskar Paul Sofia Tim"""
# English, gender, German
NOUNS = {
    "event": """concert n Konzert, course m Kurs, exam f Prüfung,
        excursion m Ausflug, festival n Festival, lecture m Vortrag,
        match n Spiel, meeting n Treffen, party f Party, wedding f Hochzeit""",
    "passage": """chapter n Kapitel, exercise f Übung, line f Zeile,
        paragraph m Absatz, sentence m Satz, word n Wort""",
    "place": """bakery f Bäckerei, bank f Bank, café n Café, castle n Schloss,
        church f Kirche, hotel n Hotel, library f Bibliothek, museum n Museum,
        palace m Palast, school f Schule, theatre n Theater, tower m Turm""",
    "traveller": """bus m Bus, choir m Chor, delegation f Delegation,
        delivery f Lieferung, group f Gruppe, orchestra n Orchester,
        parcel n Paket, plane n Flugzeug, team n Team, train m Zug""",
}
RELATIVES = """brother m Bruder, sister f Schwester, father m Vater,
    mother f Mutter, uncle m Onkel, aunt f Tante, son m Sohn,
    daughter f Tochter"""
# English, gender, German; English and German plural
UNITS = {
    "drink_amount": """litre m Liter litres Liter, cup f Tasse cups Tassen,
        bottle f Flasche bottles Flaschen""",
    "food_amount": """kilo n Kilo kilos Kilo, pound n Pfund pounds Pfund,
        packet f Packung packets Packungen""",
    "period": """day m Tag days Tagen, week f Woche weeks Wochen,
        month m Monat months Monaten, year n Jahr years Jahren""",
}
# The same, and the German genitive
THINGS = """apple m Apfel apples Äpfel Apfels, hat m Hut hats Hüte Hutes,
    ring m Ring rings Ringe Ringes, coat m Mantel coats Mäntel Mantels,
    key m Schlüssel keys Schlüssel Schlüssels,
    umbrella m Regenschirm umbrellas Regenschirme Regenschirms,
    pear f Birne pears Birnen Birne, flower f Blume flowers Blumen Blume,
    lamp f Lampe lamps Lampen Lampe, jacket f Jacke jackets Jacken Jacke,
    bag f Tasche bags Taschen Tasche, candle f Kerze candles Kerzen Kerze,
    book n Buch books Bücher Buches, dress n Kleid dresses Kleider Kleides,
    shirt n Hemd shirts Hemden Hemdes, picture n Bild pictures Bilder Bildes,
    towel n Handtuch towels Handtücher Handtuches,
    knife n Messer knives Messer Messers"""

CASES = ("nominative", "accusative", "dative")
THE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
}
EIN_ENDINGS = {
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
}
EIN_ROTE = {  # the gap is for the adjective: ein roter, einen roten
    "m": ("ein {}r", "einen {}n"),
    "f": ("eine {}", "eine {}"),
    "n": ("ein {}s", "ein {}s"),
}


class Forms(SimpleNamespace):
    """A German phrase in its cases, and its other forms for sentences."""

    def __str__(self):
        return self.nominative


def _rows(text):
    return [row.split() for row in text.split(",")]


def _pairs(text):
    return [tuple(row.strip().split(" = ")) for row in text.split(",")]


def _cases(phrases):
    return Forms(**dict(zip(CASES, phrases, strict=False)))


def _with_the(nouns):
    for english, gender, noun, *_ in _rows(nouns):
        forms = _cases(f"{article} {noun}" for article in THE[gender])
        forms.noun = noun
        forms.the, forms.the_object, _ = THE[gender]
        forms.adjective_ending = "n" if gender == "m" else ""
        forms.inside = f"in der {noun}" if gender == "f" else f"im {noun}"
        yield english, forms


def _with_ein(gender, noun, ein="ein"):
    # In four cases; also for "mein": mein Bruder, meinen Bruder and so on.
    return [f"{ein}{ending} {noun}" for ending in EIN_ENDINGS[gender]]


def _relatives():
    for english, gender, noun in _rows(RELATIVES):
        for owner, mein in _pairs(OWNERS):
            yield f"{owner} {english}", _cases(_with_ein(gender, noun, mein))


def _some(count, singular, plural):
    if count > 1:
        return f"{number_in_english(count)} {plural}"
    return f"an {singular}" if singular[0] in "aeiou" else f"a {singular}"


def _amounts(units):
    for cup, gender, tasse, cups, tassen in _rows(units):
        yield _some(1, cup, cups), _cases(_with_ein(gender, tasse))
        for count in range(2, 25):
            phrase = f"{number_in_german(count)} {tassen}"
            yield _some(count, cup, cups), _cases([phrase] * 3)


def _things_with_adjective():
    adjectives = _pairs(PAIRS["colour"]) + _pairs(PAIRS["quality"])
    for hat, gender, hut, hats, huete, _ in _rows(THINGS):
        for (red, rote), count in itertools.product(adjectives, range(1, 21)):
            phrases = [f"{number_in_german(count)} {rote} {huete}"] * 2
            if count == 1:
                phrases = [f"{ein} {hut}" for ein in EIN_ROTE[gender]]
            forms = _cases(phrase.format(rote) for phrase in phrases)
            forms.lay = "lag" if count == 1 else "lagen"
            yield _some(count, f"{red} {hat}", f"{red} {hats}"), forms


def _dates(pattern):
    for number, (may, mai) in enumerate(_pairs(MONTHS), start=1):
        for day in range(1, calendar.monthrange(2023, number)[1] + 1):
            third = ordinal_in_english(day)
            dritte, dritten = (ordinal_in_german(day, e) for e in ("e", "en"))
            forms = _cases([f"{dritte} {mai}", *[f"{dritten} {mai}"] * 2])
            yield pattern.format(day=day, ordinal=third, month=may), forms


def _times(first_hour, last_hour):
    hours = range(first_hour, last_hour + 1)
    for hour, minute in itertools.product(hours, CLOCK):
        yield time_in_english(hour, minute), time_in_german(hour, minute)


def _numbers(smallest, largest, in_english=str):
    return [
        (in_english(number), number_in_german(number))
        for number in range(smallest, largest + 1)
    ]


NAMED = [(name, _cases([name] * 3)) for name in NAMES.split()]
RELATED = [*_relatives()]
# What follows "drei Euro" or "drei Uhr": nothing in a round case.
AFTER_A_UNIT = ["", *(f" {number_in_german(rest)}" for rest in range(1, 100))]
WORDS = {
    **{gap: _pairs(words) for gap, words in PAIRS.items()},
    **{gap: [*_with_the(nouns)] for gap, nouns in NOUNS.items()},
    **{gap: [*_amounts(units)] for gap, units in UNITS.items()},
    "age": _numbers(18, 90, number_in_english),
    "cents": [(f"{rest:02}", text) for rest, text in enumerate(AFTER_A_UNIT)],
    "cents_in_words": [
        (f" {number_in_english(rest)}" if rest else "", text)
        for rest, text in enumerate(AFTER_A_UNIT)
    ],
    "closing_time": [*_times(12, 20)],
    "crowd_size": _numbers(2, 100, number_in_english),
    "date": [*_dates("the {ordinal} of {month}")],
    "euros": [("1", "einen"), *_numbers(2, 99)],
    "euros_in_words": [
        ("one euro", "einen"),
        *(
            (f"{two} euros", zwei)
            for two, zwei in _numbers(2, 99, number_in_english)
        ),
    ],
    "hour": [(str(hour), _before_a_noun(hour)) for hour in range(24)],
    "house_number": _numbers(1, 199),
    "minute": [
        (f"{rest:02}", text) for rest, text in enumerate(AFTER_A_UNIT[:60])
    ],
    "name": NAMED,
    "number": _numbers(2, 999, number_in_english),
    "one_thing": [
        (_some(1, english, ""), _with_ein(gender, genitive)[-1])
        for english, gender, *_, genitive in _rows(THINGS)
    ],
    "opening_time": [*_times(7, 11)],
    "ordinal": [
        (ordinal_in_english(number), ordinal_in_german(number))
        for number in range(1, 21)
    ],
    "page": _numbers(1, 999),
    "person": NAMED + RELATED,
    "platform": _numbers(1, 24),
    "relative": RELATED,
    "second_number": _numbers(2, 99, number_in_english),
    "short_date": [*_dates("{day} {month}")],
    "thing": [*_with_the(THINGS)],
    "things": [*_things_with_adjective()],
    "time": [("midnight", "Mitternacht"), *_times(1, 12)],
    "year": [(str(year), year_in_german(year)) for year in range(1500, 2100)],
}

# 3. Sentences: English, then German. The gaps are filled from `WORDS`, and
# a gap such as {person.dative} asks for one of the forms of the German.

SENTENCES = """
{day} {weekday}, {short_date} {year}.
{day} {weekday}, der {short_date} {year}.

{person} was born on {short_date} {year}.
{person} wurde am {short_date.dative} {year} geboren.

We are moving the {event} from {weekday} to {date}.
Wir verschieben {event.accusative} von {weekday} auf den {date.accusative}.

The {place} in {city} is closed until {date}.
{place} in {city} ist bis zum {date.dative} geschlossen.

The {event} starts on {weekday}, {date}, at {time}.
{event} beginnt am {weekday}, dem {date.dative}, um {time}.

On {date} {person} is flying to {city}.
Am {date.dative} fliegt {person} nach {city}.

The {place} in {city} was built in {year}.
{place} in {city} wurde im Jahr {year} gebaut.

Everyone knows that {person} moved to {city} in {year}.
Alle wissen, dass {person} im Jahr {year} nach {city} gezogen ist.

The {traveller} from {city} arrives at {time} on {weekday}.
{traveller} aus {city} kommt am {weekday} um {time} an.

{name} says that the {traveller} from {city} arrives at {time}.
{name} sagt, dass {traveller} aus {city} um {time} ankommt.

The train to {city} leaves from platform {platform} at {hour}:{minute}.
Der Zug nach {city} fährt um {hour} Uhr{minute} von Gleis {platform} ab.

{person} gets up at {time} on {weekday}s.
{weekday}s steht {person} um {time} auf.

The {place} is open from {opening_time} until {closing_time} on {weekday}s.
{weekday}s ist {place} von {opening_time} bis {closing_time} geöffnet.

{person} asks whether the {place} is still open at {time} on {weekday}.
{person} fragt, ob {place} am {weekday} um {time} noch geöffnet ist.

{person} has to be at the {place} at {time} on {weekday}.
{person} muss am {weekday} um {time} {place.inside} sein.

Please call {person} at {time} on {weekday}.
Bitte ruf {person.accusative} am {weekday} um {time} an.

Please open the book at page {page} and read the {ordinal} {passage}.
Bitte schlagen Sie das Buch auf Seite {page} auf und lesen Sie \
{passage.the_object} {ordinal}{passage.adjective_ending} {passage.noun}.

What is {number} {operation} {second_number}?
Wie viel ist {number} {operation} {second_number}?

{person} lives at {house_number} {street} on the {ordinal} floor.
{person} wohnt in der {street} {house_number} im {ordinal}n Stock.

{person} turns {age} on {date}.
{person} wird am {date.dative} {age}.

{crowd_size} {crowd} are waiting outside the {place} in {city}.
Vor {place.dative} in {city} warten {crowd_size} {crowd}.

{person} has lived in {city} for {period}.
{person} wohnt seit {period.dative} in {city}.

For {food_amount} of {food} you pay €{euros}.{cents}.
Für {food_amount.accusative} {food} bezahlt man {euros} Euro{cents}.

{person} paid {euros_in_words}{cents_in_words} for the {thing}.
{person} hat für {thing.accusative} {euros_in_words} \
Euro{cents_in_words} bezahlt.

The {colour} {thing} is {euros_in_words} {compared} than the {quality} one.
{thing.the} {colour} {thing.noun} ist {euros_in_words} Euro {compared} als \
{thing.the} {quality}.

The price of {one_thing} has risen to €{euros}.{cents}.
Der Preis {one_thing} ist auf {euros} Euro{cents} gestiegen.

The {thing} that {person} bought costs €{euros}.{cents}.
{thing}, {thing.the_object} {person} gekauft hat, kostet {euros} Euro{cents}.

{person} buys {things} and {food_amount} of {food}.
{person} kauft {things.accusative} und {food_amount.accusative} {food}.

You need {food_amount} of {food} and {drink_amount} of {drink} for the {event}.
Für {event.accusative} braucht man {food_amount.accusative} {food} und \
{drink_amount.accusative} {drink}.

{person} drank {drink_amount} of {drink} on {weekday}.
{person} hat am {weekday} {drink_amount.accusative} {drink} getrunken.

{relative} is happy because {name} bought {things}.
{relative} freut sich, weil {name} {things.accusative} gekauft hat.

{name} gives {relative} {things}.
{name} schenkt {relative.dative} {things.accusative}.

{things} lay {surface}.
{surface} {things.lay} {things}.
"""


class Template:
    """A sentence in both languages, with gaps to fill.

    Args:
        english: The sentence in English; each gap is a key of `WORDS`.
        german: Its translation, with the same gaps.
    """

    def __init__(self, english: str, german: str):
        self.english = english
        self.german = german
        self.gaps = [
            gap for _, gap, *_ in string.Formatter().parse(english) if gap
        ]

    @property
    def number_of_pairs(self) -> int:
        """How many different pairs the template can make."""
        return math.prod(len(WORDS[gap]) for gap in self.gaps)

    def pair(self, index: int) -> tuple[str, str]:
        """Makes a different pair for each index below `number_of_pairs`."""
        english, german = {}, {}
        for gap in self.gaps:
            index, choice = divmod(index, len(WORDS[gap]))
            english[gap], german[gap] = WORDS[gap][choice]
        sentences = (
            self.english.format(**english),
            self.german.format(**german),
        )
        return tuple(text[0].upper() + text[1:] for text in sentences)


TEMPLATES = [
    Template(*lines.splitlines()) for lines in SENTENCES.strip().split("\n\n")
]


def count_possible_pairs() -> int:
    """Counts the different pairs that the templates can make."""
    return sum(template.number_of_pairs for template in TEMPLATES)


def largest_corpus() -> int:
    """Counts the pairs of a corpus that uses up its smallest template."""
    smallest = min(template.number_of_pairs for template in TEMPLATES)
    return smallest * len(TEMPLATES)


def sentence_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Draws different pairs, equally many from each template.

    Args:
        count: Number of pairs, from 1 to `largest_corpus()`.
        seed: The same seed draws the same pairs.

    Returns:
        English and German sentences, in random order.

    Raises:
        ValueError: If that many pairs cannot be drawn.

    Example:
        >>> len(sentence_pairs(count=100, seed=0))
        100
    """
    _check_range(1, largest_corpus(), count=count)
    generator = random.Random(seed)
    pairs = []
    templates = generator.sample(TEMPLATES, len(TEMPLATES))
    for position, template in enumerate(templates):
        # Rounded so that the shares add up to `count`.
        share = (count + position) // len(templates)
        indices = generator.sample(range(template.number_of_pairs), share)
        pairs.extend(template.pair(index) for index in indices)
    generator.shuffle(pairs)
    return pairs


def train_and_held_out(
    train_count: int, held_out_count: int, seed: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Draws training pairs and others to test with.

    No sentence of the held-out pairs, English or German, is among the
    training pairs: no two pairs share a sentence.

    Args:
        train_count: Number of training pairs, at least 1.
        held_out_count: Number of held-out pairs, at least 1. Both numbers
            together are at most `largest_corpus()`.
        seed: The same seed draws the same pairs.

    Returns:
        The training pairs and the held-out pairs.

    Raises:
        ValueError: If that many pairs cannot be drawn.
    """
    _check_range(1, largest_corpus() - 1, train_count=train_count)
    _check_range(
        1, largest_corpus() - train_count, held_out_count=held_out_count
    )
    pairs = sentence_pairs(train_count + held_out_count, seed)
    return pairs[:train_count], pairs[train_count:]


def main():
    """Prints as many pairs as the first argument asks for, or ten."""
    try:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
        pairs = sentence_pairs(count, seed=0)
    except ValueError as error:
        sys.exit(f"corpus.py: {error}")
    for english, german in pairs:
        print(f"{english}\n    {german}")


if __name__ == "__main__":
    main()
