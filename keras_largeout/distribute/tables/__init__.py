"""A large parameter in parts: its rows, how they are looked up, saved, moved, exported."""
