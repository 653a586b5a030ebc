"""Recipes for rows larger than memory: click logs by streamed nets, and lists to rank in parts on disk."""
