"""Text in the shape of real text, made fast: passages out of one long stretch of words."""

from __future__ import annotations

import random
from itertools import accumulate

#: Different words, of which the n-th is 1/n as frequent as the first.
_VOCABULARY = 20_000
#: Words in the stretch.
_STRETCH = 200_000
#: A tenth of all passages are not plain ASCII.
_FOREIGN = 0.1
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
_FOREIGN_WORDS = ["größer", "naïve", "été", "данные", "ошибка", "会话", "消息记录", "データ", "—", "🙂"]


class Words:
    """Passages of any length up to a million characters, always the same for one seed.

    ``weight``: how many times as long as usual the passages are whose length is left to chance.
    """

    def __init__(self, chance: random.Random, weight: float = 1.0) -> None:
        self._chance = chance
        self._weight = weight
        vocabulary = ["".join(chance.choices(_SYLLABLES, k=1 + chance.randrange(5))) for _ in range(_VOCABULARY)]
        weights = list(accumulate(1 / (n + 2) for n in range(_VOCABULARY)))
        words = chance.choices(vocabulary, cum_weights=weights, k=_STRETCH)
        for n in range(0, _STRETCH, 12):
            words[n] += "\n"
        self._plain = " ".join(words)
        for n in range(5, _STRETCH, 20):
            words[n] = chance.choice(_FOREIGN_WORDS)
        self._foreign = " ".join(words)

    def text(self, characters: int) -> str:
        """A passage of that many characters that begins with a word."""
        stretch = self._foreign if self._chance.random() < _FOREIGN else self._plain
        begin = stretch.find(" ", int(self._chance.random() * (len(stretch) - characters - 50))) + 1
        return stretch[begin : begin + characters]

    def quoted(self, characters: int) -> str:
        """The same for the inside of a JSON string."""
        return self.text(characters).replace("\n", "\\n")

    def tailed(self, least: int, shape: float, most: int) -> int:
        """A number of characters: most passages are near the least, a few are very long."""
        return int(min(least * self._weight * self._chance.paretovariate(shape), most))
