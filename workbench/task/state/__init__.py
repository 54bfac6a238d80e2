"""The state that the user's own objects hold: where it is, how it is copied and restored, and its
form in a file.

`walk.py` finds the objects, `places.py` says which of their values are state, and `contents.py` has
the kinds that change in place. A copy in memory (`copies.py`) serves fresh starts and searches;
`held.py` writes it in plain form for checkpoints and other processes.
"""
