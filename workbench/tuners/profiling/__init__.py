"""Profiles updates: where their time and memory go, and what limits their speed."""
