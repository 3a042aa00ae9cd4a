"""What each device does: counted, shown, and evened out."""
