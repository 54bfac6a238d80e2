"""Lightning modules on several ranks."""
