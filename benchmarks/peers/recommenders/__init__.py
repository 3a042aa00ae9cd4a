"""Two towers and a ranking model, of each library."""
