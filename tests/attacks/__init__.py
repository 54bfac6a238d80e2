"""Attacks by what lies in a folder: each is tried as a stranger would, and must come to nothing."""
