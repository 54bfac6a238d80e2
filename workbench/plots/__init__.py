"""Plots: pure functions from arrays to `Chart` (training, searches), and two ways to draw one
(drawing).

Nothing here loads plotly or matplotlib until something is drawn.
"""
