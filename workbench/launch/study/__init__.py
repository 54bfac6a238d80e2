"""The processes that train the trials of a study."""
