"""The load of each device: measured, planned for, and made even by moving rows."""
