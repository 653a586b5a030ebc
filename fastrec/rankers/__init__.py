"""Rankers: rules, trees and nets behind one door, for folds and stacks."""

from fastrec.rankers.base import Lists, Ranker, Trace, whole_lists
from fastrec.rankers.net import NetRanker
from fastrec.rankers.rule import ColumnRanker
from fastrec.rankers.xgb import XGBRanker

__all__ = ["ColumnRanker", "Lists", "NetRanker", "Ranker", "Trace", "XGBRanker", "whole_lists"]
