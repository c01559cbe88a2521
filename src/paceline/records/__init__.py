"""The files of a run: the only bridge between training and everything that explains it."""
