"""One file per dialect or resource."""
