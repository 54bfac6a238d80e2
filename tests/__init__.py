"""Tests: the folders mirror workbench/; helpers are imported as `tests.…`."""
