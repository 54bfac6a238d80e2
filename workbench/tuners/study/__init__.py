"""What a study does next: a pure function of its record, on numpy alone."""
