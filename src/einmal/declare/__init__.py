"""What users declare in TOML files, and what it means. Pure."""
