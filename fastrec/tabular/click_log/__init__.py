"""Click logs as text (``label TAB numbers TAB hashed categories``) → packed rows in a folder → fastai batches.

The text is read once. Values are counted in memory of a stated size; frequent ones get codes.
"""

from fastrec.tabular.click_log.frame import ClickLogFrame
from fastrec.tabular.click_log.text import LogPart

__all__ = ["ClickLogFrame", "LogPart"]
