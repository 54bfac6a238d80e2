"""The run folder: written by one job, read by anyone, on any machine, without torch."""
