"""Pages and facts that reports of runs share: the palette, the frame of a page, and the environment of a run."""
