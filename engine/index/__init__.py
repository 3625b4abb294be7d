"""Where an offset or a time lives."""
