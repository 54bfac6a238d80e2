"""Plots: pure functions from arrays to `Chart`, and two ways to draw one.

Nothing here loads plotly or matplotlib until something is drawn.
"""
