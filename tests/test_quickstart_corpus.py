"""The generated corpus of the quick start: its German and its promises."""

import doctest
import functools
import importlib.util
import random
import re
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "examples" / "quickstart" / "corpus.py"
SPEC = importlib.util.spec_from_file_location("quickstart_corpus", PATH)
corpus = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(corpus)

# One sentence per template at least; more where articles and endings change.
TRANSLATIONS = """
Yesterday was Sunday, 31 December 2000.
Gestern war Sonntag, der einunddreißigste Dezember zweitausend.

Anna was born on 3 May 1987.
Anna wurde am dritten Mai neunzehnhundertsiebenundachtzig geboren.

We are moving the meeting from Monday to the first of March.
Wir verschieben das Treffen von Montag auf den ersten März.

We are moving the course from Friday to the seventh of June.
Wir verschieben den Kurs von Freitag auf den siebten Juni.

The library in Prague is closed until the eighth of August.
Die Bibliothek in Prag ist bis zum achten August geschlossen.

The concert starts on Saturday, the third of May, at half past seven.
Das Konzert beginnt am Samstag, dem dritten Mai, um halb acht.

On the twentieth of July our aunt is flying to Rome.
Am zwanzigsten Juli fliegt unsere Tante nach Rom.

The tower in Cologne was built in 1500.
Der Turm in Köln wurde im Jahr fünfzehnhundert gebaut.

Everyone knows that my brother moved to Vienna in 2007.
Alle wissen, dass mein Bruder im Jahr zweitausendsieben nach Wien gezogen ist.

The train from Munich arrives at a quarter past four on Monday.
Der Zug aus München kommt am Montag um Viertel nach vier an.

Paul says that the delegation from Warsaw arrives at one o'clock.
Paul sagt, dass die Delegation aus Warschau um ein Uhr ankommt.

The train to Berlin leaves from platform 12 at 16:47.
Der Zug nach Berlin fährt um sechzehn Uhr siebenundvierzig von Gleis zwölf ab.

The train to Athens leaves from platform 1 at 1:00.
Der Zug nach Athen fährt um ein Uhr von Gleis eins ab.

My sister gets up at half past twelve on Sundays.
Sonntags steht meine Schwester um halb eins auf.

The bakery is open from a quarter to eight until five to one on Tuesdays.
Dienstags ist die Bäckerei von Viertel vor acht bis fünf vor eins geöffnet.

Emil asks whether the bank is still open at twenty-five past three on Friday.
Emil fragt, ob die Bank am Freitag um fünf vor halb vier noch geöffnet ist.

Nina has to be at the museum at noon on Wednesday.
Nina muss am Mittwoch um zwölf Uhr mittags im Museum sein.

Tim has to be at the school at midnight on Thursday.
Tim muss am Donnerstag um Mitternacht in der Schule sein.

Please call my father at twenty-five to six on Monday.
Bitte ruf meinen Vater am Montag um fünf nach halb sechs an.

Please open the book at page 101 and read the third paragraph.
Bitte schlagen Sie das Buch auf Seite einhunderteins auf \
und lesen Sie den dritten Absatz.

Please open the book at page 1 and read the eighth line.
Bitte schlagen Sie das Buch auf Seite eins auf \
und lesen Sie die achte Zeile.

Please open the book at page 16 and read the first chapter.
Bitte schlagen Sie das Buch auf Seite sechzehn auf \
und lesen Sie das erste Kapitel.

What is three hundred and twelve divided by twenty-four?
Wie viel ist dreihundertzwölf geteilt durch vierundzwanzig?

His uncle lives at 27 Garden Street on the third floor.
Sein Onkel wohnt in der Gartenstraße siebenundzwanzig im dritten Stock.

Her son turns twenty-one on the thirtieth of April.
Ihr Sohn wird am dreißigsten April einundzwanzig.

Twenty-four children are waiting outside the church in Geneva.
Vor der Kirche in Genf warten vierundzwanzig Kinder.

Two men are waiting outside the theatre in Milan.
Vor dem Theater in Mailand warten zwei Männer.

Sofia has lived in Lisbon for a week.
Sofia wohnt seit einer Woche in Lissabon.

Sofia has lived in Zurich for a month.
Sofia wohnt seit einem Monat in Zürich.

Sofia has lived in Copenhagen for three years.
Sofia wohnt seit drei Jahren in Kopenhagen.

For a pound of cheese you pay €3.50.
Für ein Pfund Käse bezahlt man drei Euro fünfzig.

For two kilos of flour you pay €1.05.
Für zwei Kilo Mehl bezahlt man einen Euro fünf.

Your daughter paid three euros fifty for the hat.
Deine Tochter hat für den Hut drei Euro fünfzig bezahlt.

Your mother paid one euro for the pear.
Deine Mutter hat für die Birne einen Euro bezahlt.

The red dress is one euro cheaper than the old one.
Das rote Kleid ist einen Euro billiger als das alte.

The price of an apple has risen to €1.20.
Der Preis eines Apfels ist auf einen Euro zwanzig gestiegen.

The price of a candle has risen to €2.00.
Der Preis einer Kerze ist auf zwei Euro gestiegen.

The coat that Greta bought costs €71.99.
Der Mantel, den Greta gekauft hat, kostet einundsiebzig Euro neunundneunzig.

Julia buys a red apple and a packet of rice.
Julia kauft einen roten Apfel und eine Packung Reis.

Julia buys two red apples and three packets of rice.
Julia kauft zwei rote Äpfel und drei Packungen Reis.

You need two pounds of butter and a litre of milk for the party.
Für die Party braucht man zwei Pfund Butter und einen Liter Milch.

Oskar drank three cups of coffee on Saturday.
Oskar hat am Samstag drei Tassen Kaffee getrunken.

My aunt is happy because Ben bought a beautiful picture.
Meine Tante freut sich, weil Ben ein schönes Bild gekauft hat.

Clara gives her sister a green jacket.
Clara schenkt ihrer Schwester eine grüne Jacke.

David gives his brother twenty old books.
David schenkt seinem Bruder zwanzig alte Bücher.

An old umbrella lay on the table.
Auf dem Tisch lag ein alter Regenschirm.

A small knife lay in the drawer.
In der Schublade lag ein kleines Messer.

Three yellow keys lay in the cupboard.
Im Schrank lagen drei gelbe Schlüssel.
"""
TRANSLATIONS = [
    pair.splitlines() for pair in TRANSLATIONS.strip().split("\n\n")
]


@functools.cache
def pattern_of(template):
    pattern = re.escape(template.english)
    for gap in template.gaps:
        words = "|".join(re.escape(word) for word, _ in corpus.WORDS[gap])
        pattern = pattern.replace(rf"\{{{gap}\}}", f"(?P<{gap}>{words})")
    # Words at the start of the sentence are capitalized.
    return re.compile(pattern, re.IGNORECASE)


def translations(sentence):
    for template in corpus.TEMPLATES:
        match = pattern_of(template).fullmatch(sentence)
        if match:
            index = 0
            for gap in reversed(template.gaps):
                words = [word.lower() for word, _ in corpus.WORDS[gap]]
                choice = words.index(match[gap].lower())
                index = index * len(words) + choice
            yield template.pair(index)[1]


@pytest.mark.parametrize("english, german", TRANSLATIONS)
def test_translation_is_what_a_german_would_say(english, german):
    assert list(translations(english)) == [german]


def test_each_template_has_a_translation_above():
    for template in corpus.TEMPLATES:
        pattern = pattern_of(template)
        assert any(pattern.fullmatch(pair[0]) for pair in TRANSLATIONS), (
            template.english
        )


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (11, "eleven", "elf"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (70, "seventy", "siebzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (121, "one hundred and twenty-one", "einhunderteinundzwanzig"),
        (
            999,
            "nine hundred and ninety-nine",
            "neunhundertneunundneunzig",
        ),
        (1000, "one thousand", "eintausend"),
        (1001, "one thousand and one", "eintausendeins"),
        (2026, "two thousand and twenty-six", "zweitausendsechsundzwanzig"),
        (6_600, "six thousand six hundred", "sechstausendsechshundert"),
        (
            99_999,
            "ninety-nine thousand nine hundred and ninety-nine",
            "neunundneunzigtausendneunhundertneunundneunzig",
        ),
        (
            101_000,
            "one hundred and one thousand",
            "einhunderteintausend",
        ),
    ],
)
def test_number(number, english, german):
    assert corpus.number_in_english(number) == english
    assert corpus.number_in_german(number) == german


@pytest.mark.parametrize(
    "number, english, german",
    [
        (1, "first", "erste"),
        (2, "second", "zweite"),
        (3, "third", "dritte"),
        (5, "fifth", "fünfte"),
        (7, "seventh", "siebte"),
        (8, "eighth", "achte"),
        (9, "ninth", "neunte"),
        (12, "twelfth", "zwölfte"),
        (19, "nineteenth", "neunzehnte"),
        (20, "twentieth", "zwanzigste"),
        (23, "twenty-third", "dreiundzwanzigste"),
        (31, "thirty-first", "einunddreißigste"),
        (100, "one hundredth", "einhundertste"),
        (101, "one hundred and first", "einhunderterste"),
        (117, "one hundred and seventeenth", "einhundertsiebzehnte"),
    ],
)
def test_ordinal(number, english, german):
    assert corpus.ordinal_in_english(number) == english
    assert corpus.ordinal_in_german(number) == german
    assert corpus.ordinal_in_german(number, ending="en") == f"{german}n"


@pytest.mark.parametrize(
    "hour, minute, english, german",
    [
        (0, 0, "midnight", "Mitternacht"),
        (0, 30, "half past twelve", "halb eins"),
        (1, 0, "one o'clock", "ein Uhr"),
        (1, 5, "five past one", "fünf nach eins"),
        (4, 15, "a quarter past four", "Viertel nach vier"),
        (12, 0, "noon", "zwölf Uhr mittags"),
        (12, 10, "ten past twelve", "zehn nach zwölf"),
        (12, 30, "half past twelve", "halb eins"),
        (12, 45, "a quarter to one", "Viertel vor eins"),
        (13, 0, "one o'clock", "ein Uhr"),
        (15, 25, "twenty-five past three", "fünf vor halb vier"),
        (15, 35, "twenty-five to four", "fünf nach halb vier"),
        (17, 50, "ten to six", "zehn vor sechs"),
        (23, 55, "five to twelve", "fünf vor zwölf"),
    ],
)
def test_time(hour, minute, english, german):
    assert corpus.time_in_english(hour, minute) == english
    assert corpus.time_in_german(hour, minute) == german


@pytest.mark.parametrize(
    "year, german",
    [
        (800, "achthundert"),
        (1000, "eintausend"),
        (1100, "elfhundert"),
        (1500, "fünfzehnhundert"),
        (1901, "neunzehnhunderteins"),
        (1999, "neunzehnhundertneunundneunzig"),
        (2000, "zweitausend"),
        (2007, "zweitausendsieben"),
    ],
)
def test_year(year, german):
    assert corpus.year_in_german(year) == german


def test_each_english_and_each_german_sentence_occurs_once():
    pairs = corpus.sentence_pairs(50_000, seed=2)
    assert len(pairs) == 50_000
    assert len({english for english, _ in pairs}) == 50_000
    assert len({german for _, german in pairs}) == 50_000


@pytest.mark.parametrize(
    "template", corpus.TEMPLATES, ids=[t.english for t in corpus.TEMPLATES]
)
def test_each_word_changes_both_sentences(template):
    # So the product of the numbers of words is the number of pairs.
    step = 1
    for gap in template.gaps:
        number = len(corpus.WORDS[gap])
        pairs = [template.pair(step * word) for word in range(number)]
        assert len({english for english, _ in pairs}) == number, gap
        assert len({german for _, german in pairs}) == number, gap
        step *= number


def test_templates_have_no_other_gaps_in_german():
    for template in corpus.TEMPLATES:
        gaps = set(re.findall(r"{(\w+)", template.german))
        assert gaps == set(template.gaps)


def test_templates_come_up_equally_often():
    shares = [0] * len(corpus.TEMPLATES)
    for english, _ in corpus.sentence_pairs(len(shares) * 7 + 5, seed=3):
        for position, template in enumerate(corpus.TEMPLATES):
            match = pattern_of(template).fullmatch(english)
            shares[position] += match is not None
    assert sorted(shares) == [7] * (len(shares) - 5) + [8] * 5


def test_sentences_are_sentences():
    for pair in corpus.sentence_pairs(5_000, seed=5):
        for sentence in pair:
            assert sentence[0].isupper()
            assert sentence[-1] in ".?"
            assert "  " not in sentence and " ." not in sentence
            assert 4 <= len(sentence.split()) <= 17


def test_enough_pairs_are_possible():
    assert corpus.count_possible_pairs() > 100_000_000
    assert corpus.largest_corpus() > 500_000


def test_held_out_sentences_are_not_in_training():
    train, held_out = corpus.train_and_held_out(30_000, 2_000, seed=7)
    assert (len(train), len(held_out)) == (30_000, 2_000)
    for language in (0, 1):
        seen = {pair[language] for pair in train}
        assert not seen & {pair[language] for pair in held_out}


def test_seed_decides_the_corpus():
    pairs = corpus.train_and_held_out(100, 10, seed=11)
    assert corpus.train_and_held_out(100, 10, seed=11) == pairs
    assert corpus.train_and_held_out(100, 10, seed=13) != pairs


def test_drawing_leaves_the_global_generator_alone():
    state = random.getstate()
    corpus.sentence_pairs(10, seed=17)
    assert random.getstate() == state


LARGEST = corpus.largest_corpus()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: corpus.number_in_english(-1),
            "`number` must be between 0 and 999999. Received: number=-1.",
        ),
        (
            lambda: corpus.number_in_german(1_000_000),
            "`number` must be between 0 and 999999. Received: number=1000000.",
        ),
        (
            lambda: corpus.ordinal_in_english(0),
            "`number` must be between 1 and 999999. Received: number=0.",
        ),
        (
            lambda: corpus.ordinal_in_german(0),
            "`number` must be between 1 and 999999. Received: number=0.",
        ),
        (
            lambda: corpus.year_in_german(10_000),
            "`year` must be between 1 and 9999. Received: year=10000.",
        ),
        (
            lambda: corpus.time_in_english(24, 0),
            "`hour` must be between 0 and 23. Received: hour=24.",
        ),
        (
            lambda: corpus.time_in_german(3, 7),
            "`minute` must be a multiple of 5 from 0 to 55. "
            "Received: minute=7.",
        ),
        (
            lambda: corpus.sentence_pairs(0, seed=0),
            f"`count` must be between 1 and {LARGEST}. Received: count=0.",
        ),
        (
            lambda: corpus.sentence_pairs(LARGEST + 1, seed=0),
            f"`count` must be between 1 and {LARGEST}. "
            f"Received: count={LARGEST + 1}.",
        ),
        (
            lambda: corpus.train_and_held_out(0, 1, seed=0),
            f"`train_count` must be between 1 and {LARGEST - 1}. "
            "Received: train_count=0.",
        ),
        (
            lambda: corpus.train_and_held_out(100, 0, seed=0),
            f"`held_out_count` must be between 1 and {LARGEST - 100}. "
            "Received: held_out_count=0.",
        ),
        (
            lambda: corpus.train_and_held_out(LARGEST - 1, 2, seed=0),
            "`held_out_count` must be between 1 and 1. "
            "Received: held_out_count=2.",
        ),
    ],
)
def test_wrong_argument(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_doctests():
    results = doctest.testmod(corpus)
    assert results.attempted >= 7
    assert results.failed == 0


def test_main_prints_as_many_pairs_as_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["corpus.py", "3"])
    corpus.main()
    lines = capsys.readouterr().out.splitlines()
    pairs = corpus.sentence_pairs(3, seed=0)
    assert [line.strip() for line in lines] == [
        sentence for pair in pairs for sentence in pair
    ]
