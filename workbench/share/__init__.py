"""Sends objects between processes: code in a pickle, data in one shared memory segment."""
