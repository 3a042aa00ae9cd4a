"""Models over several devices other than by their data: parts of a model, each where it was put."""
