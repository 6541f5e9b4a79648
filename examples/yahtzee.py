"""Solitaire Yahtzee: the policy with the largest mean score, and the whole distribution of its score.

A state is a score card between two turns: the categories that are filled, the total of the upper section (up
to 63, where the bonus of 35 is earned) and whether the category Yahtzee earned 50, so that every further
Yahtzee earns 100 more. Backward induction, from full cards to the empty one, finds the best policy: which
dice to keep after the first and the second roll, and which category to fill. Under this policy the cards are
a Markov chain, whose rewards are the points of each turn.

The rules are those of Tom Verhoeff ("Optimal solitaire Yahtzee strategies", 1999): a Yahtzee counts as a full
house or a straight, as a joker, where Yahtzee and the face's own category are filled, and one is free to
choose any category. He found a mean of 254.5896, a standard deviation of 59.6117 and a median of 248.
"""

from itertools import combinations_with_replacement

import numpy as np
from numba import njit, prange

import policyrisk as pr
from policyrisk.markov.branches import Branches

CATEGORIES, FACES, YAHTZEE = 13, 6, 11  # upper section 0, …, 5; then 3 and 4 of a kind, …, Yahtzee, chance
FULL_HOUSE, SMALL, LARGE = 8, 9, 10
JOKER = {FULL_HOUSE: 25, SMALL: 30, LARGE: 40}
UPPER, BONUS, FURTHER = 63, 35, 100
CARDS = 1 << CATEGORIES + 7  # filled · 128 + (Yahtzee earned 50) · 64 + the upper section's total
MOST = 192  # points of a turn are below

# All sets of at most five dice, by their number; the last ones, from FIRST on, are the rolls.
SETS = [dice for k in range(6) for dice in combinations_with_replacement(range(FACES), k)]
NUMBER = {dice: k for k, dice in enumerate(SETS)}
FIRST = sum(len(dice) < 5 for dice in SETS)
WITH = np.array([[NUMBER[tuple(sorted((*dice, f)))] for f in range(FACES)] for dice in SETS[:FIRST]])
LESS = np.array(
    [[NUMBER[dice[:i] + dice[i + 1 :]] for i in range(len(dice))] + [0] * (5 - len(dice)) for dice in SETS]
)


def points(dice):
    """What a roll earns in each category, jokers apart."""
    counts = np.bincount(np.add(dice, 1), minlength=FACES + 1)[1:]
    total, shows = int(np.sum(dice)) + 5, "".join("x" if count else " " for count in counts)
    lower = [
        total * (counts.max() >= 3),
        total * (counts.max() >= 4),
        25 * (sorted(counts)[-2:] == [2, 3]),
        30 * ("xxxx" in shows),
        40 * ("xxxxx" in shows),
        50 * (counts.max() == 5),
        total,
    ]
    return [*(counts * np.arange(1, FACES + 1)), *lower]


POINTS = np.array([points(dice) for dice in SETS[FIRST:]])  # (rolls, categories)
AS_JOKER = np.array([JOKER.get(c, 0) for c in range(CATEGORIES)])
FACE = np.array([dice[0] if len(set(dice)) == 1 else -1 for dice in SETS[FIRST:]])  # of a Yahtzee


@njit(cache=True)
def fill(card, roll, c):
    """The reward of filling category c with a roll, and the next card."""
    filled, fifty, upper = card >> 7, card >> 6 & 1, card & 63
    earned, face = POINTS[roll, c], FACE[roll]
    if face >= 0 and filled >> YAHTZEE & 1:
        if filled >> face & 1:
            earned = max(earned, AS_JOKER[c])
        reward = earned + FURTHER * fifty
    else:
        reward = earned
        if c == YAHTZEE and earned:
            fifty = 1
    if c < FACES and upper < UPPER:
        upper = min(upper + earned, UPPER)
        reward += BONUS * (upper == UPPER)
    return reward, (filled | 1 << c) << 7 | fifty << 6 | upper


@njit(cache=True)
def choose(card, value, chosen):
    """The best category for each roll into ``chosen``, and what it is worth, (rolls,)."""
    best = np.full(len(chosen), -1.0)
    for roll in range(len(chosen)):
        for c in range(CATEGORIES):
            if not card >> 7 >> c & 1:
                reward, after = fill(card, roll, c)
                if reward + value[after] > best[roll]:
                    best[roll], chosen[roll] = reward + value[after], c
    return best


@njit(cache=True)
def keep(rolled, kept):
    """The best dice to keep of each roll into ``kept``; what every set is worth before the rest is rolled."""
    worth = np.zeros(len(kept))
    worth[FIRST:] = rolled
    for k in range(FIRST - 1, -1, -1):
        worth[k] = worth[WITH[k]].mean()
    best = worth.copy()
    for k in range(len(kept)):
        kept[k] = k
        for smaller in LESS[k]:
            if k and best[smaller] > best[k]:
                best[k], kept[k] = best[smaller], kept[smaller]
    return worth, best


@njit(cache=True)
def turn(card, value, kept, chosen):
    """The best decisions of a turn, and what the card is worth."""
    rolled = choose(card, value, chosen)
    for again in range(2):
        rolled = keep(rolled, kept[again])[1][FIRST:]
    return keep(rolled, kept[2])[0][0]


@njit(cache=True, parallel=True)
def solve(cards, value):
    """The value of cards whose successors are known."""
    for i in prange(len(cards)):
        kept, chosen = np.empty((3, len(LESS)), np.int64), np.empty(len(FACE), np.int64)
        value[cards[i]] = turn(cards[i], value, kept, chosen)


@njit(cache=True)
def roll_on(chance):
    """The chances of the rolls, from those of the sets of dice that are kept."""
    for k in range(FIRST):
        chance[WITH[k]] += chance[k] / FACES
        chance[k] = 0.0


@njit(cache=True)
def ways(card, value, successor, probability, reward):
    """The branches of a card under the best decisions, and how many there are."""
    kept, chosen = np.empty((3, len(LESS)), np.int64), np.empty(len(FACE), np.int64)
    turn(card, value, kept, chosen)
    chance = np.zeros(len(LESS))
    chance[0] = 1.0
    for again in range(1, -1, -1):
        roll_on(chance)
        moved = np.zeros(len(LESS))
        for k in range(FIRST, len(LESS)):
            moved[kept[again, k]] += chance[k]
        chance = moved
    roll_on(chance)
    place, count = np.full(CATEGORIES * MOST, -1), 0
    for roll in range(len(FACE)):
        earned, after = fill(card, roll, chosen[roll])
        key = chosen[roll] * MOST + earned
        if chance[FIRST + roll] > 0.0:
            if place[key] < 0:
                place[key], count = count, count + 1
                successor[place[key]], reward[place[key]] = after, earned
                probability[place[key]] = 0.0
            probability[place[key]] += chance[FIRST + roll]
    return count


@njit(cache=True)
def branches_of(cards, value):
    """The branches of some cards: how many of each, and the successors, probabilities and rewards."""
    most = len(FACE)
    count = np.empty(len(cards), np.int64)
    room = len(cards) * most
    successor, probability, reward = np.empty(room, np.int64), np.empty(room), np.empty(room)
    last = 0
    for i in range(len(cards)):
        own = slice(last, last + most)
        count[i] = ways(cards[i], value, successor[own], probability[own], reward[own])
        last += count[i]
    return count, successor[:last].copy(), probability[:last].copy(), reward[:last].copy()


CARD = np.arange(CARDS)
FILLED = np.bitwise_count(CARD >> 7)
LAST = CARD[FILLED == CATEGORIES - 1]  # cards before the last turn


def values():
    """What is still to come from every card under the best policy, (CARDS,), by backward induction."""
    value = np.zeros(CARDS)
    for filled in range(CATEGORIES - 1, -1, -1):
        solve(CARD[FILLED == filled], value)
    return value


def score_chain(value):
    """The Markov chain of the cards that the best policy comes to, from the empty one, its state 0."""
    cards, found = np.zeros(1, np.int64), []
    while FILLED[cards[0]] < CATEGORIES:
        blocks = [branches_of(some, value) for some in np.array_split(cards, len(cards) // 1024 + 1)]
        found.append((cards, *(np.concatenate(column) for column in zip(*blocks, strict=True))))
        cards = np.unique(found[-1][2])
    cards, count, successor, probability, reward = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    number = np.full(CARDS, len(cards))  # full cards are the end
    number[cards] = np.arange(len(cards))
    starts = np.append(0, np.cumsum(count))
    return pr.MarkovChain.from_branches(Branches(starts, number[successor], probability, reward))


if __name__ == "__main__":
    value = values()
    chain = score_chain(value)
    print(f"best mean {value[0]:.4f}; {chain.n:,} cards, {len(chain.branches.reward):,} branches")
    print(f"mean {chain.mean()[0]:.4f}, std {chain.std()[0]:.4f}")
    print(chain.distribution(0))
