"""`paceline doctor`: check devices, folders, clocks and links, and report problems."""
