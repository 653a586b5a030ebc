"""Recipes for rows that do not fit into memory: clicks, and lists to rank."""
