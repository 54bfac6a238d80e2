"""What one process hands to another: code in a pickle, data in one shared memory segment."""
