"""Click logs as text (``label TAB numbers TAB hashed categories``) → packed rows in a folder → fastai batches.

The text is read once. ``text.py`` cuts files into stretches of whole lines, ``parse.py`` makes numbers of them,
``tally.py`` counts how often each value comes, in memory of a stated size, ``codes.py`` gives codes to those that come
often enough, ``packing.py`` writes the packed rows, ``frame.py`` is what a user makes.
"""

from fastrec.tabular.click_log.frame import ClickLogFrame
from fastrec.tabular.click_log.text import LogPart

__all__ = ["ClickLogFrame", "LogPart"]
