"""The colours and symbols of all plots.

The tones differ in lightness as well as in hue (readable in grey and to colour-blind people), and
nothing is shown by
colour alone: kinds of series differ in line style, marks in shape. Cividis is safe in the same
ways.
"""

TONES = ("#1f4e79", "#d9730d", "#3a9188", "#8a4a8f", "#6b7280")
"""Navy, orange, teal, plum, slate."""
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 3), (2, 2), (8, 2, 2, 2), (4, 2, 1, 2, 1, 2))
"""Of lines that several share: lengths of ink and of gap, in units of the line's width."""
ACCENT = "#c2410c"
"""The recommended value."""
INK = "#374151"
GRID = "#e5e7eb"
BAND = "#d9730d"
HEAT = "cividis"
AROUND = "PuOr_r"
"""Purple below the centre, orange above."""
FAINT = 0.3
"""Opacity of curves in the background."""
SYMBOLS = (
    ("^", "triangle-up"),
    ("s", "square"),
    ("o", "circle"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("h", "hexagon"),
)
"""Shapes of marks, as matplotlib and plotly name them."""
POINTS = 2000
"""A line is thinned to this many points before it is drawn; more than a screen can show."""
