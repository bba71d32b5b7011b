"""What comes out of files whose texts have places, from any place on."""

import itertools

from hypothesis import strategies as st

TEXTS = st.lists(st.text(max_size=40), min_size=1, max_size=12)


def texts_from(files, place):
    """What comes from a place on, with where it begins."""
    return [
        (begin, batch.texts[number])
        for batch in files.batches_from(place)
        for number, begin in enumerate(batch.begins[:-1])
    ]


def assert_each_comes_once(files, place, each):
    """All texts of `each` that are not empty come from `place` on, or are the one that it is in."""
    wanted = [text.encode() for text in itertools.chain(*each) if text]
    found = texts_from(files, place)
    after = [text for begin, text in found if begin > place and text]
    here = [text for begin, text in found if begin <= place][-1:]
    assert sorted(after + [text for text in here if text]) == sorted(wanted)
    assert texts_from(files, place) == found
