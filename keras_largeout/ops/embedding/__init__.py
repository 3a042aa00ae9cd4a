"""Looking up rows and combining them over bags."""
