"""Lightning's own modules and whole families of hooks, run here and by Lightning's Trainer in one process."""
