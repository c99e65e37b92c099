"""Time xr_tensorfmt, other packages at the same jobs, and the limit of the machine."""
