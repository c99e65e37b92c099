"""Time xr_tensorfmt, other packages at the same jobs, and a minimal program for the same bytes."""
