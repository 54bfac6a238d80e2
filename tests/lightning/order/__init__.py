"""The order in which hooks run, here and under Lightning's Trainer."""
