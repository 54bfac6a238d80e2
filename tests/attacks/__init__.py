"""What a stranger may try who can write into a run's folder, or who hands one over: none of it is run, deleted or shown as code."""
