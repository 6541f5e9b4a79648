"""The features of an evaluation: how they are spelled on a command line, and how they are chosen."""

from policyrisk.choice.automatic import Choice, choose
from policyrisk.choice.spelling import EXAMPLES, Spelling, data_box

__all__ = ["EXAMPLES", "Choice", "Spelling", "choose", "data_box"]
